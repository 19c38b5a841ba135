"""A small HTTP client: one keep-alive connection, with as little overhead as possible."""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple

DOCUMENT = "/metadata/scheduledevents?api-version=2020-07-01"


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def poll_bytes(if_none_match: str = "") -> bytes:
    """Return the bytes of a GET request for the document."""
    condition = f"If-None-Match: {if_none_match}\r\n" if if_none_match else ""
    return f"GET {DOCUMENT} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\n{condition}\r\n".encode()


def approval_bytes(event_id: str) -> bytes:
    """Return the bytes of a request that approves one event."""
    body = json.dumps({"StartRequests": [{"EventId": event_id}]})
    head = f"POST {DOCUMENT} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n{body}".encode()


class Connection:
    """Sends a request and waits for the complete response."""

    def __init__(self, address: tuple[str, int], source: str = "127.0.0.1", timeout: float = 60) -> None:
        self.socket = socket.create_connection(address, timeout=timeout, source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, request: bytes) -> bytes:
        """Return the bytes of the response, with its headers. Raise an error if its status is 400 or higher."""
        self.socket.sendall(request)
        response = self._receive()
        while (end := response.find(b"\r\n\r\n")) < 0:
            response += self._receive()
        missing = end + 4 + _content_length(response[:end]) - len(response)
        while missing > 0:
            part = self._receive()
            response += part
            missing -= len(part)
        if response[9:10] not in b"23":
            raise RuntimeError(f"{request.split(b' HTTP')[0]!r} failed: {response!r}")
        return response

    def _receive(self) -> bytes:
        part = self.socket.recv(65536)
        if not part:
            raise ConnectionError("The service closed the connection.")
        return part

    def send(self, request: bytes) -> Response:
        """Return the parsed response."""
        head, _, body = self.exchange(request).partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        return Response(int(status_line.split()[1]), headers, body)

    def close(self) -> None:
        self.socket.close()


def is_complete(response: bytes) -> bool:
    """Return whether these bytes are a complete response."""
    head, found, body = response.partition(b"\r\n\r\n")
    return bool(found) and len(body) >= _content_length(head)


def _content_length(head: bytes) -> int:
    """Return the size of the body. Raise an error for a chunked response: this client cannot read it."""
    if b"transfer-encoding:" in head.lower():
        raise RuntimeError(f"The response has no Content-Length: {head!r}")
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


class Control:
    """A client of the control API with one connection."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._connection = Connection(address)
        self._head = f"HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"

    @property
    def raw_socket(self) -> socket.socket:
        """The socket, for benchmarks that measure the parts of a request."""
        return self._connection.socket

    def request_bytes(self, method: str, path: str, body: Any = None) -> bytes:
        content = "" if body is None else json.dumps(body)
        return f"{method} {path} {self._head}Content-Length: {len(content)}\r\n\r\n{content}".encode()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return json.loads(self._connection.send(self.request_bytes(method, path, body)).body)

    def follow(self, path: str) -> socket.socket:
        """Request a feed. Return the socket when the first row of the feed has arrived."""
        self.raw_socket.sendall(self.request_bytes("GET", path))
        response = b""
        while b"\nid: " not in response:
            response += self.raw_socket.recv(65536)
        if not response.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"GET {path} failed: {response!r}")
        return self.raw_socket

    def restart(self, vm: str) -> str:
        """Schedule a restart of the VM. Return the id of its event."""
        response = self.call("POST", "/v1/operations", {"cause": "restart", "vms": [vm]})
        event_id: str = response["operations"][0]["events"][0]["id"]
        return event_id

    def close(self) -> None:
        self._connection.close()
