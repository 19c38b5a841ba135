"""What pytest shows of a test that fails: the line of the test, the history, and what each VM saw."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

HISTORY = "- Forewarn: history -"
PLUGINS = ("no:cacheprovider", "forewarn.pytest_plugin", "anyio.pytest_plugin", "xdist.plugin")
SEEN = "- Forewarn: what each VM saw -"


def report_of(folder: Path, test: str, *options: str) -> str:
    """Run a test file in its own process, and return what pytest prints. All its tests fail, or all pass."""
    (folder / "test_it.py").write_text(test)
    plugins = [part for name in PLUGINS for part in ("-p", name)]
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", *plugins, *options, "test_it.py"]
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("FOREWARN_", "PYTEST_"))}
    ours["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # other plugins take seconds to import
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=ours, timeout=120)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout
    assert done.stderr == ""
    return done.stdout


FAILS = """
import pytest

def test_it(forewarn):
    group = forewarn.group("web", vms=3)
    for vm in group[0], group[1]:
        vm.poll()
    event = group[0].restart()
    group[1].poll()
    group[1].approve(event)
    group[1].poll()
    assert event.status == "Completed"

def test_it_passes(forewarn):
    forewarn.vm("of-a-test-that-passes").poll()

@pytest.mark.xfail(strict=True)
def test_it_fails_as_expected(forewarn):
    forewarn.vm("of-a-test-that-fails-as-expected").poll()
    raise AssertionError
"""


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "with xdist"])
def test_the_report_of_a_failed_test_has_history_and_what_each_vm_saw(tmp_path: Path, options: tuple[str]) -> None:
    report = report_of(tmp_path, FAILS, *options)
    assert report.count(HISTORY) == report.count(SEEN) == 1
    history, _, seen = report.partition(HISTORY)[2].partition(SEEN)
    assert re.search(r"time \(UTC\) +kind +about +type +by +reason", history)
    assert re.search(r"\d\d:\d\d:\d\d  scheduled +web: web-0 +Reboot +operator", history)
    assert re.search(r"\d\d:\d\d:\d\d  approved +web: web-0 +Reboot +web-1", history)
    assert re.search(r"web-0: 1 poll\n  .* incarnation 0: no events\n", seen)
    assert re.search(
        r"web-1: 3 polls\n  .* incarnation 0: no events\n"
        r"  .* incarnation 1: Reboot of web-0 Scheduled\n  .* incarnation 2: Reboot of web-0 Started\n",
        seen,
    )
    assert "never polled: web-2\n" in seen
    assert "of-a-test-that" not in report


SERVICES = """
import asyncio
import unittest

import pytest

import forewarn.testing

def test_with_block():
    with forewarn.testing.Service() as service:
        service.vm("in-a-with-block").poll()
        assert not service.vms

def test_stopped():
    with forewarn.testing.Service() as service:
        service.vm("stopped-before-the-failure").poll()
    assert not service

class Notice(unittest.TestCase):
    def setUp(self):
        self.service = self.enterContext(forewarn.testing.Service())

    def test_unittest(self):
        self.service.vm("in-unittest").poll()
        self.assertFalse(self.service.vms)

def test_asynchronous():
    async def main():
        async with forewarn.testing.AsyncService() as service:
            service.vm("asynchronous").poll()
            assert not service.vms
    asyncio.run(main())

def test_fixture(forewarn_async):
    forewarn_async.vm("of-the-asynchronous-fixture").poll()
    assert not forewarn_async.vms

@pytest.fixture
def application(forewarn):
    forewarn.vm("of-a-fixture-that-fails").poll()
    raise RuntimeError

def test_failed_fixture(application):
    pass
