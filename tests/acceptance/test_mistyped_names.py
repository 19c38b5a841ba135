"""Commands, options and variables that are mistyped, or named with another word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from command_line import run_command
from forewarn.cli.variables import OTHER_VARIABLES

if TYPE_CHECKING:
    from forewarn.testing import Service


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("vm reboot web-0", "No such command 'reboot'. Did you mean 'restart'?"),
        ("vm lst", "No such command 'lst'. Did you mean 'list'?"),
        ("token rm ci", "No such command 'rm'. Did you mean 'revoke'?"),
        ("machine list", "Unknown command 'machine'. Did you mean 'vm'?"),
        ("reboot web-0", "Unknown command 'reboot'. Did you mean 'vm restart'?"),
        ("aprove --all", "Unknown command 'aprove'. Did you mean 'event approve'?"),
        ("vm list --grup web", "No such option '--grup'. Did you mean '--group'?"),
    ],
)
def test_a_wrong_command_or_option_suggests_the_right_one(forewarn: Service, arguments: str, hint: str) -> None:
    result = run_command(forewarn, *arguments.split())
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == f"Error: {hint}"


def test_a_command_that_is_near_nothing_gets_no_suggestion(forewarn: Service) -> None:
    assert run_command(forewarn, "vm", "xylophone").stderr.endswith("No such command 'xylophone'.\n")
    assert run_command(forewarn, "xylophone").stderr.endswith("Unknown command 'xylophone'.\n")
    assert run_command(forewarn, "history", "--actor", "me").stderr.endswith("No such option '--actor'.\n")


def test_an_error_of_the_service_names_the_option(forewarn: Service) -> None:
    for arguments in ("event list --type rebot", "event watch --type rebot"):
        result = run_command(forewarn, *arguments.split())
        assert result.stderr.startswith("forewarn: --type: 'rebot' is not one of Freeze, ")
        assert result.stderr.endswith("Did you mean 'Reboot'?\n")


def test_a_mistyped_variable_is_reported_once_by_every_command(forewarn: Service) -> None:
    warning = "forewarn: the variable FOREWARN_SERVRE has no effect. Did you mean 'FOREWARN_SERVER'?\n"
    for arguments in (("vm", "list"), ("clock", "show"), ("settings",)):
        result = run_command(forewarn, *arguments, FOREWARN_SERVRE="http://127.0.0.1:1")
        assert (result.returncode, result.stderr) == (0, warning)
    result = run_command(forewarn, "settings", FOREWARN_RATE_LIMT="1")
    assert "FOREWARN_RATE_LIMT has no effect. Did you mean 'FOREWARN_RATE_LIMIT'?" in result.stderr


def test_an_unknown_variable_is_reported_with_a_hint_if_a_name_is_near(forewarn: Service) -> None:
    """A user who sets a variable with this prefix expects an effect, so silence would hide the mistake."""
    hints = {
        "AGENT_ENDPOINT": " Did you mean 'FOREWARN_ENDPOINT'?",
        "KITCHEN": "",
        "LOG": " Did you mean 'FOREWARN_LOG_FORMAT' or 'FOREWARN_LOG_LEVEL'?",
        "PORT": "",
        "TOKEN": " Did you mean 'FOREWARN_TOKEN_FILE'?",
        "URL": " Did you mean 'FOREWARN_SERVER'?",
    }
    result = run_command(forewarn, "clock", "show", **{f"FOREWARN_{name}": "1" for name in hints})
    lines = [f"forewarn: the variable FOREWARN_{name} has no effect.{hint}" for name, hint in hints.items()]
    assert (result.returncode, result.stderr.splitlines()) == (0, lines)


def test_known_variables_and_those_of_kubernetes_are_not_reported(forewarn: Service) -> None:
    known = {f"FOREWARN_{name}": "" for name in OTHER_VARIABLES - {"SERVER", "SERVICE", "TOKEN_FILE", "DATA", "CONFIG"}}
    known = {name: value for name, value in known.items() if name not in forewarn.environment}
    others = {"FOREWARN_SPEED": "60", "FOREWARN_EVENT_TYPE": "", "FOREWARN_MEMO_TICKET": ""}
    kubernetes = {
        "FOREWARN_SERVICE_HOST": "10.0.0.7",
        "FOREWARN_SERVICE_PORT": "8170",
        "FOREWARN_PORT": "tcp://10.0.0.7:8170",
        "FOREWARN_PORT_8170_TCP_ADDR": "10.0.0.7",
    }
    assert run_command(forewarn, "clock", "show", **known, **others, **kubernetes).stderr == ""
