"""The fixtures `forewarn` and `forewarn_async`. Forewarn is imported only when a test uses one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.testing import AsyncService, Service


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
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
    """The same service for asynchronous tests: methods that can wait are awaited (forewarn.testing.AsyncService)."""
    from forewarn.testing import AsyncService

    service = AsyncService(**_settings(request))
    service.start()
    try:
        yield service
    finally:
        service.stop()


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the settings of all markers. The marker nearest to the test wins."""
    settings: dict[str, Any] = {}
    for marker in request.node.iter_markers("forewarn"):
        given = dict(marker.kwargs)
        if marker.args:
            if len(marker.args) > 1 or "fleet" in given:
                problem = "takes one fleet, and settings as keyword arguments"
                raise pytest.UsageError(f"@pytest.mark.forewarn {problem}: forewarn(FLEET, rate_limit=5)")
            given["fleet"] = marker.args[0]
        settings = {**given, **settings}
    return settings
