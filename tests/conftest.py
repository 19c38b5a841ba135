"""Fixtures and options of all tests."""

from __future__ import annotations

import os
import sys
import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings

from cluster import Cluster
from depth import DEEP, PROFILE
from forewarn.testing import ServiceProcess
from postgresql import SERVERS, PostgresServer, SharedStore, store_name
from programs import without

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# The tests start hundreds of processes. Without bytecode each of them would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No deadline: the time of an example depends on the machine.
settings.register_profile("quick", deadline=None, print_blob=True, max_examples=20)
settings.register_profile("deep", deadline=None, print_blob=True)
settings.register_profile(
    "mutate", deadline=None, max_examples=20, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile(PROFILE)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "deep: only run by script/test --deep")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `deep` in the quick profile."""
    left_out = [] if DEEP else [item for item in items if item.get_closest_marker("deep")]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which tests were not run, and how to run them."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = sorted({str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped})
    said = [f"{len(skipped)} tests were skipped ({'; '.join(reasons)})."] if skipped else []
    if any("script/peers" in reason for reason in reasons):
        said.append("script/peers installs the programs.")
    if PROFILE == "quick":
        said.append("script/test --deep runs all examples, kills and deep tests.")
    if said:
        terminalreporter.write_line(" ".join(said))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def own_registry(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Services of the tests are not registered beside those of the developer."""
    os.environ["FOREWARN_RUNTIME_DIR"] = str(tmp_path_factory.mktemp("registry"))


@pytest.fixture(scope="session")
def postgresql_of() -> Iterator[Callable[[int], PostgresServer]]:
    """Return a PostgreSQL server of a version, for all tests. Each test uses a schema of its own."""
    started: dict[int, PostgresServer] = {}

    def server(version: int) -> PostgresServer:
        without("" if version else "PostgreSQL is not installed; script/setup test installs it")
        if version not in started:
            started[version] = PostgresServer(version).start()
        return started[version]

    yield server
    for each in started.values():
        each.close()


@pytest.fixture(params=SERVERS, ids=store_name)
def postgresql(request: pytest.FixtureRequest, postgresql_of: Callable[[int], PostgresServer]) -> PostgresServer:
    """Each of these servers in turn."""
    return postgresql_of(request.param)


@pytest.fixture
def schema() -> str:
    """The name of a new schema."""
    return f"test_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def shared_store_of(
    postgresql_of: Callable[[int], PostgresServer], schema: str
) -> Iterator[Callable[[int], SharedStore]]:
    """Return a new schema in a version of PostgreSQL."""
    made: dict[int, SharedStore] = {}

    def shared(version: int) -> SharedStore:
        if version not in made:
            made[version] = SharedStore(postgresql_of(version).url, schema)
        return made[version]

    yield shared
    for version, each in made.items():
        each.close()
        postgresql_of(version).execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def shared_store(postgresql: PostgresServer, shared_store_of: Callable[[int], SharedStore]) -> SharedStore:
    return shared_store_of(postgresql.version)


@pytest.fixture
def cluster(postgresql: PostgresServer, schema: str, tmp_path: Path) -> Iterator[Cluster]:
    """A service with several nodes. The test adds them."""
    made = Cluster(tmp_path, postgresql, schema)
    yield made
    try:
        made.check_notices()
    finally:
        made.close()
        postgresql.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture
def make_service(tmp_path: Path) -> Iterator[Callable[..., ServiceProcess]]:
    """Start a service process with its own folder. `fleet` is the text of a fleet file."""
    services: list[ServiceProcess] = []

    def make(*arguments: str, fleet: str = "", folder: str = "one", **variables: str) -> ServiceProcess:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        if fleet:
            (place / "fleet.toml").write_text(fleet)
            arguments = ("--fleet", str(place / "fleet.toml"), *arguments)
        service = ServiceProcess(place)
        services.append(service)
        return service.start(*arguments, **variables)

    yield make
    for service in services:
        if service.process is not None:
            service.kill()
