"""Other programs that some tests need. script/peers installs them."""

from __future__ import annotations

import os
import shutil

import pytest

# Daemons are not in everybody's PATH.
SEARCHED = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/lib/systemd", "/lib/systemd"])


def need(*programs: str) -> None:
    """Skip the test if a program is missing. In CI that is a failure."""
    missing = [program for program in programs if shutil.which(program, path=SEARCHED) is None]
    without(f"needs {', '.join(missing)}: see script/peers" if missing else "")


def need_root() -> None:
    """Skip the test if the user is not root."""
    without("" if os.geteuid() == 0 else "needs root, in namespaces of its own")


def without(reason: str) -> None:
    """Skip the test if there is a reason to."""
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
