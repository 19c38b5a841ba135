"""script/bench: runs the benchmarks in turn, and prints the results for docs/explanation/performance.md."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tools.bench import (
    agent,
    approvals,
    commands,
    feed,
    fleet_apply,
    kit,
    long_poll,
    machine,
    nodes,
    poll,
    portal,
    rollout_plan,
    routes,
    startup,
    virtual_time,
)
from tools.bench.context import Context
from tools.bench.processes import LOAD_CORE, ROOT, Processes, find_program
from tools.bench.report import Row, section

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tools.bench.report import Outcome


class Benchmark(NamedTuple):
    measure: Callable[[Context], Outcome]
    programs: tuple[str, ...] = ()
    """Programs that it needs, apart from taskset."""


BENCHMARKS = {
    "poll": Benchmark(poll.measure_document, ("wrk", "nginx")),
    "poll-unchanged": Benchmark(poll.measure_unchanged, ("wrk", "nginx")),
    "approvals": Benchmark(approvals.measure),
    "feed": Benchmark(feed.measure),
    "startup": Benchmark(startup.measure),
    "virtual-time": Benchmark(virtual_time.measure),
    "fleet-apply": Benchmark(fleet_apply.measure),
    "rollout-plan": Benchmark(rollout_plan.measure),
    "long-poll": Benchmark(long_poll.measure, ("wrk",)),
    "test-kit": Benchmark(kit.measure),
    "agent": Benchmark(agent.measure, ("curl",)),
    "commands": Benchmark(commands.measure),
    "nodes": Benchmark(nodes.measure, ("wrk",)),
    "portal": Benchmark(portal.measure, ("chromium", "wrk")),
    "routes": Benchmark(routes.measure),
}
PACKAGES = {"wrk": "wrk", "nginx": "nginx-light", "curl": "curl", "taskset": "util-linux", "chromium": "chromium"}
RESULTS = ROOT / "tools" / "bench" / "results" / "latest.json"
# Not /tmp, which may be in memory, where a commit costs nothing.
DISK_FOLDER = "/var/tmp"  # noqa: S108 - tempfile creates a private folder in it


def main() -> None:
    options = _read_options()
    _check_programs(options.only)
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("The benchmark needs two cores: one for the servers, one for the load.")
    os.sched_setaffinity(0, {LOAD_CORE})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.perf_counter()
    processes = Processes()
    rows: list[Row] = []
    raw: dict[str, object] = {"machine": machine.describe(), "rounds": options.rounds}
    with tempfile.TemporaryDirectory(dir=DISK_FOLDER, prefix="forewarn-bench-") as folder:
        Path(folder).chmod(0o755)  # the worker of nginx runs as another user
        context = Context(processes, Path(folder), options.rounds)
        try:
            for name in options.only:
                outcome = BENCHMARKS[name].measure(context)
                rows += outcome.rows
                raw[name] = outcome.raw
        except KeyboardInterrupt:
            raise SystemExit("Stopped.") from None
        finally:
            processes.end_all()
    raw["table"] = [row._asdict() for row in rows]
    raw["seconds"] = time.perf_counter() - started
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(raw, indent=2) + "\n")
    today = datetime.now(UTC).date()
    print(section(rows, machine.describe(), options.rounds, today))
    print(f"\nDuration: {raw['seconds']:.0f} s. Raw figures: {RESULTS.relative_to(ROOT)}")


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/bench",
        description="Measure Forewarn, and compare it with nginx and plain SQLite. Prints a Markdown table for "
        "docs/explanation/performance.md, and writes the raw figures to tools/bench/results/latest.json.",
        epilog=f"Benchmarks: {', '.join(BENCHMARKS)}.",
    )
    parser.add_argument(
        "--only",
        type=_names,
        default=list(BENCHMARKS),
        metavar="NAMES",
        help="run only these benchmarks, separated by commas (default: all)",
    )
    parser.add_argument(
        "--rounds", type=_rounds, default=9, metavar="N", help="rounds of each comparison, 1 to 50 (default: 9)"
    )
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in BENCHMARKS:
            raise argparse.ArgumentTypeError(f"{name!r} is not a benchmark. Choose from {', '.join(BENCHMARKS)}.")
    return names


def _rounds(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 50:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 50.")
    return int(text)


def _check_programs(names: Sequence[str]) -> None:
    """Exit if a program is not installed that one of these benchmarks needs."""
    wanted = dict.fromkeys(["taskset", *(program for name in names for program in BENCHMARKS[name].programs)])
    missing = [program for program in wanted if find_program(program) is None]
    if missing:
        possible = [name for name, each in BENCHMARKS.items() if not set(each.programs).intersection(missing)]
        others = f" Or run only others: --only {','.join(possible)}" if "taskset" not in missing else ""
        packages = " ".join(PACKAGES[program] for program in missing)
        raise SystemExit(
            f"These benchmarks need programs that are not installed: {', '.join(missing)}. "
            f"On Debian and Ubuntu: sudo apt-get install {packages}.{others}"
        )


if __name__ == "__main__":
    main()
