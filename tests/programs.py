"""Other programs that some tests need. script/peers installs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Daemons are not in everybody's PATH.
SEARCHED = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/lib/systemd", "/lib/systemd"])


def need(*programs: str) -> None:
    """Skip the test if a program is missing. In CI that is a failure."""
    missing = [program for program in programs if shutil.which(program, path=SEARCHED) is None]
    without(f"needs {', '.join(missing)}: see script/peers" if missing else "")


def installed_pythons() -> dict[str, str]:
    """Return every Python that is installed, by its version: those on the path, and those of pyenv."""
    found = {"{}.{}".format(*sys.version_info): sys.executable}
    for minor in (10, 12, 13, 14):
        places = sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python3"))
        program = str(places[-1]) if places else shutil.which(f"python3.{minor}")
        # What pyenv puts on the path may stand for a version that it does not have.
        if program and subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0:
            found[f"3.{minor}"] = program
    return found


def need_root() -> None:
    """Skip the test if the user is not root."""
    without("" if os.geteuid() == 0 else "needs root, in namespaces of its own")


def without(reason: str) -> None:
    """Skip the test if there is a reason to."""
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