"""


def test_the_report_covers_every_service_of_the_test(tmp_path: Path) -> None:
    report = report_of(tmp_path, SERVICES)
    assert report.count(HISTORY) == report.count(SEEN) == 6
    found = re.findall(r"^(\S+): 1 poll$", report, re.MULTILINE)
    assert sorted(found) == [
        "asynchronous",
        "in-a-with-block",
        "in-unittest",
        "of-a-fixture-that-fails",
        "of-the-asynchronous-fixture",
        "stopped-before-the-failure",
    ]


def test_several_services_are_told_apart(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
from forewarn.testing import Service

def test_it(forewarn):
    forewarn.vm("of-the-first").poll()
    with Service() as second:
        second.vm("of-the-second").poll()
        raise AssertionError

def test_that_passes():
    with Service() as forewarn:
        forewarn.vm("of-another-test").poll()

def test_without_a_service():
    raise AssertionError
""",
    )
    assert report.count("Forewarn: what each VM saw, service ") == 2
    assert re.search("saw, service 1 -.*of-the-first.*saw, service 2 -.*of-the-second", report, re.DOTALL)
    assert "of-another-test" not in report
    assert "Forewarn" not in report.partition("_ test_without_a_service _")[2]


def test_a_service_that_was_stopped_or_hangs_does_not_harm_the_report(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
import threading
from forewarn.testing import failure_report

failure_report.TIMEOUT_SECONDS = 0.1

def test_stopped(forewarn):
    forewarn.vm("web-0").poll()
    forewarn.stop()
    forewarn.vm("web-1")

def test_hangs(forewarn):
    forewarn._running.loop._loop.call_soon_threadsafe(threading.Event().wait, 2)
    assert not "hangs"

def test_database_is_gone(forewarn):
    forewarn._running.assembly.engine.records.stop()
    assert not "gone"
""",
    )
    assert "3 failed" in report
    stopped, hangs = report.split("_ test_hangs _")
    assert "web-0: 1 poll\n" in stopped
    assert "is not running" in stopped
    assert "Forewarn: history" in hangs
    assert "The service did not respond within 0.1 seconds." in hangs


def test_the_sections_have_a_bounded_length(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
def test_it(forewarn):
    group = forewarn.group("web", vms=200)
    for number in range(60):
        group[0].restart().cancel()
        group[0].poll()
    for vm in group.vms[:50]:
        vm.poll()
    raise AssertionError
""",
    )
    history, _, seen = report.partition(HISTORY)[2].partition(SEEN)
    assert len(history.splitlines()) < 60
    assert "earlier rows" in history
    assert len(seen.splitlines()) < 120
    assert "earlier documents" in seen
    assert re.search(r"never polled: web-50, .* and \d+ more", seen)


MISTAKES = {
    "an error of the service": 'forewarn.vm("x y")',
    "an invalid duration": 'forewarn.advance("soon")',
    "an unknown unit": "forewarn.advance(minuts=1)",
    "an unexpected status": 'forewarn.vm("web-0").approve("x")',
    "a closed connection": 'forewarn.vm("web-0").fault("reset"); forewarn.vm("web-0").poll()',
    "an event that cannot be cancelled": "event = forewarn.vm('web-0').fail(); event.cancel()",
    "an unknown approver": 'forewarn.vm("web-0").restart().was_approved_by("wep-0")',
    "a VM that does not poll": 'forewarn.advance(seen_by=forewarn.vm("web-0"), timeout=0.01)',
    "an unknown setting": "import forewarn.testing; forewarn.testing.Service(speedy=1)",
}


def test_a_failure_shows_the_line_of_the_test_and_no_frame_of_forewarn(tmp_path: Path) -> None:
    tests = [f"def test_{number}(forewarn):\n    {line}\n" for number, line in enumerate(MISTAKES.values())]
    tests.append(
        "async def test_async(forewarn_async):\n"
        "    await forewarn_async.advance(seen_by=forewarn_async.vm('web-0'), timeout=0.01)\n"
    )
    test = "\n".join(tests)
    report = report_of(tmp_path, test, "-o", "anyio_mode=auto", "--show-capture=no")
    assert f"{len(tests)} failed" in report
    places = set(re.findall(r"^(\S+):\d+: ", report, re.MULTILINE))
    assert places == {"test_it.py"}
    full = report_of(tmp_path, test, "-o", "anyio_mode=auto", "--show-capture=no", "--full-trace")
    assert re.search(r"forewarn/testing/\w+\.py:\d+: ", full)
