"""Options as they are typed: an argparse whose mistakes are one line, and the options that every verb has."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from forewarn.errors import BadCommandLine, BadOption, NoStateFolder, nearest

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from forewarn.agent.policy import Config


CONFIG_VARIABLE = "FOREWARN_AGENT_CONFIG"
ENDPOINT_VARIABLE = "FOREWARN_ENDPOINT"
VM_NAME_VARIABLE = "FOREWARN_VM_NAME"
STATE_VARIABLE = "FOREWARN_AGENT_STATE"
SYSTEMD_STATE_VARIABLE = "STATE_DIRECTORY"
FOLDER_NAME = "forewarn-agent"


class _Help(RawDescriptionHelpFormatter):
    """Looks how wide the terminal is: argparse would load all of shutil for that, also where no help is shown."""

    def __init__(self, prog: str) -> None:
        try:
            columns = os.get_terminal_size().columns
        except OSError:
            columns = 80
        super().__init__(prog, width=max(columns - 2, 40))


class Parser(ArgumentParser):
    """One verb's options."""

    def __init__(self, verb: str, description: str, *examples: str) -> None:
        super().__init__(
            prog=f"forewarn agent {verb}".rstrip(),
            description=description,
            epilog="\n  ".join(["Example:", *examples]),
            formatter_class=_Help,
            allow_abbrev=False,
            add_help=False,
        )
        self.add_argument("-h", "--help", action="help", help="show this and end")

    def read(self, arguments: Sequence[str]) -> Namespace:
        """What was typed; an option that is not known gets the nearest that is."""
        found, unknown = self.parse_known_args(arguments)
        if unknown:
            option = unknown[0].partition("=")[0]
            known = [name for action in self._actions for name in action.option_strings]
            what = "There is no option" if option.startswith("-") else "Nobody expects"
            raise BadCommandLine(problem=f"{what} {option!r} here.{nearest(option, known)}", program=self.prog)
        return found

    def print_help(self, file: object = None) -> None:
        """To the standard output; argparse would keep it to itself that nothing can be written there."""
        sys.stdout.write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """What argparse has to say, as an error like any other."""
        raise BadCommandLine(problem=f"{message[:1].upper()}{message[1:]}.", program=self.prog)


def add_places(parser: Parser) -> None:
    """The options by which an agent is told who and where it is; every verb takes the same."""
    parser.add_argument("--config", metavar="FILE", help=f"rules and handlers (or {CONFIG_VARIABLE})")
    parser.add_argument("--endpoint", metavar="URL", help=f"where to ask (or {ENDPOINT_VARIABLE}; else it is found)")
    parser.add_argument("--vm-name", metavar="NAME", help=f"this machine's name (or {VM_NAME_VARIABLE}; else found)")
    parser.add_argument("--state", metavar="DIR", help=f"where it keeps what it has done (or {STATE_VARIABLE})")


class Given(NamedTuple):
    """A value, and in words where it came from. Both empty: nobody has said it."""

    value: str
    origin: str


class Places(NamedTuple):
    """What holds: a flag beats a variable, a variable the config, the config the default."""

    endpoint: Given
    vm_name: Given
    state: Given

    @property
    def folder(self) -> Path:
        """Where the state is kept: asked for only by who keeps one or looks at it."""
        if not self.state.value:
            raise NoStateFolder
        return Path(self.state.value)


def config_path(options: Namespace, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The config that was named; None: the agent only logs."""
    named = options.config if options.config is not None else environment.get(CONFIG_VARIABLE, "")
    if options.config == "":
        raise BadOption(name="--config", value="", problem="name a file, or leave the option out.")
    return Path(named) if named else None


def load_config(path: Path | None) -> Config:
    """What the file says; without one there are no rules."""
    from forewarn.agent.policy import Config

    if path is None:
        return Config()
    from forewarn.agent.config_file import read_config

    return read_config(path)


def choose_places(options: Namespace, config: Config, environment: Mapping[str, str] = os.environ) -> Places:
    """What holds of flags, variables, config and defaults."""
    state = _chosen("--state", options.state, STATE_VARIABLE, environment, config.state, config.source)
    return Places(
        _chosen("--endpoint", options.endpoint, ENDPOINT_VARIABLE, environment, config.endpoint, config.source),
        _chosen("--vm-name", options.vm_name, VM_NAME_VARIABLE, environment, config.vm_name, config.source),
        state if state.value else _usual_state(environment),
    )


def _chosen(
    flag: str, typed: str | None, variable: str, environment: Mapping[str, str], configured: str, source: str
) -> Given:
    if typed is not None:
        if not typed.strip():
            raise BadOption(name=flag, value=typed, problem="it is empty. Give a value, or leave the option out.")
        return Given(typed, flag)
    if environment.get(variable, "").strip():
        return Given(environment[variable], variable)
    return Given(configured, source) if configured else Given("", "")


def _usual_state(environment: Mapping[str, str]) -> Given:
    if folders := environment.get(SYSTEMD_STATE_VARIABLE):
        return Given(folders.partition(":")[0], SYSTEMD_STATE_VARIABLE)
    if os.geteuid() == 0:
        return Given(f"/var/lib/{FOLDER_NAME}", "default")
    around = environment.get("XDG_STATE_HOME", "")
    if not around.startswith("/"):  # what is relative there is to be ignored, says who has defined it
        try:
            around = str(Path.home() / ".local" / "state")
        except RuntimeError:
            return Given("", "")  # a user whom nobody knows, as in a container
    return Given(str(Path(around) / FOLDER_NAME), "default")


def read_address(text: str, name: str) -> tuple[str, int]:
    """`127.0.0.1:9169`, `[::1]:9169`."""
    from forewarn.system.addresses import read_host_port

    try:
        return read_host_port(text)
    except ValueError as error:
        raise BadOption(name=name, value=text, problem=error) from None
