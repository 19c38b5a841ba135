"""A file with several mistakes: one error lists all of them in the order of the lines, and nothing is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from command_line import run_command

if TYPE_CHECKING:
    from pathlib import Path

    from forewarn.testing import Service

FLEET = """\
[[group]]
name = "web"
kind = "availabilty-set"
update_domains = 500

[[group]]
name = "db"
kind = "scale-set"
modes = "flexible"
windows = ["never", "sat 02:00 4h", "sun 99:00 4h"]

[[host]]
name = "host-a"

[[vm]]
nmae = "web-0"
group = "web"
host = "host-a"
update_domain = 3
adress = "10.0.0.4"

[[vm]]
name = "web-1"
group = "wbe"
host = "host-b"
address = "10.0.0.400"
placement_group = 7
priority = "spto"
eviction_policy = "delete"
tags = { env = 5, zone = "a" }

[[vm]]
group = "db"
cuont = 5
addresses = "10.1.0.0/24"
listen = "127.0.0.1:9000-9099"

[[vm]]
name = "mail"
address = "10.0.0.9"

[[vm]]
name = "mail"
address = "10.0.0.9"
size = 3
"""
FLEET_MISTAKES = [
    (3, 'group "web".kind', "'availabilty-set' is not one of", "Did you mean 'availability-set'?"),
    (4, 'group "web".update_domains', "Must be a whole number from 1 to 100.", "It is 500."),
    (9, 'group "db".modes', "[[group]] has no such key.", "Did you mean 'mode'?"),
    (10, 'group "db".windows[0]', "'never'", ""),
    (10, 'group "db".windows[2]', "'sun 99:00 4h'", ""),
    (16, "vm[0].nmae", "[[vm]] has no such key.", "Did you mean 'name'?"),
    (20, "vm[0].adress", "[[vm]] has no such key.", "Did you mean 'address'?"),
    (24, 'vm "web-1".group', "No [[group]] is named 'wbe'.", "Did you mean 'web'?"),
    (25, 'vm "web-1".host', "No [[host]] is named 'host-b'.", "Did you mean 'host-a'?"),
    (26, 'vm "web-1".address', "'10.0.0.400' is not an address.", "Write it like 10.0.0.4"),
    (28, 'vm "web-1".priority', "'spto' is not one of regular, spot.", "Did you mean 'spot'?"),
    (30, 'vm "web-1".tags.env', "Must be a string in quotes, not a number.", ""),
    (34, "vm[2].cuont", "[[vm]] has no such key.", "Did you mean 'count'?"),
    (43, 'vm "mail".name', "'mail' is already used by vm \"mail\" (line 38).", ""),
    (44, 'vm "mail".address', "'10.0.0.9' is already used by vm \"mail\" (line 38).", ""),
    (45, 'vm "mail".size', "Must be a string in quotes, not a number.", ""),
]
"""Line, key, and what the message contains. Nothing that follows from another mistake is among them."""

SCENARIO = """\
titel = "A restart"
fleet = '''
[[vm]]
nam = "app-0"
[[vm]]
name = "app-1"
host = "host-a"
'''
[needs]
vms = 0
[[step]]
do = "restrat"
notice = "long"
vms = [5]
[[step]]
wiat = "4m"
[[step]]
fault = { kind = "501", count = 0 }
expect = { type = "Rebot", notified = "no" }
"""
SCENARIO_KEYS = [
    *("1: titel", "2: fleet: In its line 2: vm[0].nam", '2: fleet: In its line 5: vm "app-1".host', "10: needs.vms"),
    *("12: step[0].do", "13: step[0].notice", "16: step[1].wiat", "18: step[2].fault.kind", "18: step[2].fault.count"),
    *("19: step[2].expect.type", "19: step[2].expect.notified"),
]

POLICY = """\
[agent]
endpoint = "ftp://10.0.0.1"
short_freeze = "short"
[[rule]]
on = 5
prepare = ["stop", "stpo", "pause", 4]
approve = "leader"
approve_when = "whenever"
[[rule]]
name = "second"
approv = "self"
[handler.stop]
kind = "command"
prepare = "systemctl stop web"
environment = { "a b" = "1", "c d" = "2" }
timeout = "0s"
[handler.pause]
kind = "haproxi"
[handler.units]
kind = "systemd"
units = ["-web", "db*"]
[handler.own]
file = "missing.py"
"""
POLICY_KEYS = [
    *("2: agent.endpoint", "3: agent.short_freeze", "5: rule[0].on", "6: rule[0].prepare[1]", "6: rule[0].prepare[3]"),
    *("7: rule[0].approve", "8: rule[0].approve_when", '11: rule "second".approv', "14: handler.stop.prepare"),
    *("15: handler.stop.environment.'a b'", "15: handler.stop.environment.'c d'", "16: handler.stop.timeout"),
    *("18: handler.pause.kind", "21: handler.units.units[0]", "21: handler.units.units[1]", "23: handler.own.file"),
]

SETTINGS = """\
sped = 60
log_level = "loud"
silence = "3m"
rate_limit = -1

