"""The config of the agent: its keys, and errors with their place."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from forewarn.agent.config_file import handler_of, read_config, read_text
from forewarn.agent.policy import Member, Rule
from forewarn.errors import BadAgentConfig, UnreadableFile

if TYPE_CHECKING:
    from pathlib import Path

HANDLERS = """
[handler.leave-pool]
kind = "command"
prepare = ["leave"]

[handler.stop-web]
kind = "command"
prepare = ["systemctl", "stop", "web"]
undo = ["systemctl", "start", "web"]
timeout = "90s"
"""
MINUTE = timedelta(minutes=1)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "peers.secret"
    path.write_text("0123456789abcdef0123\n")
    path.chmod(0o600)
    return path


def test_every_key_of_the_config(tmp_path: Path, secret: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(
        f"""
[agent]
endpoint = "http://127.0.0.1:8169"
vm_name = "web-0"
state = "/var/lib/x"
listen = "[::1]:9169"
short_freeze = "0s"

[[rule]]
name = "short freeze"
on = "Freeze"
source = "Platform"
description = ["maintenance"]
max_duration = "10s"
min_notice = "5m"
approve = "self"

[[rule]]
on = ["Reboot", "Redeploy"]
prepare = ["leave-pool", "stop-web"]
when = "5m"
timeout = "3m"
approve = "leader"
approve_when = "1m"
on_failure = "continue"
undo = ["stop-web"]
{HANDLERS}
[peers]
listen = "0.0.0.0:9170"
secret_file = "{secret.name}"
members = {{web-0 = "10.0.0.4:9170", web-1 = "peer.example:9171"}}
timeout = "4s"
"""
    )
    config = read_config(path)
    assert config.rules == (
        Rule(
            "short freeze", ("Freeze",), "Platform", ("maintenance",), timedelta(seconds=10), 5 * MINUTE, approve="self"
        ),
        Rule(
            "rule 2",
            ("Reboot", "Redeploy"),
            prepare=("leave-pool", "stop-web"),
            lead=5 * MINUTE,
            timeout=3 * MINUTE,
            approve="leader",
            approve_lead=MINUTE,
            on_failure="continue",
            undo=("stop-web",),
        ),
    )
    assert (config.endpoint, config.vm_name, config.state) == ("http://127.0.0.1:8169", "web-0", "/var/lib/x")
    assert config.listen == ("::1", 9169)
    assert config.short_freeze == timedelta(0)
    assert {name: each.timeout for name, each in config.handlers.items()} == {
        "leave-pool": timedelta(seconds=60),
        "stop-web": timedelta(seconds=90),
    }
    assert config.peers is not None
    assert config.peers.secret == b"0123456789abcdef0123"
    assert config.peers.members == (Member("web-0", "10.0.0.4", 9170), Member("web-1", "peer.example", 9171))
    assert config.peers.timeout == timedelta(seconds=4)


def test_an_empty_config_does_nothing(tmp_path: Path) -> None:
    config = read_text("", "agent.toml", tmp_path)
    assert config.rules == ()
    assert config.peers is None
    assert config.short_freeze == timedelta(seconds=10)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[rule]", "agent.toml:1: TOML:"),
        ("[rule]\non = ['Reboot']", "Write [[rule]] with two brackets"),
        ("[[rules]]", "agent.toml:1: rules: The file has no such key. Did you mean 'rule'?"),
        ("[agent]\nvmname = 'x'", "agent.toml:2: agent.vmname: agent has no such key. Did you mean 'vm_name'?"),
        ("[agent]\nlisten = '9169'", "agent.listen: Must be HOST:PORT, not '9169'"),
        ("[agent]\nshort_freeze = 'short'", "agent.toml:2: agent.short_freeze: 'short' is not a duration"),
        ("[agent]\nshort_freeze = '-1'", "agent.toml:2: agent.short_freeze: '-1' is not a duration"),
        ("[agent]\nshort_freeze = 10", "agent.toml:2: agent.short_freeze: Must be a string"),
        ("[[rule]]\nprepare = ['stop']", "agent.toml:2: rule[0].prepare[0]: There is no [handler.stop]"),
        (f"[[rule]]\nprepare = ['stop-wbe']\n{HANDLERS}", "Did you mean 'stop-web'?"),
        (f"[[rule]]\nprepare = ['stop-web', 'stop-web']\n{HANDLERS}", "listed twice"),
        ("[[rule]]\non = []", "rule[0].on: Must have at least one entry"),
        ("[[rule]]\non = ['']", "Must not be empty"),
        ("[[rule]]\non = 5", "rule[0].on: Must be an array of strings"),
        ("[[rule]]\nwhen = 'soon'", 'Must be "now" or a duration before NotBefore'),
        ("[[rule]]\napprove = 'always'", "'always' is not one of self, leader, never."),
        ("[[rule]]\napprove_when = 'soon'", 'Must be "ready" or a duration before NotBefore'),
        ("[[rule]]\napprove = 'leader'", "'leader' needs a [peers] table"),
        ("[[rule]]\non_failure = 'go'", "'go' is not one of stop, continue, approve, undo."),
        ("[[rule]]\nsource = 'Martian'", "'Martian' is not one of"),
        ("[[rule]]\nmax_duration = 'long'", "agent.toml:2: rule[0].max_duration: 'long' is not a duration"),
        ("[[rule]]\nlead = '5m'", "rule[0].lead: [[rule]] has no such key."),
        ("[handler.x]", "agent.toml:1: handler.x.kind: It is missing."),
        ("[handler.x]\nkind = 'comand'", "Did you mean 'command'?"),
        ("[handler.x]\nkind = 'command'\nprepare = ['x']\ntimeout = '0s'", "handler.x.timeout: Must be more than 0s."),
        ("[handler.'a/b']\nkind = 'log'", "without /"),
        ("handler = 5", "handler: Must be a table like [handler.NAME]"),
        ("[peers]", "peers.listen: It is missing."),
        ("[peers]\nlisten='1.2.3.4:5'", "peers.secret_file: It is missing."),
        ("[peers]\nlisten='1.2.3.4:5'\nsecret_file='x'", "peers.members: It is missing."),
        ("[peers]\nlisten='1.2.3.4:5'\nsecret_file='x'\nmembers={a='b'}", "peers.members.a: Must be HOST:PORT"),
        ("[peers]\nlisten='1.2.3.4:5'\nsecret_file='x'\nmembers={a='b:1'}\ntimeout='0s'", "at least 1s"),
        (
            "[peers]\nlisten='1.2.3.4:5'\nsecret_file='x'\nmembers={web-0='b:1', WEB-0='c:1'}",
            "peers.members.WEB-0: web-0 is the same VM",
        ),
        (
            "[peers]\nlisten='1.2.3.4:5'\nsecret_file='x'\nmembers={web-0='b:1', web-1='B:1'}",
            "peers.members.web-1: web-0 has the same address",
        ),
        ("[peers]\nlisten='1.2.3.4:5'\nsecret_file='x'\nmembers={a='b:1'}", "cannot be read: No such file"),
    ],
)
def test_an_error_has_its_place(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(BadAgentConfig) as caught:
        read_text(text, "agent.toml", tmp_path)
    assert problem in str(caught.value)
    assert len(caught.value.mistakes) == 1 or "[peers]" in text, caught.value


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [("0123456789abcdef", 0o640, "chmod 600"), ("short\n", 0o600, "at least 16"), ("", 0o600, "openssl rand")],
)
def test_a_secret_must_be_one(tmp_path: Path, secret: Path, content: str, mode: int, problem: str) -> None:
    secret.write_text(content)
    secret.chmod(mode)
    text = f"[peers]\nlisten='127.0.0.1:1'\nsecret_file='{secret}'\nmembers={{a='b:1'}}"
    with pytest.raises(BadAgentConfig, match=problem):
        read_text(text, "agent.toml", tmp_path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="No such file"):
        read_config(tmp_path / "agent.toml")
    (tmp_path / "agent.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UnreadableFile, match="UTF-8"):
        read_config(tmp_path / "agent.toml")


def test_a_handler_can_be_created_from_its_stored_options(tmp_path: Path) -> None:
    kept = read_text(HANDLERS, "agent.toml", tmp_path).handlers["stop-web"].table
    again = handler_of("stop-web", kept, tmp_path)
    assert again.timeout == timedelta(seconds=90)
    assert "systemctl start web" in again.handler.describe("undo")
    with pytest.raises(BadAgentConfig, match=r"\[handler\.stop-web\] in the state file"):
        handler_of("stop-web", {"kind": "gone"}, tmp_path)
