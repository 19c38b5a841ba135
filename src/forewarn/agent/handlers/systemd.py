"""systemd: stops units, and starts those again that were running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.agent.handlers.handler import COMMON, PREPARE, Handler
from forewarn.agent.handlers.options import read_several
from forewarn.agent.handlers.program import run_program
from forewarn.errors import HandlerFailed

if TYPE_CHECKING:
    from forewarn.agent.handlers.handler import Job
    from forewarn.files.toml_reader import TomlTable

_RUNNING = ("active", "reloading", "activating", "refreshing")


class Systemd(Handler):
    """Stops in the order that is given, starts in reverse."""

    def __init__(self, options: TomlTable) -> None:
        options.refuse_unknown({"unit", "units", *COMMON})
        self._units = read_several(options, "unit", "units", '"web.service"')
        for unit in self._units:
            if unit.startswith("-") or "*" in unit:
                raise options.wrong(f"{unit!r} is no name of a unit.", "units" if "units" in options else "unit")

    def describe(self, action: str) -> str:
        if action == PREPARE:
            return f"stop {', '.join(self._units)}"
        return f"start {', '.join(reversed(self._units))}, as far as it was running"

    def prepare(self, job: Job) -> None:
        if "running" not in job.memo:
            # Only once: after a kill some are stopped already, and would not be started again.
            job.remember(running=[unit for unit in self._units if _is_running(job, unit)])
        for unit in self._units:
            _systemctl(job, "stop", unit)

    def undo(self, job: Job) -> None:
        problems = []
        for unit in reversed(job.memo.get("running", [])):
            try:
                _systemctl(job, "start", unit)
            except HandlerFailed as error:  # noqa: PERF203 - the others are wanted all the same
                problems.append(str(error))
        if problems:
            raise HandlerFailed(problem=" ".join(problems))


def _is_running(job: Job, unit: str) -> bool:
    said: list[str] = []

    def keep(line: str) -> bool:
        said.append(line.strip())
        return True

    run_program(job, ["systemctl", "is-active", unit], on_line=keep)
    # Other words say that it does not run; if there is no such unit, the stop that follows says so best.
    return any(line in _RUNNING for line in said)


def _systemctl(job: Job, verb: str, unit: str) -> None:
    ended = run_program(job, ["systemctl", verb, unit])
    if ended.status != 0:
        raise HandlerFailed(problem=f"systemctl {verb} {unit}: {ended.failed}")


KIND = Systemd
