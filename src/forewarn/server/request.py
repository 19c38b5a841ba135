"""A request as the application sees it: what the checks ask of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forewarn.server.callers import Caller, Callers

    Receive = Callable[[], Awaitable[dict[str, Any]]]

LARGEST_BODY = 65536


class Request:
    """One request. The protocol knows who is calling, and has left it in the scope's state."""

    def __init__(self, scope: dict[str, Any], receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._scope = scope
        self._state: dict[str, Any] = scope["state"]
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        names = [name.lower() for name, _ in pairs]
        self.duplicate_query = len(names) != len(set(names))
        self.query = dict(zip(names, (value for _, value in pairs), strict=True))

    @property
    def caller(self) -> Caller | None:
        """Who called, as the fleet was then."""
        caller: Caller | None = self._state["caller"]
        return caller

    @property
    def counted(self) -> bool:
        """Whether the caller's rate has been asked for this request before."""
        return bool(self._state.get("counted", False))

    @property
    def wait_seconds(self) -> float | None:
        """How long it may still be held, where it was held before; None: as long as it says."""
        left: float | None = self._state.get("wait_seconds")
        return left

    def caller_now(self, callers: Callers) -> Caller | None:
        """Who is calling as the fleet is now."""
        peer, called = self._scope["client"], self._scope["server"]
        return callers.find(peer and peer[0], called and called[0], self._state.get("listener"))

    def headers(self, name: bytes) -> list[str]:
        """The values of a header, in their order."""
        return [value.decode("latin-1") for found, value in self._headers if found == name]

    @property
    def has_metadata_header(self) -> bool:
        values = self.headers(b"metadata")
        return bool(values) and all(value.strip().lower() == "true" for value in values)

    @property
    def broken(self) -> bool:
        """Whether the body ended because it could not be parsed."""
        return bool(self._state.get("broken", False))

    async def body(self) -> bytes | None:
        """The whole body; None when it is larger than it may be."""
        lengths = self.headers(b"content-length")
        if lengths and int(lengths[0]) > LARGEST_BODY:
            return None
        body = bytearray()
        while True:
            message = await self._receive()
            body += message.get("body", b"")
            if len(body) > LARGEST_BODY:
                return None
            if not message.get("more_body", False):
                return bytes(body)

    async def until_gone(self) -> None:
        """Returns when the client has hung up."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
