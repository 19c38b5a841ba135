"""Text with control, escape or bidirectional characters from elsewhere. The command line prints none of them."""

from __future__ import annotations

import http.client
import json
import os
import pty
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from command_line import run_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.testing import Service

HOSTILE = "\x1b]0;owned\x07\x1b[31m\x9b2J\r\n\t\x00\x7f\u202e\u2066\u200b\u061c\ufeff\u2028\U000e0041"
SHOWN = "\\x1b]0;owned\\x07\\x1b[31m\\x9b2J\\r\\n\\t\\x00\\x7f\\u202e\\u2066\\u200b\\u061c\\ufeff\\u2028\\U000e0041"
SPOILED = {
    *("name", "group", "host", "scope", "hostname", "description", "reason", "by", "requested_by", "created_by"),
    *("size", "zone", "location", "detail", "error", "text", "next", "url", "cause_description", "vms"),
}
"""Members of the API whose strings the proxy spoils."""
COMMANDS = (
    ("vm", "list"),
    ("vm", "show", "web-0"),
    ("vm", "document", "web-0"),
    ("event", "list"),
    ("group", "list"),
    ("group", "show", "web-0"),
    ("host", "list"),
    ("operation", "list"),
    ("history",),
    ("token", "list"),
    ("webhook", "list"),
    ("vm", "show", "no-such-vm"),
    ("vm", "restart", "web-0", "--dry-run"),
)


def spoiled(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: spoiled(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [spoiled(each, name) for each in value]
    return value + HOSTILE if isinstance(value, str) and name in SPOILED else value


class Proxy(ThreadingHTTPServer):
    """A control API whose texts are hostile."""

    daemon_threads = True

    def __init__(self, service: Service) -> None:
        super().__init__(("127.0.0.1", 0), _Spoiler)
        self.origin = service.control_url.removeprefix("http://")
        self.environment = {**service.environment, "FOREWARN_SERVER": f"http://127.0.0.1:{self.server_port}"}
        self.environment.pop("FOREWARN_DATA", None)


class _Spoiler(BaseHTTPRequestHandler):
    server: Proxy

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        line = http.client.HTTPConnection(self.server.origin, timeout=60)
        line.request(self.command, self.path, body, {"Authorization": self.headers["Authorization"]})
        response = line.getresponse()
        # Raw characters where JSON allows them.
        text = json.dumps(spoiled(json.loads(response.read())), ensure_ascii=False).encode()
        line.close()
        self.send_response_only(response.status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy(forewarn: Service) -> Iterator[Proxy]:
    vm = forewarn.vm("web-0")
    vm.poll()
    vm.restart()
    proxy = Proxy(forewarn)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
    thread.start()
    yield proxy
    proxy.shutdown()
    thread.join()
    proxy.server_close()


def check(output: str) -> None:
    bad = {letter for letter in output if letter != "\n" and not letter.isprintable()}
    assert not bad, (bad, output)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_output_has_control_characters(proxy: Proxy, command: tuple[str, ...]) -> None:
    shown = run_command(proxy, *command)  # type: ignore[arg-type]
    check(shown.stdout + shown.stderr)
    if shown.stdout.strip() and command[:2] not in (("vm", "document"), ("webhook", "list"), ("group", "list")):
        assert "\\x1b]0;owned" in shown.stdout.replace("\n", "").replace(" ", "")
    if command[-1] == "no-such-vm":
        assert SHOWN in shown.stderr


@pytest.mark.parametrize("command", COMMANDS[:-2], ids=" ".join)
def test_json_has_the_same_values_without_control_characters(proxy: Proxy, command: tuple[str, ...]) -> None:
    shown = run_command(proxy, *command, "--json")  # type: ignore[arg-type]
    check(shown.stdout + shown.stderr)
    value = json.loads(shown.stdout)
    if command == ("vm", "list"):
        assert value["vms"][0]["name"] == f"web-0{HOSTILE}"


def on_terminal(environment: dict[str, str], *arguments: str) -> str:
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "forewarn", *arguments],
        stdout=theirs,
        stderr=theirs,
        env={**inherited, **environment, "TERM": "xterm-256color", "COLUMNS": "200"},
    )
    os.close(theirs)
    output = b""
    try:
        while data := os.read(ours, 65536):
            output += data
    except OSError:  # the end of a terminal
        pass
    os.close(ours)
    process.wait(60)
    return output.decode()


def test_a_terminal_gets_no_control_characters(proxy: Proxy) -> None:
    check(on_terminal(proxy.environment, "vm", "list").replace("\r\n", "\n"))


@pytest.mark.parametrize(
    "arguments",
    [(f"vm{HOSTILE}",), ("vm", "list", f"--{HOSTILE}"), ("vm", f"li{HOSTILE}"), ("fleet", "check", HOSTILE)],
)
def test_what_was_typed_is_repeated_without_control_characters(arguments: tuple[str, ...]) -> None:
    arguments = tuple(argument.replace("\0", "") for argument in arguments)
    output = on_terminal({}, *arguments).replace("\r\n", "\n")
    check(output)
    assert "owned" in output


def test_the_api_refuses_control_characters(forewarn: Service) -> None:
    refused = forewarn.control("PUT", "/v1/fleet?source=a%1bb", b'[[vm]]\nname = "a"\n')
    assert (refused.status, refused.json()["parameter"]) == (400, "source")
    vm = forewarn.vm("web-0")
    vm.poll()
    vm.restart()
    operation = forewarn.get_json("/v1/operations")["operations"][0]["id"]
    refused = forewarn.control("POST", f"/v1/operations/{operation}/failed", {"reason": "a\x1b[2Jb"})
    assert (refused.status, refused.json()["pointer"]) == (400, "/reason")
    assert "contains control characters" in refused.json()["detail"]
