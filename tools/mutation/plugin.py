"""The pytest plugin of the coverage run and of the mutant runs.

The variable MUTATION_RUN names a folder. With a tests.json in it, only the tests listed there run, in that order, and a
test that hangs ends the run. Without it, all tests run, and the plugin records which lines each of them runs.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tools.mutation import trace

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(os.environ["MUTATION_RUN"])
STDERR = os.dup(2)
"""A copy of standard error, made before pytest captures it."""


def pytest_configure(config: pytest.Config) -> None:
    if (FOLDER / "tests.json").exists():
        config.pluginmanager.register(Chosen(json.loads((FOLDER / "tests.json").read_text())))
    elif not hasattr(config.option, "numprocesses") or hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


class Chosen:
    """Runs the listed tests in order. `seconds` is the usual duration of each."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._place = {test: place for place, test in enumerate(seconds)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        import forewarn

        if not str(forewarn.__file__).startswith(os.environ["PYTHONPATH"].split(os.pathsep)[0]):
            pytest.exit(f"The tests would run {forewarn.__file__}, not the mutant.", returncode=70)
        chosen = sorted(
            (item for item in items if item.nodeid in self._place), key=lambda item: self._place[item.nodeid]
        )
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self._place])
        items[:] = chosen

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        faulthandler.dump_traceback_later(20 + 10 * self._seconds[item.nodeid], exit=True, file=STDERR)
        (FOLDER / "current").write_text(item.nodeid)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


class Recorder:
    """Writes one line for each test: its name, whether it passed, its duration, and the lines that it ran."""

    def __init__(self) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        name = FOLDER / f"table-{worker}"
        name.write_bytes(bytes(int((FOLDER / "size").read_text())))
        os.environ[trace.TABLE] = str(name)
        self._table = trace.start()
        self._empty = bytes(len(self._table))
        self._trace = sys.gettrace()
        self._log = (FOLDER / f"ran-{worker}").open("w")
        self._passed = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._table[:] = self._empty
        sys.settrace(self._trace)  # Python removes it after an exception in it, such as a recursion error
        self._passed = True
        begin = time.monotonic()
        try:
            return (yield)
        finally:
            seconds = time.monotonic() - begin
            marked = self._table[:]
            places = [place for place, byte in enumerate(marked) if byte]
            print(json.dumps([item.nodeid, self._passed, seconds, places]), file=self._log, flush=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed = self._passed and report.passed

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        self._log.close()
