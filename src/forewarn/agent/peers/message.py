"""The little HTTP that agents speak among themselves: one request and one answer for each connection."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote

from forewarn.agent.peers.seal import PATH

LARGEST_HEAD = 4096
END = b"\r\n\r\n"
_LINE = "\r\n"
_NONCE, _ASKER, _ASKED, _SEAL = "forewarn-nonce", "forewarn-asker", "forewarn-asked", "forewarn-seal"
_REASONS = {200: "OK", 401: "Unauthorized", 421: "Misdirected Request"}


class Ask(NamedTuple):
    """A request for the status of a machine."""

    nonce: str
    asker: str
    asked: str
    seal: str


class Reply(NamedTuple):
    """What came back."""

    status: int
    seal: str
    body: bytes


def write_ask(ask: Ask, host: str) -> bytes:
    """The request as bytes."""
    lines = (
        f"GET {PATH} HTTP/1.1",
        f"Host: {host}",
        f"{_NONCE}: {ask.nonce}",
        f"{_ASKER}: {_quoted(ask.asker)}",
        f"{_ASKED}: {_quoted(ask.asked)}",
        f"{_SEAL}: {ask.seal}",
        "Connection: close",
    )
    return _LINE.join((*lines, "", "")).encode("ascii", "replace")


def read_ask(head: bytes) -> Ask | None:
    """The request that these bytes are; None if they are none."""
    lines = head.decode("latin-1").split(_LINE)
    if lines[0] not in (f"GET {PATH} HTTP/1.1", f"GET {PATH} HTTP/1.0"):
        return None
    fields = _fields(lines[1:])
    if not all(fields.get(name) for name in (_NONCE, _ASKER, _ASKED, _SEAL)):
        return None
    return Ask(fields[_NONCE], _unquoted(fields[_ASKER]), _unquoted(fields[_ASKED]), fields[_SEAL])


def write_reply(status: int, seal: str = "", body: bytes = b"") -> bytes:
    """The answer as bytes."""
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", f"Content-Length: {len(body)}", "Connection: close"]
    if body:
        lines += ["Content-Type: application/json", "Cache-Control: no-store", f"{_SEAL}: {seal}"]
    return _LINE.join((*lines, "", "")).encode() + body


def read_reply(message: bytes) -> Reply | None:
    """The answer that these bytes are; None if they are none, or not a whole one."""
    head, end, body = message.partition(END)
    lines = head.decode("latin-1").split(_LINE)
    version, _, rest = lines[0].partition(" ")
    status = rest[:3]
    if not end or not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit()):
        return None
    fields = _fields(lines[1:])
    if fields.get("content-length", str(len(body))) != str(len(body)):
        return None
    return Reply(int(status), fields.get(_SEAL, ""), body)


def _fields(lines: list[str]) -> dict[str, str]:
    fields = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    return fields


def _quoted(name: str) -> str:
    return quote(name.encode("utf-8", "surrogatepass"), safe="")


def _unquoted(text: str) -> str:
    return unquote(text, errors="replace")
