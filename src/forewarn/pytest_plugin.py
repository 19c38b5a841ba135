"""The fixtures `forewarn` and `forewarn_async`. Forewarn is imported only when a test uses one of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from forewarn.testing import AsyncService, Service


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "forewarn(fleet=None, **settings): start the fixture `forewarn` with this fleet and these settings."
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Add the history and what each VM saw to the report of a failed test."""
    failure_report = sys.modules.get("forewarn.testing.failure_report")
    if failure_report is None:
        yield
        return
    if call.excinfo is not None and not item.config.getoption("fulltrace"):
        _cut_inner_frames(call.excinfo.value)
    outcome = yield
    report = outcome.get_result()
    if report.when == "teardown":  # the services of the test have stopped
        failure_report.forget_stopped()
    elif report.failed:
        report.sections.extend(failure_report.sections())


def _cut_inner_frames(error: BaseException) -> None:
    """Remove the frames below the test kit. The frames of the test kit are hidden by `__tracebackhide__`."""
    traceback = error.__traceback__
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__")).startswith("forewarn.testing."):
            traceback.tb_next = None
        traceback = traceback.tb_next


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
