"""Command line options: a parser with one-line errors, and the options that most commands share."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from forewarn.errors import BadCommandLine, BadOption, NoStateFolder, nearest

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn

    from forewarn.agent.policy import Config


CONFIG_VARIABLE = "FOREWARN_AGENT_CONFIG"
ENDPOINT_VARIABLE = "FOREWARN_ENDPOINT"
VM_NAME_VARIABLE = "FOREWARN_VM_NAME"
STATE_VARIABLE = "FOREWARN_AGENT_STATE"
SYSTEMD_STATE_VARIABLE = "STATE_DIRECTORY"
FOLDER_NAME = "forewarn-agent"
_PREFIX = "FOREWARN_"
_OWN_PREFIX = "AGENT_"
_VARIABLES = tuple(
    name.removeprefix(_PREFIX) for name in (CONFIG_VARIABLE, ENDPOINT_VARIABLE, VM_NAME_VARIABLE, STATE_VARIABLE)
)


class _HelpFormatter(RawDescriptionHelpFormatter):
    """Reads the width of the terminal itself: argparse would import shutil for it, even if it shows no help."""

    def __init__(self, prog: str) -> None:
        try:
            columns = os.get_terminal_size().columns
        except OSError:
            columns = 80
        super().__init__(prog, width=max(columns - 2, 40))


class AgentParser(ArgumentParser):
    """The options of one command."""

    def __init__(self, command: str, description: str, *examples: str) -> None:
        super().__init__(
            prog=f"forewarn agent {command}".rstrip(),
            description=description,
            epilog="\n  ".join(["Example:", *examples]),
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.add_argument("-h", "--help", action="help", help="show this help and exit")

    def read(self, arguments: Sequence[str]) -> Namespace:
        """Parse the arguments. The error for an unknown option suggests the nearest known one."""
        found, unknown = self.parse_known_args(arguments)
        if unknown:
            option = unknown[0].partition("=")[0]
            known = [name for action in self._actions for name in action.option_strings]
            kind = "There is no option" if option.startswith("-") else "Unexpected argument"
            raise BadCommandLine(problem=f"{kind} {option!r}.{nearest(option, known)}", program=self.prog)
        return found

    def print_help(self, file: object = None) -> None:
        """Print to standard output. argparse would hide a write error."""
        sys.stdout.write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Raise an error of argparse as a BadCommandLine."""
        raise BadCommandLine(problem=f"{message[:1].upper()}{message[1:]}.", program=self.prog)


def add_common_options(parser: AgentParser) -> None:
    """Add the options that all commands except `bundle` share."""
    parser.add_argument("--config", metavar="FILE", help=f"policy file with rules and handlers (or {CONFIG_VARIABLE})")
    parser.add_argument(
        "--endpoint", metavar="URL", help=f"endpoint to poll (or {ENDPOINT_VARIABLE}; default: discovered)"
    )
    parser.add_argument(
        "--vm-name", metavar="NAME", help=f"name of this VM in events (or {VM_NAME_VARIABLE}; default: discovered)"
    )
    parser.add_argument("--state", metavar="DIR", help=f"folder where the agent records its work (or {STATE_VARIABLE})")


def add_run_options(parser: AgentParser) -> None:
    """Add the options of a running agent, which `install` writes into the unit, too."""
    parser.add_argument("--listen", metavar="HOST:PORT", help="address for metrics and health")
    parser.add_argument(
        "--preview-versions",
        choices=("true", "false"),
        help="also request an api-version that is a preview, if the endpoint has it (default: true)",
    )


def mistyped_variables(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield a warning for each unknown variable that seems to be for the agent: the agent ignores it.

    The service has many other variables, and the agent does not know them.
    """
    for name in sorted(name.removeprefix(_PREFIX) for name in environment if name.startswith(_PREFIX)):
        if name in _VARIABLES:
            continue
        hint = nearest(name, _VARIABLES, _PREFIX)
        if name.startswith(_OWN_PREFIX):
            hint = hint or nearest(name.removeprefix(_OWN_PREFIX), _VARIABLES, _PREFIX)
        if hint or name.startswith(_OWN_PREFIX):
            yield f"the variable {_PREFIX}{name} has no effect.{hint}"


class ResolvedValue(NamedTuple):
    """A value and its origin, for example an option or a variable. Both are empty if nothing was given."""

    value: str
    origin: str


class ResolvedOptions(NamedTuple):
    """The effective values: option before variable, variable before policy file, policy file before default."""

    endpoint: ResolvedValue
    vm_name: ResolvedValue
    state: ResolvedValue

    @property
    def folder(self) -> Path:
        """Return the state folder or raise NoStateFolder. Only some commands need it."""
        if not self.state.value:
            raise NoStateFolder
        return Path(self.state.value)


def config_path(options: Namespace, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the policy file; None if none was given."""
    named = options.config if options.config is not None else environment.get(CONFIG_VARIABLE, "")
    if options.config == "":
        raise BadOption(name="--config", value="", problem="it is empty. Name a file, or omit the option.")
    return Path(named) if named else None


def load_config(path: Path | None) -> Config:
    """Read the policy file; without one, return a policy without rules."""
    from forewarn.agent.policy import Config

    if path is None:
        return Config()
    from forewarn.agent.config_file import read_config

    return read_config(path)


def resolve_options(options: Namespace, config: Config, environment: Mapping[str, str] = os.environ) -> ResolvedOptions:
    """Combine options, variables, policy file and defaults."""
    state = _resolve("--state", options.state, STATE_VARIABLE, environment, config.state, config.source)
    return ResolvedOptions(
        _resolve("--endpoint", options.endpoint, ENDPOINT_VARIABLE, environment, config.endpoint, config.source),
        _resolve("--vm-name", options.vm_name, VM_NAME_VARIABLE, environment, config.vm_name, config.source),
        state if state.value else _default_state(environment),
    )


def _resolve(
    flag: str, typed: str | None, variable: str, environment: Mapping[str, str], configured: str, source: str
) -> ResolvedValue:
    if typed is not None:
        if not typed.strip():
            raise BadOption(name=flag, value=typed, problem="it is empty. Give a value, or omit the option.")
        return ResolvedValue(typed, flag)
    if environment.get(variable, "").strip():
        return ResolvedValue(environment[variable], variable)
    return ResolvedValue(configured, source) if configured else ResolvedValue("", "")


def _default_state(environment: Mapping[str, str]) -> ResolvedValue:
    if folders := environment.get(SYSTEMD_STATE_VARIABLE):
        return ResolvedValue(folders.partition(":")[0], SYSTEMD_STATE_VARIABLE)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return ResolvedValue(f"/var/lib/{FOLDER_NAME}", "default")
    parent = environment.get("XDG_STATE_HOME", "")
    if not parent.startswith("/"):  # the XDG specification says to ignore relative paths
        try:
            parent = str(Path.home() / ".local" / "state")
        except RuntimeError:
            return ResolvedValue("", "")  # the user has no home directory, for example in a container
    return ResolvedValue(str(Path(parent) / FOLDER_NAME), "default")


def read_address(text: str, name: str) -> tuple[str, int]:
    """Parse `127.0.0.1:9169` or `[::1]:9169`; `name` is the option for the error."""
    from forewarn.system.addresses import read_host_port

    try:
        return read_host_port(text)
    except ValueError as error:
        raise BadOption(name=name, value=text, problem=error) from None
