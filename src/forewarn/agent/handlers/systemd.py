"""systemd: stops units; undo starts those that were running before."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forewarn.agent.handlers.handler import COMMON, PREPARE, Handler
from forewarn.agent.handlers.options import read_several
from forewarn.agent.handlers.program import find_program, run_program
from forewarn.errors import HandlerFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forewarn.agent.handlers.handler import Job
    from forewarn.files.toml_reader import TomlTable

_RUNNING = ("active", "reloading", "activating", "refreshing")


class SystemdHandler(Handler):
    """Stops units in the given order, and starts them in reverse order."""

    def __init__(self, options: TomlTable) -> None:
        options.reject_unknown({"unit", "units", *COMMON})
        self._units = read_several(options, "unit", "units", '"web.service"')
        for index, unit in enumerate(self._units):
            if unit.startswith("-") or "*" in unit:
                place = ("units", index) if "units" in options else ("unit",)
                options.report(f"{unit!r} is not a unit name.", *place)

    def describe(self, action: str) -> str:
        if action == PREPARE:
            return f"stop {', '.join(self._units)}"
        return f"start {', '.join(reversed(self._units))} if they were running"

    def problems_here(self) -> Iterable[str]:
        import subprocess  # imported here: an idle agent runs no programs

        systemctl = find_program("systemctl", os.environ, "/")
        for unit in self._units:
            done = subprocess.run(  # noqa: S603 - the policy names the unit
                [systemctl, "cat", unit], capture_output=True, text=True, errors="replace", check=False, timeout=10
            )
            if done.returncode != 0:
                yield f"systemctl cat {unit}: {done.stderr.strip().partition(chr(10))[0]}"

    def prepare(self, job: Job) -> None:
        if "running" not in job.memo:
            # Only once: in a second run after a kill, some units are stopped already.
            job.remember(running=[unit for unit in self._units if _is_running(job, unit)])
        for unit in self._units:
            _systemctl(job, "stop", unit)

    def undo(self, job: Job) -> None:
        problems = []
        for unit in reversed(job.memo.get("running", [])):
            try:
                _systemctl(job, "start", unit)
            except HandlerFailed as error:  # noqa: PERF203 - start the others anyway
                problems.append(str(error))
        if problems:
            raise HandlerFailed(problem=" ".join(problems))


def _is_running(job: Job, unit: str) -> bool:
    states: list[str] = []

    def keep(line: str) -> bool:
        states.append(line.strip())
        return True

    run_program(job, ["systemctl", "is-active", unit], on_line=keep)
    # An unknown unit is not running: the stop that follows reports the error.
    return any(state in _RUNNING for state in states)


def _systemctl(job: Job, verb: str, unit: str) -> None:
    result = run_program(job, ["systemctl", verb, unit])
    if result.status != 0:
        raise HandlerFailed(problem=f"systemctl {verb} {unit}: {result.error}")


KIND = SystemdHandler
