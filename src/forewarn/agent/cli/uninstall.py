"""forewarn agent uninstall: remove the systemd unit that runs the agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.agent.cli.install import UNIT_NAME
from forewarn.agent.cli.options import AgentParser
from forewarn.system.systemd_unit import UNIT_FOLDER, remove_unit

if TYPE_CHECKING:
    from argparse import Namespace


def parser() -> AgentParser:
    parser = AgentParser(
        "uninstall",
        "Remove the systemd unit that runs the agent.\n\n"
        "The policy file and the state folder stay. The command does not stop the agent.",
        "forewarn agent uninstall",
    )
    parser.add_argument(
        "--unit-dir", metavar="DIR", default=UNIT_FOLDER, help=f"folder of the unit file (default: {UNIT_FOLDER})"
    )
    return parser


def run(options: Namespace) -> int:
    sys.stdout.write(remove_unit(Path(options.unit_dir) / UNIT_NAME))
    return 0
