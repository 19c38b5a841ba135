"""The machine of a run: hardware and versions, without the name of the machine."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
from pathlib import Path

from tools.bench.processes import find_program


def describe() -> dict[str, str]:
    """Return the processor, the kernel, and the versions of the programs."""
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "nginx": _version("nginx"),
        "wrk": _version("wrk"),
    }


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _version(program: str) -> str:
    path = find_program(program)
    if path is None:
        return "not installed"
    done = subprocess.run([path, "-v"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return found[0] if found else "unknown"
