"""Where the files of this user are, and the name of data that is in no folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

MEMORY = ":memory:"
"""Instead of a data folder: all data is in memory only."""


def user_data_folder() -> Path:
    """The default data folder. The command line looks there for a running service."""
    return _user_folder("XDG_DATA_HOME", "~/.local/share") / "forewarn"


def user_config_file() -> Path:
    return _user_folder("XDG_CONFIG_HOME", "~/.config") / "forewarn" / "forewarn.toml"


def _user_folder(variable: str, default: str) -> Path:
    if sys.platform == "darwin":
        default = "~/Library/Application Support"
    # Path.expanduser fails for a user without a home.
    return Path(os.environ.get(variable, "").strip() or os.path.expanduser(default))  # noqa: PTH111
