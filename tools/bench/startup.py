"""Startup with 100,000 standsingle VMs: the time until the response to the first poll, and the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.bench.report import Outcome, Row, below
from tools.bench.service import Service, fleet_text

if TYPE_CHECKING:
    from tools.bench.context import Context

VMS = 100_000
MEGABYTE = 1_000_000


def measure(context: Context) -> Outcome:
    """Measure the first start, which reads the fleet file, and the second, which reads the database."""
    single = Service(context.processes, context.folder("startup-1"), fleet_text(1))
    single.start()
    single.stop()
    single.start()
    single_memory = single.resident_bytes()
    single.stop()
    service = Service(context.processes, context.folder("startup"), fleet_text(VMS))
    first_seconds = service.start()
    first_memory = service.resident_bytes()
    context.log(f"startup: {first_seconds:.2f} s, {first_memory / MEGABYTE:.0f} MB from the file")
    service.stop()
    seconds = service.start()
    memory = service.resident_bytes()
    context.log(f"startup: {seconds:.2f} s, {memory / MEGABYTE:.0f} MB from the database")
    service.stop()
    per_thousand = (memory - single_memory) / (VMS / 1000)
    rows = [
        below("start, 100,000 VMs in the database", seconds, "s", 5),
        below("memory after that start", memory / MEGABYTE, "MB", 200),
        below("start, 100,000 VMs from the file", first_seconds, "s", 5),
        below("memory after that start", first_memory / MEGABYTE, "MB", 200),
        Row("memory per 1,000 VMs", f"{per_thousand / MEGABYTE:.2f} MB", f"one VM {single_memory / MEGABYTE:.0f} MB"),
    ]
    raw = {
        "seconds": seconds,
        "resident_bytes": memory,
        "first_seconds": first_seconds,
        "first_resident_bytes": first_memory,
        "resident_bytes_of_one_vm": single_memory,
        "resident_bytes_per_thousand": per_thousand,
    }
    return Outcome(rows, raw)
