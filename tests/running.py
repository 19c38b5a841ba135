"""A real service in a process of its own, as a user starts it."""

from __future__ import annotations

import sys
from pathlib import Path

from forewarn.testing import Answer
from forewarn.testing import ServiceProcess as Service
from forewarn.testing.reach import DOCUMENT

__all__ = ["DOCUMENT", "FOREWARN", "Answer", "Service"]

FOREWARN = str(Path(sys.executable).with_name("forewarn"))
