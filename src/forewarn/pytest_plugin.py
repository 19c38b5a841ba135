"""The fixtures `forewarn` and `forewarn_async`. Nothing of Forewarn is imported before a test asks for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.testing import AsyncService, Service


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers", "forewarn(fleet=None, **settings): start the fixture `forewarn` with this fleet and these settings."
    )


@pytest.fixture
def forewarn(request: pytest.FixtureRequest) -> Iterator[Service]:
    """The whole service in this process, on free ports, in virtual time (forewarn.testing.Service)."""
    from forewarn.testing import Service

    with Service(**_settings(request)) as service:
        yield service


@pytest.fixture
def forewarn_async(request: pytest.FixtureRequest) -> Iterator[AsyncService]:
    """The same for asynchronous tests: what waits for the application is awaited."""
    from forewarn.testing import AsyncService

    service = AsyncService(**_settings(request))
    service.start()
    try:
        yield service
    finally:
        service.stop()


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Of all markers, the nearest to the test first."""
    settings: dict[str, Any] = {}
    for marker in request.node.iter_markers("forewarn"):
        given = dict(marker.kwargs)
        if marker.args:
            if len(marker.args) > 1 or "fleet" in given:
                problem = "takes one fleet, and settings by their names"
                raise pytest.UsageError(f"@pytest.mark.forewarn {problem}: forewarn(FLEET, rate_limit=5)")
            given["fleet"] = marker.args[0]
        settings = {**given, **settings}
    return settings
