"""What a test may choose, and what it gets if it does not."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forewarn.core.durations import format_duration
from forewarn.errors import UnknownSetting, UnreadableFile, nearest
from forewarn.files.fleet_file import parse_fleet
from forewarn.settings import MEMORY, SETTINGS, resolve

if TYPE_CHECKING:
    from forewarn.core.fleet import Fleet

DEFAULTS = {
    "data": MEMORY,
    "clock": "virtual",
    "metadata": "127.0.0.1:0",
    "control": "127.0.0.1:0",
    # A test polls as often as it likes; who wants to be refused says so.
    "rate_limit": "0",
    # Nobody falls silent because a test has moved the clock by a week; there is a fault for that.
    "silence": "3660d",
    "allow_faults": "true",
}


def read_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """What `forewarn up` would make of these as flags; nothing of this machine's configuration is read."""
    flags = {**DEFAULTS, **{name: _text(value) for name, value in settings.items()}}
    for name in flags:
        if name not in SETTINGS:
            raise UnknownSetting(name=name, origin="Service(...)", hint=nearest(name, SETTINGS))
    return {name: value.value for name, value in resolve(flags, {}, os.devnull).items()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return format_duration(value) if isinstance(value, timedelta) else str(value)


def read_fleet(fleet: str | Path) -> Fleet:
    """From a file, or from its text: no path has a line break."""
    if isinstance(fleet, str) and ("[[" in fleet or "\n" in fleet):
        return parse_fleet(fleet, "fleet")
    try:
        return parse_fleet(Path(fleet).read_text("utf-8-sig"), str(fleet))
    except (OSError, UnicodeError) as error:
        raise UnreadableFile(path=fleet, problem=getattr(error, "strerror", None) or "it is not UTF-8 text") from error
