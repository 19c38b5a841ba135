"""What the figures were measured on, without a word that names the machine."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
from pathlib import Path

from bench.processes import program


def describe() -> dict[str, str]:
    """Processor, kernel and the versions of everything that takes part."""
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "nginx": _version([program("nginx"), "-v"]),
        "wrk": _version([program("wrk"), "-v"]),
    }


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _version(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return found[0] if found else "unknown"
