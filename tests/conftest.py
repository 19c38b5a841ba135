"""What every test may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forewarn.testing import ServiceProcess

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
