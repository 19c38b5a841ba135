"""One keep-alive connection, with as little between the caller and the socket as can be."""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple

DOCUMENT = "/metadata/scheduledevents?api-version=2020-07-01"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def poll_bytes(if_none_match: str = "") -> bytes:
    """A GET of the document as it goes over the wire."""
    condition = f"If-None-Match: {if_none_match}\r\n" if if_none_match else ""
    return f"GET {DOCUMENT} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\n{condition}\r\n".encode()


def approval_bytes(event_id: str) -> bytes:
    """The approval of one event as it goes over the wire."""
    body = json.dumps({"StartRequests": [{"EventId": event_id}]})
    head = f"POST {DOCUMENT} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n{body}".encode()


class Connection:
    """Asks and waits for the whole answer."""

    def __init__(self, address: tuple[str, int], source: str = "127.0.0.1", seconds: float = 60) -> None:
        self.socket = socket.create_connection(address, timeout=seconds, source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, request: bytes) -> bytes:
        """The answer to a request, head and body; a status of 400 or more is an error."""
        self.socket.sendall(request)
        answer = self._more()
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += self._more()
        missing = end + 4 + _content_length(answer[:end]) - len(answer)
        while missing > 0:
            part = self._more()
            answer += part
            missing -= len(part)
        if answer[9:10] not in b"23":
            raise RuntimeError(f"{request.split(b' HTTP')[0]!r} was answered with {answer!r}")
        return answer

    def _more(self) -> bytes:
        part = self.socket.recv(65536)
        if not part:
            raise ConnectionError("The service closed the connection.")
        return part

    def ask(self, request: bytes) -> Answer:
        """The answer to a request, taken apart."""
        head, _, body = self.exchange(request).partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        return Answer(int(status_line.split()[1]), headers, body)

    def close(self) -> None:
        self.socket.close()


def is_whole(answer: bytes) -> bool:
    """Whether an answer has arrived to its end."""
    head, found, body = answer.partition(b"\r\n\r\n")
    return bool(found) and len(body) >= _content_length(head)


def _content_length(head: bytes) -> int:
    """How long the body is. An answer in chunks is not for this reader."""
    if b"transfer-encoding:" in head.lower():
        raise RuntimeError(f"An answer of known length was expected: {head!r}")
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


class Control:
    """The control API over one connection."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._connection = Connection(address)
        self._head = f"HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"

    @property
    def bare(self) -> socket.socket:
        """For who measures what happens in between."""
        return self._connection.socket

    def request(self, method: str, path: str, body: Any = None) -> bytes:
        """A request as it goes over the wire."""
        content = "" if body is None else json.dumps(body)
        return f"{method} {path} {self._head}Content-Length: {len(content)}\r\n\r\n{content}".encode()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return json.loads(self._connection.ask(self.request(method, path, body)).body)

    def follow(self, path: str) -> socket.socket:
        """The connection, on which an answer without an end has begun."""
        self.bare.sendall(self.request("GET", path))
        begun = b""
        while b"\nid: " not in begun:
            begun += self.bare.recv(65536)
        if not begun.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"GET {path} was answered with {begun!r}")
        return self.bare

    def restart(self, vm: str) -> str:
        """The id of the event that a restart makes."""
        answer = self.call("POST", "/v1/operations", {"cause": "restart", "vms": [vm]})
        event_id: str = answer["operations"][0]["events"][0]["id"]
        return event_id

    def close(self) -> None:
        self._connection.close()
