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


def test_known_variables_and_names_that_are_near_nothing_are_not_reported(forewarn: Service) -> None:
    known = {f"FOREWARN_{name}": "" for name in OTHER_VARIABLES - {"SERVER", "SERVICE", "TOKEN_FILE", "DATA", "CONFIG"}}
    known = {name: value for name, value in known.items() if name not in forewarn.environment}
    others = {"FOREWARN_SPEED": "60", "FOREWARN_EVENT_TYPE": "", "FOREWARN_MEMO_TICKET": "", "FOREWARN_KITCHEN": ""}
    assert run_command(forewarn, "clock", "show", **known, **others).stderr == ""
