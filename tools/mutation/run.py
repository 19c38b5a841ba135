"""Makes small changes to the source, one at a time, and reports those that no test notices. Run it with script/mutate.

Each mutant is written to a copy of src. Only the tests that reach its lines run on that copy: one case of each
test function first, fast tests first. A mutant with many tests runs some of them, and the others after all mutants.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING

from tools.mutation.coverage import RESULTS, ROOT, Coverage, Test, coverage, end_processes, environment, pytest_command
from tools.mutation.mutants import Mutant, mutants_of

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGE = ROOT / "src" / "forewarn"
# The mutated files, relative to the package. A folder stands for all files in it.
MUTATED = ("core", "engine", "metadata")
SEED = 1
MUTANTS = 300
MINUTES = 55.0
"""Leaves time for the last mutants and the control run, so that all of it takes at most one hour."""
BUDGET_SECONDS = 80.0
"""A mutant that survives tests of this duration, by the coverage run, gets the next ones after all other mutants."""


@dataclass(frozen=True)
class Outcome:
    """The result of one mutant."""

    id: str
    path: str
    line: int
    operator: str
    result: str
    """`killed`, `survived`, or `not reached`: no test runs its lines, so it survives."""
    by: str
    """The test that failed, or another reason, such as a timeout."""
    tests_run: int
    tests_reaching: int
    seconds: float
    diff: str


def read_sources() -> dict[str, bytes]:
    files: list[Path] = []
    for name in MUTATED:
        place = PACKAGE / name
        if not place.exists():
            sys.exit(f"mutate: {place.relative_to(ROOT)} does not exist. Correct MUTATED in tools/mutation/run.py.")
        files += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return {str(file.relative_to(PACKAGE)): file.read_bytes() for file in files}


def sample(sources: dict[str, bytes], count: int, seed: int, only: str) -> list[Mutant]:
    """Choose mutants at random: the same ones for the same seed and source. Each line gets one before any gets two."""
    pool = [mutant for path, source in sources.items() if path.startswith(only) for mutant in mutants_of(path, source)]
    random.Random(seed).shuffle(pool)  # noqa: S311 - it must be repeatable, not secret
    turn: Counter[tuple[str, int]] = Counter()
    turns = {}
    for mutant in pool:
        turns[mutant] = turn[mutant.path, mutant.line]
        turn[mutant.path, mutant.line] += 1
    compiling = (mutant for mutant in sorted(pool, key=turns.__getitem__) if mutant.compiles(sources[mutant.path]))
    return list(islice(compiling, count))


def in_order(reaching: Sequence[Test]) -> list[Test]:
    """The tests in the order in which they run. `reaching` is sorted, the fastest first."""
    turn: Counter[str] = Counter()
    ranked: list[tuple[int, int, str, float, Test]] = []
    for test in reaching:
        # Cases of one test function are alike, so one of each function comes first. Tests of similar duration stay
        # together by file, because they may share a fixture.
        duration = int(test.seconds * 10).bit_length()
        ranked.append((turn[test.function].bit_length(), duration, test.file, test.seconds, test))
        turn[test.function] += 1
    return [test for *_, test in sorted(ranked, key=lambda entry: entry[:4])]


def within_budget(tests: Sequence[Test]) -> list[Test]:
    """The first tests, and at least one."""
    ends = accumulate(test.seconds for test in tests)
    return [test for test, end in zip(tests, ends, strict=True) if end <= BUDGET_SECONDS] or list(tests[:1])


class Copy:
    """One worker's copy of src, and the folder that its tests write to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._source = folder / "src"
        shutil.copytree(ROOT / "src", self._source)
        # Python must not cache the bytecode of a mutant: a stale cache would hide the next one.
        self._environment = {**environment(folder, self._source), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(
        self, tests: Sequence[Test], path: str = "", source: bytes = b"", *, stop: bool = True
    ) -> tuple[str, list[str]]:
        """Run tests with this file replaced. Returns why the mutant is dead, or '', and the tests that failed."""
        (self._folder / "tests.json").write_text(json.dumps({test.name: test.seconds for test in tests}))
        if path:
            (self._source / "forewarn" / path).write_bytes(source)
        try:
            return self._pytest(tests, "-x" if stop else "--maxfail=0")
        finally:
            end_processes(self._folder)
            if path:
                shutil.copy2(PACKAGE / path, self._source / "forewarn" / path)
            shutil.rmtree(self._folder / "tmp")
            (self._folder / "tmp").mkdir()

    def _pytest(self, tests: Sequence[Test], stop: str) -> tuple[str, list[str]]:
        files = dict.fromkeys(test.file for test in tests)
        timeout_seconds = 60 + 3 * sum(test.seconds for test in tests)
        output = self._folder / "output"
        with output.open("wb") as written:
            process = subprocess.Popen(
                pytest_command(stop, *files),
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                return f"timeout after {timeout_seconds:.0f} s", []
            finally:
                process.kill()
                process.wait()
        text = output.read_text(errors="replace")
        failed = re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", text, re.MULTILINE)
        if code in {0, 5}:  # 5: no test was collected, so none noticed the mutant
            return "", []
        if code == 70:
            sys.exit(f"mutate: {text}")
        if "Timeout (" in text and not failed:
            return f"timeout in {(self._folder / 'current').read_text()}", []
        return failed[0] if failed else f"pytest ended with {code}", failed


class Run:
    """Hands out mutants to the workers until none is left or time is up."""

    def __init__(self, mutants: list[Mutant], sources: dict[str, bytes], covered: Coverage, folder: Path) -> None:
        # Each mutant with the number of tests that it has survived.
        self._queue = deque((mutant, 0) for mutant in mutants)
        self._total = len(mutants)
        self._sources = sources
        self._covered = covered
        self._folder = folder
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.outcomes: dict[str, Outcome] = {}
        self.killers: dict[str, Test] = {}

    def stop(self) -> None:
        """Kill the test runs in progress and drop their results."""
        self._stopped.set()
        for folder in self._folder.iterdir():
            end_processes(folder)

    def work(self, name: str, until: float) -> None:
        copy = Copy(self._folder / name)
        while True:
            with self._lock:
                if self._stopped.is_set() or not self._queue or time.monotonic() > until:
                    return
                mutant, survived = self._queue.popleft()
            outcome = self._try(copy, mutant, survived)
            with self._lock:
                if self._stopped.is_set():
                    return
                self.outcomes[mutant.id] = outcome
                if outcome.result == "survived" and outcome.tests_run < outcome.tests_reaching:
                    self._queue.append((mutant, outcome.tests_run))
                where = f"{outcome.path}:{outcome.line}"
                text = f"{outcome.result:11} {outcome.id} {where:32} {outcome.operator:12} {outcome.seconds:5.1f} s"
                print(f"[{len(self.outcomes):3}/{self._total}] {text}  {outcome.by}", flush=True)

    def _try(self, copy: Copy, mutant: Mutant, survived: int) -> Outcome:
        begin = time.monotonic()
        source = self._sources[mutant.path]
        reaching = in_order(self._covered.tests_for(mutant))
        tests = within_budget(reaching[survived:])
        by = self._killer(copy, mutant, tests)
        return Outcome(
            mutant.id,
            mutant.path,
            mutant.line,
            mutant.operator,
            "killed" if by else "survived" if tests else "not reached",
            by,
            survived + len(tests),
            len(reaching),
            time.monotonic() - begin,
            mutant.diff(source),
        )

    def _killer(self, copy: Copy, mutant: Mutant, tests: list[Test]) -> str:
        """Why the mutant is dead, or ''. A test kills it only if it fails twice: it may depend on timing."""
        changed = mutant.apply(self._sources[mutant.path])
        while tests:
            by, failed = copy.run(tests, mutant.path, changed)
            killer = next((test for test in tests if test.name in failed), None)
            if killer is None:
                return by
            if copy.run([killer], mutant.path, changed)[0]:
                self.killers[killer.name] = killer
                return by
            tests = tests[tests.index(killer) + 1 :]
        return ""


def run(mutants: list[Mutant], sources: dict[str, bytes], jobs: int, until: float) -> tuple[list[Outcome], list[str]]:
    """Returns the outcomes, and the tests that killed a mutant but also fail on the unchanged source."""
    covered = coverage(sources, jobs)
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        run = Run(mutants, sources, covered, Path(folder))
        with ThreadPoolExecutor(jobs) as workers:
            ended = [workers.submit(run.work, str(number), until) for number in range(jobs)]
            try:
                for worker in ended:
                    worker.result()
            except KeyboardInterrupt:
                print("Stopped.", flush=True)
            finally:
                run.stop()
        _, unsound = (
            Copy(Path(folder) / "control").run(list(run.killers.values()), stop=False) if run.killers else ("", [])
        )
        return list(run.outcomes.values()), unsound


def report(outcomes: list[Outcome], unsound: list[str], seed: int) -> str:
    order = sorted(outcomes, key=lambda outcome: (outcome.path, outcome.line))
    alive = [outcome for outcome in order if outcome.result != "killed"]
    killed = len(order) - len(alive)
    lines = [f"{killed} of {len(order)} mutants killed ({100 * killed / max(len(order), 1):.0f} %), seed {seed}.", ""]
    if unsound:
        lines += ["The tests that killed these mutants also fail on the unchanged source, so the kills prove nothing:"]
        lines += [f"  {o.id} {o.path}:{o.line} by {o.by}" for o in order if o.by in unsound]
        lines += [""]
    for outcome in alive:
        ran = f"{outcome.tests_run} of the {outcome.tests_reaching} tests that reach it ran"
        why = "no test reaches it" if outcome.result == "not reached" else ran
        lines += [f"{outcome.id} {outcome.path}:{outcome.line} {outcome.operator}: {why}", outcome.diff, ""]
    kept = {
        "seed": seed,
        "killed": killed,
        "total": len(order),
        "unsound": unsound,
        "mutants": [asdict(o) for o in order],
    }
    (RESULTS / "report.json").write_text(json.dumps(kept, indent=1) + "\n")
    (RESULTS / "report.txt").write_text("\n".join(lines) + "\n")
    return "\n".join(lines)


def show(sources: dict[str, bytes], wanted: str) -> None:
    for path, source in sources.items():
        for mutant in mutants_of(path, source):
            if mutant.id == wanted:
                print(mutant.diff(source))
                return
    sys.exit(f"mutate: no mutant of this source has the id {wanted!r}. --list prints ids.")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("script/mutate", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=MUTANTS, metavar="N", help="number of mutants (default: 300)")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help="seed of the random choice (default: 1)")
    parser.add_argument(
        "--only",
        default="",
        metavar="PREFIX",
        help="mutate only files with this path prefix, like core/rollout",
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, metavar="N", help="start no mutant after N minutes (default: 55)"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="run N mutants at a time (default: 2)")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    parser.add_argument("--show", metavar="ID", help="print a mutant as a diff, and run nothing")
    given = parser.parse_args()
    if not (given.mutants > 0 and given.jobs > 0 and given.minutes > 0):
        parser.error("--mutants, --jobs and --minutes must be above 0")
    return given


def main() -> None:
    begin = time.monotonic()
    given = options()
    sources = read_sources()
    if given.show:
        show(sources, given.show)
        return
    only = given.only.removeprefix("./").removeprefix("src/forewarn/")
    mutants = sample(sources, given.mutants, given.seed, only)
    if not mutants:
        sys.exit(
            f"mutate: no mutated file starts with {given.only!r}. MUTATED in tools/mutation/run.py lists the files."
        )
    if given.list:
        for mutant in mutants:
            print(f"{mutant.id} {mutant.path}:{mutant.line} {mutant.operator}")
        return
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("mutate: script/mutate is already running in this folder. Wait until it ends.")
        outcomes, unsound = run(mutants, sources, given.jobs, begin + 60 * given.minutes)
    print("", report(outcomes, unsound, given.seed), sep="\n")
    took = (time.monotonic() - begin) / 60
    print(f"{took:.0f} minutes. The report is in {RESULTS.relative_to(ROOT)}/report.txt and report.json.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Stopped.")
