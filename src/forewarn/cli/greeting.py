"""What `forewarn up` says first: what is running, and what to try next."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forewarn import __version__
from forewarn.cli.settings import resolve_settings
from forewarn.settings import MEMORY

if TYPE_CHECKING:
    from forewarn.core.fleet import Fleet


def greeting(values: dict[str, Any], fleet: Fleet, metadata: str, control: str) -> str:
    """For a service with these settings, at these addresses."""
    name = _example_vm(fleet)
    cli = _command_line(values["data"])
    lines = [
        f"Forewarn {__version__} is up with {len(fleet.vms)} VM{'s' if len(fleet.vms) != 1 else ''}.",
        f"  metadata  {metadata}",
        f"  control   {control}",
        f"  data      {values['data']}",
        *([f"  fabric    {values['fabric']}"] if values["fabric"] != "simulated" else []),
        "",
        "Try in another terminal:",
        f"  curl -H Metadata:true '{metadata}?api-version=2020-07-01'",
        f"  {cli} vm restart {name}",
        f"  {cli} event list",
    ]
    if values["clock"] == "virtual":
        lines.append(f"  {cli} clock advance 15m")
    return "\n".join(lines)


def _example_vm(fleet: Fleet) -> str:
    local = fleet.at_address("127.0.0.1")
    return local.name if local is not None else next(iter(fleet.vms), "NAME")


def _command_line(data: str) -> str:
    """How this program is called from a shell here."""
    program = "forewarn" if shutil.which("forewarn") else _short(Path(sys.argv[0]))
    if program.endswith("__main__.py"):
        program = f"{Path(sys.executable).name} -m forewarn"
    default = resolve_settings(None, {})["data"].value
    return program if data in (MEMORY, default) else f"FOREWARN_DATA={data} {program}"


def _short(path: Path) -> str:
    """As one would type it from here."""
    with suppress(FileNotFoundError):  # the folder that this was started in may be gone
        if path.is_relative_to(Path.cwd()):
            return str(path.relative_to(Path.cwd()))
    return str(path)
