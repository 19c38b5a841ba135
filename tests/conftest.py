"""What every test may ask for."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from forewarn.testing import Service, ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def make_service(tmp_path: Path) -> Iterator[Callable[..., ServiceProcess]]:
    """Starts a service in a process, over a folder of its own; `fleet` is the text of a fleet file."""
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


@pytest.fixture
def make_forewarn() -> Iterator[Callable[..., Service]]:
    """Starts a service in this process, with these settings: for whom the marker of `forewarn` is not enough."""
    with ExitStack() as services:

        def make(fleet: str | None = None, **settings: Any) -> Service:
            return services.enter_context(Service(fleet, **settings))

        yield make
