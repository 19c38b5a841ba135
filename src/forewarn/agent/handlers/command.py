"""command: runs a program, which gets the event in its environment and on its standard input."""

from __future__ import annotations

import json
import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from forewarn.agent.handlers.handler import COMMON, PREPARE, Handler, as_json, as_variable, as_variables
from forewarn.agent.handlers.options import read_argv, read_path
from forewarn.agent.handlers.program import missing_programs, run_program
from forewarn.errors import HandlerFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forewarn.agent.handlers.handler import Job
    from forewarn.files.toml_reader import TomlTable

_MEMO = "FOREWARN_MEMO "
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class CommandHandler(Handler):
    """Runs one program for prepare and one for undo."""

    def __init__(self, options: TomlTable) -> None:
        options.reject_unknown({"prepare", "undo", "environment", "directory", *COMMON})
        self._directory = read_path(options, "directory")
        self._prepare, self._undo = read_argv(options, "prepare"), read_argv(options, "undo")
        if not self._prepare and not self._undo and options.is_right("prepare", "undo"):
            options.report(
                'It is missing. Give prepare, undo or both, for example ["systemctl", "stop", "web"].', "prepare"
            )
        self._environment = dict(options.text_table("environment"))
        for name, value in self._environment.items():
            if not _NAME.fullmatch(name) or "\0" in value:
                options.report("Is not a valid environment variable.", "environment", name)

    def describe(self, action: str) -> str:
        argv = self._prepare if action == PREPARE else self._undo
        return f"run {shlex.join(argv)}" if argv else ""

    def problems_here(self) -> Iterable[str]:
        variables = {**os.environ, **self._environment}
        return missing_programs((self._prepare, self._undo), variables, self._directory)

    def prepare(self, job: Job) -> None:
        self._run(job, self._prepare)

    def undo(self, job: Job) -> None:
        self._run(job, self._undo)

    def _run(self, job: Job, argv: tuple[str, ...]) -> None:
        if not argv:
            return
        memo: dict[str, Any] = job.memo.get("said", {})
        result = run_program(
            job,
            argv,
            environment={**self._environment, **as_variables(job), **_memo_variables(memo)},
            text=as_json(job, memo=memo),
            directory=self._directory,
            on_line=lambda line: line.startswith(_MEMO) and _remember(job, line),
            resumable=True,
        )
        if result.status != 0:
            raise result.error


def _remember(job: Job, line: str) -> bool:
    """Store a fact for undo as soon as it is read: the program or the agent may be killed later."""
    if job.action != PREPARE:
        job.warning("ignored FOREWARN_MEMO in the output of undo: only prepare can store facts")
        return True
    try:
        facts = json.loads(line[len(_MEMO) :])
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise HandlerFailed(problem=f"{line[:200]!r} must be {_MEMO.strip()} followed by a JSON object.")
    job.remember(said=facts)
    return True


def _memo_variables(memo: dict[str, Any]) -> dict[str, str]:
    """Return each simple fact as an environment variable, for shell scripts."""
    plain = {name.upper(): value for name, value in memo.items() if isinstance(value, (str, int, float, bool))}
    return {f"{_MEMO.strip()}_{name}": as_variable(value) for name, value in plain.items() if _NAME.fullmatch(name)}


KIND = CommandHandler
