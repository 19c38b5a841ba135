"""The start with 100,000 VMs, each a scope of its own: time to the first answered poll, and resident memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.report import Outcome, Row, below
from bench.service import Service, fleet_text

if TYPE_CHECKING:
    from bench.stage import Stage

VMS = 100_000
MEGABYTE = 1_000_000


def measure(stage: Stage) -> Outcome:
    """The first start reads the file; every later one finds the fleet in the database."""
    alone = Service(stage.processes, stage.folder("start-1"), fleet_text(1))
    alone.start()
    alone.stop()
    alone.start()
    memory_of_one = alone.resident_bytes()
    alone.stop()
    service = Service(stage.processes, stage.folder("start"), fleet_text(VMS))
    first_seconds = service.start()
    first_memory = service.resident_bytes()
    stage.say(f"start: {first_seconds:.2f} s, {first_memory / MEGABYTE:.0f} MB with the file")
    service.stop()
    seconds = service.start()
    memory = service.resident_bytes()
    stage.say(f"start: {seconds:.2f} s, {memory / MEGABYTE:.0f} MB from the database")
    service.stop()
    per_thousand = (memory - memory_of_one) / (VMS / 1000)
    rows = [
        below("start, 100,000 VMs in the database", seconds, "s", 5),
        below("memory after that start", memory / MEGABYTE, "MB", 200),
        below("start, 100,000 VMs from the file", first_seconds, "s", 5),
        below("memory after that start", first_memory / MEGABYTE, "MB", 200),
        Row("memory per 1,000 VMs", f"{per_thousand / MEGABYTE:.2f} MB", f"one VM {memory_of_one / MEGABYTE:.0f} MB"),
    ]
    raw = {
        "seconds": seconds,
        "resident_bytes": memory,
        "first_seconds": first_seconds,
        "first_resident_bytes": first_memory,
        "resident_bytes_of_one": memory_of_one,
        "resident_bytes_per_thousand": per_thousand,
    }
    return Outcome(rows, raw)
