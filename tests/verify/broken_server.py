"""A small Scheduled Events server with one configurable defect, in the standard library alone.

Without a defect it passes every check. A defect changes the request before it is handled, the response before it is
sent, or the behaviour of events. Each defect is one entry in defects.py.
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

from verify.broken_events import PREVIEW, VERSIONS, EventModel, Scope, format_date

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
JSON = "application/json; charset=utf-8"


@dataclass
class ServerRequest:
    """A request as the server handles it."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes = b""
    vm: str = ""
    protocol: str = "HTTP/1.1"
    slashed: bool = False
    """Whether the path had a slash at its end."""

    def value(self, name: str) -> str:
        return dict(self.query).get(name, "")


@dataclass
class ServerResponse:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    closes: bool = False
    """Close the connection without announcing it."""
    endless: bool = False
    """Send more data until the client closes the connection."""

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    def dump(self, value: Any) -> None:
        self.body = json.dumps(value, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Defect:
    """One thing that the server does wrong, and the checks that must fail."""

    name: str
    failing_checks: tuple[str, ...]
    request: Callable[[ServerRequest], object] | None = None
    response: Callable[[ServerRequest, ServerResponse], object] | None = None
    event_defect: str = ""
    """The defect of EventModel."""
    slow_seconds: float = 1.5
    """Timeout of a client that sends nothing."""
    rate: int | None = None
    """Requests that the server accepts per window."""
    window_seconds: float = 1.0
    statuses: tuple[tuple[int, int], ...] = ()
    """Replacements for the status of requests that are too large or not HTTP."""
    threaded: bool = True
    forbidden_bodies: bool = False
    """Send a body with 304 and in response to HEAD."""
    trickles: bool = False
    """Send a slow client one byte at a time instead of closing the connection."""


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def error(status: int, text: str) -> ServerResponse:
    return ServerResponse(status, f'{{ "error": "{text}" }}'.encode(), {"Content-Type": JSON})


def bad_version(known: tuple[str, ...]) -> ServerResponse:
    newest = list(reversed(known))[:3]
    return ServerResponse(400, compact({"error": BAD_VERSION, "newest-versions": newest}), {"Content-Type": JSON})


def is_date(text: str) -> bool:
    return len(text) == 10 and text[4] == text[7] == "-" and text.replace("-", "").isdigit()


class BrokenService:
    """The service behind all endpoints."""

    max_body_bytes = 65_536

    def __init__(self, defect: Defect) -> None:
        self.defect = defect
        self.model = EventModel(defect.event_defect)
        self._times: dict[str, list[float]] = {}

    def handle(self, vm: str, scope: Scope, request: ServerRequest) -> ServerResponse:
        if self.defect.request:
            self.defect.request(request)
        with self.model.lock:
            response = self._throttled(vm) or self._dispatch(vm, scope, request)
            response.headers |= {
                "Server": "IMDS/150",
                "Date": format_date(self.model.now),
                "x-ms-request-id": str(uuid.uuid4()),
            }
        if self.defect.response:
            self.defect.response(request, response)
        return response

    def _throttled(self, vm: str) -> ServerResponse | None:
        if self.defect.rate is None:
            return None
        now = time.monotonic()
        recent = [each for each in self._times.get(vm, []) if each > now - self.defect.window_seconds]
        self._times[vm] = recent
        if len(recent) >= self.defect.rate:
            return ServerResponse(429, b"Throttle Result: Too Many Requests", {"Content-Type": "text/plain"})
        recent.append(now)
        return None

    def _dispatch(self, vm: str, scope: Scope, request: ServerRequest) -> ServerResponse:
        path = request.path.lower()
        names = [name for name, _ in request.query]
        if "x-forwarded-for" in request.headers:
            return error(400, "Forwarded.")
        is_events_path = path == "/metadata/scheduledevents"
        if not is_events_path and path != "/metadata/versions" and not path.startswith("/metadata/instance"):
            return error(404, "No such path.")
        if request.method != "GET" and not (is_events_path and request.method == "POST"):
            return error(405, "No such method.")
        if len(set(names)) < len(names):
            return error(400, "Duplicate query parameter.")
        version = request.value("api-version")
        header_optional = is_events_path and version == "2017-03-01"
        if request.headers.get("metadata", "").lower() != "true" and not header_optional:
            return error(400, "Bad request: . Required metadata header not specified")
        if path == "/metadata/versions":
            return ServerResponse(200, compact({"apiVersions": INSTANCE_VERSIONS}), {"Content-Type": JSON})
        if not is_events_path:
            known = version in INSTANCE_VERSIONS
            return self._instance(vm, request, version) if known else bad_version(INSTANCE_VERSIONS)
        if version not in (*VERSIONS, PREVIEW):
            if is_date(version):
                return error(404, "Not found. Invalid version requested")
            return bad_version(VERSIONS)
        return self._poll(scope, request, version) if request.method == "GET" else self._approve(vm, scope, request)

    def _poll(self, scope: Scope, request: ServerRequest, version: str) -> ServerResponse:
        self.model.record_poll(scope)
        tag = self.model.tag(scope)
        if request.headers.get("if-none-match") in (tag, tag.strip('"')):
            return ServerResponse(304, b"", {"ETag": tag})
        return ServerResponse(200, compact(self.model.document(scope, version)), {"Content-Type": JSON, "ETag": tag})

    def _approve(self, vm: str, scope: Scope, request: ServerRequest) -> ServerResponse:
        try:
            ids = [each["EventId"] for each in json.loads(request.body)["StartRequests"]]
            valid = bool(ids) and all(isinstance(event_id, str) for event_id in ids)
        except (ValueError, TypeError, KeyError):
            valid = False
        if not valid:
            return error(400, "Malformed.")
        return ServerResponse(200) if self.model.approve(scope, vm, ids) else error(400, "Unknown id.")

    def _instance(self, vm: str, request: ServerRequest, version: str) -> ServerResponse:
        node: Any = instance_tree(vm, version)
        for part in request.path.split("/")[3:]:
            if isinstance(node, dict):
                node = node.get(part)
            elif isinstance(node, list):
                node = node[int(part)] if part.isdigit() and int(part) < len(node) else None
            if node is None:
                return error(404, "No such element.")
        if isinstance(node, str):
            if request.value("format") != "text":
                return error(400, "A single value needs format=text.")
            return ServerResponse(200, node.encode(), {"Content-Type": "text/plain; charset=utf-8"})
        return ServerResponse(200, compact(node), {"Content-Type": JSON})


SINCE = {
    "2017-04-02": "location name platformFaultDomain platformUpdateDomain vmId vmSize",
    "2017-08-01": "placementGroupId resourceGroupName subscriptionId tags",
    "2017-12-01": "vmScaleSetName zone",
    "2018-04-02": "plan publicKeys",
    "2019-02-01": "customData",
    "2019-03-11": "resourceId",
    "2019-06-01": "storageProfile",
    "2019-06-04": "tagsList",
    "2020-06-01": "isHostCompatibilityLayerVm securityProfile",
    "2020-07-15": "osProfile",
    "2020-09-01": "licenseType",
    "2020-12-01": "evictionPolicy priority",
    "2021-01-01": "userData",
    "2021-03-01": "extendedLocation virtualMachineScaleSet",
    "2021-10-01": "platformSubFaultDomain",
    "2021-11-01": "additionalCapabilities",
    "2021-11-15": "host hostGroup",
}


def instance_tree(vm: str, version: str) -> dict[str, Any]:
    """Return the tree of /metadata/instance."""
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


class BrokenHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: BrokenService
    vm: str
    scope: Scope

    def send_error(self, code: int, *_: Any) -> None:
        """Handle a request that is too large or not HTTP."""
        self.request_version = self.command = ""
        self.close_connection = True
        self._send(error(dict(self.service.defect.statuses).get(code, code), "No."))

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def log_error(self, *_: Any) -> None:
        """Handle a timeout."""
        if self.service.defect.trickles:
            self.connection.settimeout(0.05)
            with suppress(ConnectionError):
                while self._send_byte():
                    pass

    def _send_byte(self) -> bool:
        """Send one byte. Return whether the client is still connected."""
        self.connection.sendall(b"x")
        try:
            return bool(self.connection.recv(1))
        except TimeoutError:
            return True

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qsl(parts.query, keep_blank_values=True)
        length = int(self.headers.get("Content-Length") or 0)
        if length > self.service.max_body_bytes:
            self.send_error(413)
            return
        body = self.rfile.read(length)
        if parts.path.startswith("/control/"):
            self._control(parts.path.rpartition("/")[2], dict(query))
            return
        headers = {name.lower(): value.strip() for name, value in self.headers.items()}
        path = parts.path if parts.path == "/" else parts.path.removesuffix("/")
        request = ServerRequest(self.command, path, query, headers, body, self.vm, self.request_version)
        request.slashed = path != parts.path
        self._send(self.service.handle(self.vm, self.scope, request))

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_HEAD = handle_any  # noqa: N815

    def _send(self, response: ServerResponse) -> None:
        self.send_response_only(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        if response.endless:
            self.send_header("Transfer-Encoding", "chunked")
        elif response.status != 304 and "Content-Length" not in response.headers:
            self.send_header("Content-Length", str(len(response.body)))
        if self.close_connection and "Connection" not in response.headers:
            self.send_header("Connection", "close")
        self.end_headers()
        with suppress(ConnectionError):
            while response.endless:
                self.wfile.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        bodiless = self.command == "HEAD" or response.status == 304
        if not bodiless or self.service.defect.forbidden_bodies:
            self.wfile.write(response.body or b"{}" if bodiless else response.body)
        self.close_connection = self.close_connection or response.closes

    def _control(self, action: str, query: dict[str, str]) -> None:
        model = self.service.model
        with model.lock:
            done = {
                "schedule": lambda: model.schedule(query["type"]),
                "cancel": lambda: model.cancel(query["id"]),
                "advance": lambda: model.advance(int(query["seconds"])),
            }[action]()
        self._send(ServerResponse(200 if done else 404))


@dataclass
class RunningServer:
    """Endpoints of a running server, and its hook commands."""

    endpoint: str
    same_group: str
    other_group: str

    def command(self, action: str, name: str, variable: str) -> str:
        return f"curl -sSf --noproxy '*' \"{self.endpoint}/control/{action}?{name}=${variable}\""


class ThreadedServer(ThreadingHTTPServer):
    request_queue_size = 64


@contextmanager
def running(defect: Defect, make_service: type[BrokenService] = BrokenService) -> Iterator[RunningServer]:
    """Run the server with one address per VM."""
    service = make_service(defect)
    servers: list[HTTPServer] = []
    for vm, scope in (("pool_0", service.model.pool), ("pool_1", service.model.pool), ("mail", service.model.mail)):
        members = {"service": service, "vm": vm, "scope": scope, "timeout": defect.slow_seconds}
        make = ThreadedServer if defect.threaded else HTTPServer
        server = make(("127.0.0.1", 0), type("VMHandler", (BrokenHandler,), members))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        servers.append(server)
    try:
        yield RunningServer(*(f"http://127.0.0.1:{server.server_address[1]}" for server in servers))
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
