"""A small server of Scheduled Events in the standard library alone, that can be told what to do wrong.

It is right in what the checks look at. A fault changes the request before it is looked at, the answer before it is
sent, or what happens to events; so each is a line, in engine/faults.py.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from verify.broken_events import VERSIONS, Scope, World, rfc1123

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INSTANCE_VERSIONS: tuple[str, ...] = (
    *("2017-03-01", "2017-04-02", "2017-08-01", "2019-06-01", "2019-08-01", "2020-06-01", "2020-09-01"),
    *("2021-02-01", "2021-12-13"),
)
BAD_VERSION = (
    "Bad request. api-version is invalid or was not specified in the request. For more information refer to "
    "aka.ms/azureimds"
)
LARGEST = 65_536
JSON = "application/json; charset=utf-8"


@dataclass
class Ask:
    """A request as the server takes it."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes = b""
    vm: str = ""
    protocol: str = "HTTP/1.1"

    def value(self, name: str) -> str:
        return dict(self.query).get(name, "")


@dataclass
class Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    closes: bool = False
    """Ends the connection without a word."""
    endless: bool = False
    """Is followed by more and more of it, until the client has had enough."""

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    def dump(self, value: Any) -> None:
        self.body = json.dumps(value, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Fault:
    """One thing that a server does wrong, and the checks that must say so."""

    name: str
    caught: tuple[str, ...]
    ask: Callable[[Ask], object] | None = None
    answer: Callable[[Ask, Answer], object] | None = None
    world: str = ""
    slow_seconds: float = 1.5
    """After how long a client that sends nothing is given up."""
    rate: int | None = None
    """How many requests it takes in a window."""
    window_seconds: float = 1.0
    statuses: tuple[tuple[int, int], ...] = ()
    """What is answered instead of these statuses to what is too large, or no request at all."""
    threaded: bool = True
    bodies: bool = False
    """Sends a body where none belongs: behind 304, and to HEAD."""
    dribbles: bool = False
    """Sends a client that is too slow a letter now and then, and does not close."""


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def error(status: int, text: str) -> Answer:
    return Answer(status, f'{{ "error": "{text}" }}'.encode(), {"Content-Type": JSON})


def bad_version(known: tuple[str, ...]) -> Answer:
    newest = list(reversed(known))[:3]
    return Answer(400, compact({"error": BAD_VERSION, "newest-versions": newest}), {"Content-Type": JSON})


def is_date(text: str) -> bool:
    return len(text) == 10 and text[4] == text[7] == "-" and text.replace("-", "").isdigit()


class Service:
    """What answers, whoever asks."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.world = World(fault.world)
        self._times: dict[str, list[float]] = {}

    def answer(self, vm: str, scope: Scope, ask: Ask) -> Answer:
        if self.fault.ask:
            self.fault.ask(ask)
        with self.world.lock:
            found = self._throttled(vm) or self._answer(vm, scope, ask)
            found.headers |= {
                "Server": "IMDS/150",
                "Date": rfc1123(self.world.now),
                "x-ms-request-id": str(uuid.uuid4()),
            }
        if self.fault.answer:
            self.fault.answer(ask, found)
        return found

    def _throttled(self, vm: str) -> Answer | None:
        if self.fault.rate is None:
            return None
        now = time.monotonic()
        recent = [each for each in self._times.get(vm, []) if each > now - self.fault.window_seconds]
        self._times[vm] = recent
        if len(recent) >= self.fault.rate:
            return Answer(429, b"Throttle Result: Too Many Requests", {"Content-Type": "text/plain"})
        recent.append(now)
        return None

    def _answer(self, vm: str, scope: Scope, ask: Ask) -> Answer:
        path = ask.path.lower()
        names = [name for name, _ in ask.query]
        if "x-forwarded-for" in ask.headers:
            return error(400, "Forwarded.")
        told = path == "/metadata/scheduledevents"
        if not told and path != "/metadata/versions" and not path.startswith("/metadata/instance"):
            return error(404, "No such path.")
        if ask.method != "GET" and not (told and ask.method == "POST"):
            return error(405, "No such verb.")
        if len(set(names)) < len(names):
            return error(400, "A query name is given twice.")
        version = ask.value("api-version")
        header_free = told and version == "2017-03-01"
        if ask.headers.get("metadata", "").lower() != "true" and not header_free:
            return error(400, "Bad request: . Required metadata header not specified")
        if path == "/metadata/versions":
            return Answer(200, compact({"apiVersions": INSTANCE_VERSIONS}), {"Content-Type": JSON})
        if not told:
            known = version in INSTANCE_VERSIONS
            return self._instance(vm, ask, version) if known else bad_version(INSTANCE_VERSIONS)
        if version not in VERSIONS:
            if is_date(version):
                return error(404, "Not found. Invalid version requested")
            return bad_version(VERSIONS)
        return self._poll(scope, ask, version) if ask.method == "GET" else self._approve(vm, scope, ask)

    def _poll(self, scope: Scope, ask: Ask, version: str) -> Answer:
        self.world.hear(scope)
        tag = self.world.tag(scope)
        if ask.headers.get("if-none-match") in (tag, tag.strip('"')):
            return Answer(304, b"", {"ETag": tag})
        return Answer(200, compact(self.world.document(scope, version)), {"Content-Type": JSON, "ETag": tag})

    def _approve(self, vm: str, scope: Scope, ask: Ask) -> Answer:
        try:
            ids = [request["EventId"] for request in json.loads(ask.body)["StartRequests"]]
            fine = bool(ids) and all(isinstance(event_id, str) for event_id in ids)
        except (ValueError, TypeError, KeyError):
            fine = False
        if not fine:
            return error(400, "Malformed.")
        return Answer(200) if self.world.approve(scope, vm, ids) else error(400, "Unknown id.")

    def _instance(self, vm: str, ask: Ask, version: str) -> Answer:
        node: Any = tree(vm, version)
        for part in ask.path.split("/")[3:]:
            if isinstance(node, dict):
                node = node.get(part)
            elif isinstance(node, list):
                node = node[int(part)] if part.isdigit() and int(part) < len(node) else None
            if node is None:
                return error(404, "No such element.")
        if isinstance(node, str):
            if ask.value("format") != "text":
                return error(400, "A single value needs format=text.")
            return Answer(200, node.encode(), {"Content-Type": "text/plain; charset=utf-8"})
        return Answer(200, compact(node), {"Content-Type": JSON})


SINCE = {
    "2017-04-02": "location name platformFaultDomain platformUpdateDomain vmId vmSize",
    "2017-08-01": "placementGroupId resourceGroupName subscriptionId tags",
    "2017-12-01": "vmScaleSetName zone",
    "2019-03-11": "resourceId",
    "2019-06-04": "tagsList",
    "2020-07-15": "osProfile",
    "2020-12-01": "evictionPolicy priority",
}


def tree(vm: str, version: str) -> dict[str, Any]:
    """What /metadata/instance tells."""
    names = sorted(name for since, names in SINCE.items() if since <= version for name in names.split())
    known = {
        "name": vm,
        "vmScaleSetName": vm.partition("_")[0],
        "tagsList": [],
        "osProfile": {"computerName": vm},
        "platformFaultDomain": "0",
    }
    address = {"privateIpAddress": "127.0.0.1", "publicIpAddress": ""}
    interface = {"ipv4": {"ipAddress": [address]}, "macAddress": "000D3A008F07"}
    return {"compute": {name: known.get(name, "") for name in names}, "network": {"interface": [interface]}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service
    vm: str
    scope: Scope

    def send_error(self, code: int, *_: Any) -> None:
        """What is too large, or no request at all."""
        self.request_version = self.command = ""
        self.close_connection = True
        self._send(error(dict(self.service.fault.statuses).get(code, code), "No."))

    def log_message(self, *_: Any) -> None:
        """Silent."""

    def log_error(self, *_: Any) -> None:
        """Called when nothing more has come in time."""
        if self.service.fault.dribbles:
            self.connection.settimeout(0.05)
            with suppress(ConnectionError):
                while self._dribble():
                    pass

    def _dribble(self) -> bool:
        """Send a letter; whether the client is still there."""
        self.connection.sendall(b"x")
        try:
            return bool(self.connection.recv(1))
        except TimeoutError:
            return True

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qsl(parts.query, keep_blank_values=True)
        length = int(self.headers.get("Content-Length") or 0)
        if length > LARGEST:
            self.send_error(413)
            return
        body = self.rfile.read(length)
        if parts.path.startswith("/control/"):
            self._control(parts.path.rpartition("/")[2], dict(query))
            return
        headers = {name.lower(): value.strip() for name, value in self.headers.items()}
        ask = Ask(self.command, parts.path, query, headers, body, self.vm, self.request_version)
        self._send(self.service.answer(self.vm, self.scope, ask))

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_HEAD = handle_any  # noqa: N815

    def _send(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.endless:
            self.send_header("Transfer-Encoding", "chunked")
        elif answer.status != 304 and "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection and "Connection" not in answer.headers:
            self.send_header("Connection", "close")
        self.end_headers()
        with suppress(ConnectionError):
            while answer.endless:
                self.wfile.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        bodiless = self.command == "HEAD" or answer.status == 304
        if not bodiless or self.service.fault.bodies:
            self.wfile.write(answer.body or b"{}" if bodiless else answer.body)
        self.close_connection = self.close_connection or answer.closes

    def _control(self, order: str, query: dict[str, str]) -> None:
        world = self.service.world
        with world.lock:
            done = {
                "schedule": lambda: world.schedule(query["type"]),
                "cancel": lambda: world.cancel(query["id"]),
                "advance": lambda: world.advance(int(query["seconds"])),
            }[order]()
        self._send(Answer(200 if done else 404))


@dataclass
class Running:
    """A server that runs: where each VM asks, and the commands that have things happen."""

    here: str
    other: str
    outside: str

    def command(self, order: str, name: str, variable: str) -> str:
        return f"curl -sSf --noproxy '*' \"{self.here}/control/{order}?{name}=${variable}\""


class Threaded(ThreadingHTTPServer):
    request_queue_size = 64


@contextmanager
def running(fault: Fault) -> Iterator[Running]:
    """The server, with one address for each VM, while it is needed."""
    service = Service(fault)
    servers: list[HTTPServer] = []
    for vm, scope in (("pool_0", service.world.pool), ("pool_1", service.world.pool), ("mail", service.world.mail)):
        members = {"service": service, "vm": vm, "scope": scope, "timeout": fault.slow_seconds}
        make = Threaded if fault.threaded else HTTPServer
        server = make(("127.0.0.1", 0), type("VMHandler", (Handler,), members))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        servers.append(server)
    try:
        yield Running(*(f"http://127.0.0.1:{server.server_address[1]}" for server in servers))
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
