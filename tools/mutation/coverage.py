"""Records which test runs which lines, and how long it takes. The result is kept until the source changes."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tools.mutation import trace
from tools.mutation.mutants import Function

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tools.mutation.mutants import Mutant

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / ".mutate"

# Without the slow tests: of the project's files (project), of the agent, and of the whole service (acceptance).
TESTS = ("unit", "http", "contracts", "golden", "testing", "verify")
NOT_RUN = ("http/test_openapi.py",)  # it takes minutes and tests the control API only
# Loading every installed plugin would take longer than most tests.
PLUGINS = ("anyio.pytest_plugin", "_hypothesis_pytestplugin", "forewarn.pytest_plugin", "pytest_timeout")

# Python runs this file at the start of every process that a test starts.
SITE = f"""
import os
if {trace.TABLE!r} in os.environ:
    from tools.mutation import trace
    trace.start()
"""


def pytest_command(*arguments: str) -> list[str]:
    plugins = [f"-p{name}" for name in (*PLUGINS, "tools.mutation.plugin") if find_spec(name.partition(".")[0])]
    quiet = ("-q", "--tb=no", "--no-header", "-pno:cacheprovider", "--disable-plugin-autoload")
    return [sys.executable, "-m", "pytest", *quiet, *plugins, *arguments]


def environment(folder: Path, source: Path) -> dict[str, str]:
    """The variables for a run in this folder. Its processes import this copy of src, not the installed package."""
    (folder / "tmp").mkdir(exist_ok=True)
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("FOREWARN_", "PYTEST_"))},
        "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]),
        "MUTATION_RUN": str(folder),
        "TMPDIR": str(folder / "tmp"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        "TEST_PROFILE": "mutate",
    }


def end_processes(folder: Path) -> None:
    """Kill the processes that a run in this folder left. All of them have the folder in their environment."""
    mark = f"MUTATION_RUN={folder}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:  # it has ended, or belongs to another user
            continue


@dataclass(frozen=True)
class Test:
    name: str
    seconds: float
    ran: bytes
    """One byte for each line of the mutated files: 1 if the test runs it."""

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]

    @property
    def function(self) -> str:
        return self.name.partition("[")[0]


class Coverage:
    """Finds the tests that can kill a mutant."""

    def __init__(self, sources: dict[str, bytes], tests: list[Test]) -> None:
        self._begin = _places(sources)
        self._tests = tests
        self._functions = {path: set(_function_lines(source)) for path, source in sources.items()}
        self._lines = {path: source.decode().split("\n") for path, source in sources.items()}

    def tests_for(self, mutant: Mutant) -> list[Test]:
        """The tests that run its lines. For code that runs at import: a line that uses the name, else any function."""
        spans = range(mutant.line, mutant.last_line + 1)
        inside = self._functions[mutant.path]
        if inside.intersection(spans):
            return self._running((mutant.path, line) for line in spans)
        for name in mutant.names:
            word = re.compile(rf"\b{re.escape(name)}\b")
            using = (
                (path, line)
                for path, lines in self._functions.items()
                for line in lines
                if word.search(self._lines[path][line - 1])
            )
            if found := self._running(using):
                return found
        return self._running((mutant.path, line) for line in inside) or self._tests

    def _running(self, lines: Iterable[tuple[str, int]]) -> list[Test]:
        places = [self._begin[path] + line for path, line in lines]
        return [test for test in self._tests if any(test.ran[place] for place in places)]


def _places(sources: dict[str, bytes]) -> dict[str, int]:
    """The offset of each file in a table of all lines. The size of the table is at the key ''."""
    begin = 0
    places = {}
    for path, source in sources.items():
        places[path] = begin
        begin += source.count(b"\n") + 2
    return {**places, "": begin}


def _function_lines(source: bytes) -> Iterator[int]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            first = node.body if isinstance(node, ast.Lambda) else node.body[0]
            yield from range(first.lineno, (node.end_lineno or 0) + 1)


def coverage(sources: dict[str, bytes], jobs: int) -> Coverage:
    """Load the coverage of this source, or record it."""
    key = hashlib.sha256(json.dumps(_places(sources)).encode())
    for pattern in ("src/**/*", "tests/**/*", "tools/mutation/plugin.py", "tools/mutation/trace.py"):
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                key.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    key.update(repr((TESTS, NOT_RUN)).encode())
    kept = RESULTS / "coverage" / key.hexdigest()[:16]
    if not (kept / "done").exists():
        shutil.rmtree(kept.parent, ignore_errors=True)
        kept.mkdir(parents=True)
        _record(kept, sources, jobs)
    size = _places(sources)[""]
    tests = [test for file in sorted(kept.glob("ran-*")) for test in _read(file, size)]
    return Coverage(sources, sorted(tests, key=lambda test: (test.seconds, test.name)))


def _record(folder: Path, sources: dict[str, bytes], jobs: int) -> None:
    print("Recording which tests run which lines, once for this source ...", flush=True)
    copy = folder / "src"
    shutil.copytree(ROOT / "src", copy)
    index = {str(copy / "forewarn" / path): begin for path, begin in _places(sources).items() if path}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "size").write_text(str(_places(sources)[""]))
    (folder / "sitecustomize.py").write_text(SITE)
    variables = environment(folder, copy)
    variables["PYTHONPATH"] += os.pathsep + str(folder)
    variables.pop(trace.TABLE, None)
    command = pytest_command(
        "-pxdist",
        f"-n{jobs}",
        "--dist=loadfile",
        *(f"tests/{name}" for name in TESTS),
        *(f"--ignore=tests/{name}" for name in NOT_RUN),
    )
    with (folder / "output").open("w") as output:
        try:
            ended = subprocess.run(command, cwd=ROOT, env=variables, stdout=output, stderr=output, check=False)
        finally:
            end_processes(folder)
    if ended.returncode not in {0, 1}:
        sys.exit(f"mutate: pytest could not run the tests on the unchanged source. See {folder / 'output'}.")
    for name in ("src", "tmp", "hypothesis"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "done").touch()


def _read(file: Path, size: int) -> Iterator[Test]:
    for line in file.read_text().splitlines():
        name, passed, seconds, places = json.loads(line)
        if passed:
            ran = bytearray(size)
            for place in places:
                ran[place] = 1
            yield Test(name, seconds, bytes(ran))
