"""script/bench: runs the measurements in turn, and prints the results for docs/explanation/performance.md."""

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
from typing import TYPE_CHECKING

from bench import agent, approvals, feed, fleet_apply, held, kit, machine, poll, rollout_plan, start, virtual_time
from bench.processes import LOAD_CORE, ROOT, Processes
from bench.report import Row, section
from bench.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.report import Outcome

MEASUREMENTS: dict[str, Callable[[Stage], Outcome]] = {
    "poll": poll.measure_found,
    "unchanged": poll.measure_unchanged,
    "approvals": approvals.measure,
    "feed": feed.measure,
    "start": start.measure,
    "virtual": virtual_time.measure,
    "apply": fleet_apply.measure,
    "plan": rollout_plan.measure,
    "held": held.measure,
    "kit": kit.measure,
    "agent": agent.measure,
}
RESULTS = ROOT / "bench" / "results" / "latest.json"
ON_DISK = "/var/tmp"  # noqa: S108 - a private folder is made below it; /tmp may be memory, where commits cost nothing


def main() -> None:
    options = _read_options()
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("The benchmark needs two cores: one for the servers, one for the load.")
    os.sched_setaffinity(0, {LOAD_CORE})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begun = time.perf_counter()
    processes = Processes()
    rows: list[Row] = []
    raw: dict[str, object] = {"machine": machine.describe(), "rounds": options.rounds}
    with tempfile.TemporaryDirectory(dir=ON_DISK, prefix="forewarn-bench-") as folder:
        Path(folder).chmod(0o755)  # nginx's worker is another user
        stage = Stage(processes, Path(folder), options.rounds)
        try:
            for name in options.only:
                outcome = MEASUREMENTS[name](stage)
                rows += outcome.rows
                raw[name] = outcome.raw
        except KeyboardInterrupt:
            raise SystemExit("Stopped.") from None
        finally:
            processes.end_all()
    raw["table"] = [row._asdict() for row in rows]
    raw["seconds"] = time.perf_counter() - begun
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(raw, indent=2) + "\n")
    today = datetime.now(UTC).date()
    print(section(rows, machine.describe(), options.rounds, today))
    print(f"\nTook {raw['seconds']:.0f} s. Raw figures: {RESULTS.relative_to(ROOT)}")


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/bench", description="Measures Forewarn against nginx and SQLite.")
    parser.add_argument("--only", type=_names, default=list(MEASUREMENTS), help=f"some of {','.join(MEASUREMENTS)}")
    parser.add_argument("--rounds", type=_rounds, default=9, help="rounds of each comparison (default 9)")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in MEASUREMENTS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(MEASUREMENTS)}")
    return names


def _rounds(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 50:
        raise argparse.ArgumentTypeError("write a number from 1 to 50")
    return int(text)


if __name__ == "__main__":
    main()