[settle]
restart = "soon"
redeploy = "1m"
restrat = "1m"
"""
SETTINGS_KEYS = ["1: sped", "2: log_level", "3: silence", "4: rate_limit", "7: settle.restart", "9: settle.restrat"]


def listed(text: str, path: Path) -> list[str]:
    """The mistakes of an error message, without the name of the file."""
    first, *lines = text.splitlines()
    assert first == f"forewarn: {path} has {len(lines)} mistakes:"
    assert all(line.startswith(f"{path}:") for line in lines)
    return [line.removeprefix(f"{path}:") for line in lines]


def test_every_mistake_of_a_fleet_file_is_listed_once(forewarn: Service, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(FLEET)
    before = forewarn.list_all("/v1/history")
    for command in ("check", "apply"):
        failed = run_command(forewarn, "fleet", command, str(file))
        assert (failed.returncode, failed.stdout) == (2, "")
        lines = listed(failed.stderr, file)
        assert [line.partition(": ")[0] for line in lines] == [str(line) for line, *_ in FLEET_MISTAKES]
        for shown, (line, key, problem, remedy) in zip(lines, FLEET_MISTAKES, strict=True):
            assert shown.startswith(f"{line}: {key}: ")
            assert problem in shown
            assert remedy in shown
    assert forewarn.list_all("/v1/history") == before


def test_the_api_lists_every_mistake(forewarn: Service) -> None:
    found = forewarn.control("PUT", "/v1/fleet?source=my.toml", FLEET.encode())
    problem = found.json()
    assert (found.status, problem["type"]) == (400, "urn:forewarn:BadFleet")
    assert [(each["line"], each["key"]) for each in problem["errors"]] == [each[:2] for each in FLEET_MISTAKES]
    assert all(
        part in each["detail"]
        for each, (_, _, *parts) in zip(problem["errors"], FLEET_MISTAKES, strict=True)
        for part in parts
    )
    assert problem["detail"].startswith("my.toml has 16 mistakes:\nmy.toml:3: ")


def test_the_api_lists_a_single_mistake_too(forewarn: Service) -> None:
    problem = forewarn.control("PUT", "/v1/fleet?source=my.toml", b'[[vm]]\nname = "a b"\n').json()
    assert problem["detail"].startswith("my.toml:2: vm \"a b\".name: 'a b' is not a valid name.")
    assert [(each["line"], each["key"]) for each in problem["errors"]] == [(2, 'vm "a b".name')]


def test_many_mistakes_are_counted(forewarn: Service) -> None:
    fleet = "".join(f'[[vm]]\nname = "vm {number}"\n' for number in range(27))
    problem = forewarn.control("PUT", "/v1/fleet?source=my.toml", fleet.encode()).json()
    assert [each["line"] for each in problem["errors"]] == list(range(2, 42, 2))
    assert problem["detail"].splitlines()[0] == "my.toml has 27 mistakes:"
    assert problem["detail"].splitlines()[-1] == "and 7 more"
    fleet = "".join(f'[[vm]]\nname = "vm {number}"\n' for number in range(1001))
    problem = forewarn.control("PUT", "/v1/fleet", fleet.encode()).json()
    assert problem["detail"].splitlines()[-1] == "and at least 980 more"


@pytest.mark.parametrize(
    ("name", "text", "keys", "command"),
    [
        ("scenario.toml", SCENARIO, SCENARIO_KEYS, ["scenario", "show"]),
        ("scenario.toml", SCENARIO, SCENARIO_KEYS, ["scenario", "run"]),
        ("policy.toml", POLICY, POLICY_KEYS, ["agent", "check"]),
        ("settings.toml", SETTINGS, SETTINGS_KEYS, ["settings", "--config"]),
        ("settings.toml", SETTINGS, SETTINGS_KEYS, ["up", "--config"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_mistake_of_another_file_is_listed_once(
    forewarn: Service, tmp_path: Path, name: str, text: str, keys: list[str], command: list[str]
) -> None:
    file = tmp_path / name
    file.write_text(text)
    failed = run_command(forewarn, *command, str(file))
    assert (failed.returncode, failed.stdout) == (2, "")
    lines = listed(failed.stderr, file)
    assert len(lines) == len(keys), failed.stderr
    for line, key in zip(lines, keys, strict=True):
        assert line.startswith(f"{key}: ")
