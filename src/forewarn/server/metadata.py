"""/metadata the slow way: every check in the contract's order, every answer of its section 3."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from forewarn.core.approvals import approve
from forewarn.errors import ForewarnError, UnknownVM
from forewarn.server.pages import SERVER
from forewarn.server.problems import metadata_answer
from forewarn.wire import instance, refusals
from forewarn.wire.answer import Answer
from forewarn.wire.document import parse_start_requests, tag_matches
from forewarn.wire.versions import ApiVersion, available_versions, is_date

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forewarn.engine import Engine
    from forewarn.server.callers import Caller
    from forewarn.server.pages import Pages
    from forewarn.server.stamp import Stamp

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

EVENTS_PATH = "/metadata/scheduledevents"
INSTANCE_PATH = "/metadata/instance"
VERSIONS_PATH = "/metadata/versions"
LARGEST_BODY = 65536


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator may choose of how the metadata service answers."""

    rate_limit: float = 5.0
    preview_versions: bool = False
    newer_versions: str = "refuse"
    post_without_header: bool = False
    first_get_delay: timedelta = timedelta(0)


class Metadata:
    """The ASGI application of the metadata service. `caller` is in the scope's state: the protocol knows it."""

    def __init__(self, engine: Engine, pages: Pages, stamp: Stamp, rules: Rules) -> None:
        self._engine = engine
        self._pages = pages
        self._stamp = stamp
        self._rules = rules
        self._versions = available_versions(preview=rules.preview_versions)
        self._enabling: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Answer what is held back."""
        self._stopping.set()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except UnknownVM:
            answer = refusals.NOT_A_VM  # it left the fleet while its request was under way
        except ForewarnError as error:
            answer = metadata_answer(error)
        headers = [(name.encode(), value.encode()) for name, value in answer.headers]
        if answer.status != 304:
            if answer.body or answer.status != 200:
                headers.insert(0, (b"content-type", answer.content_type.encode()))
            headers.insert(len(headers) - len(answer.headers), (b"content-length", b"%d" % len(answer.body)))
        headers += [(b"server", SERVER.encode()), *self._stamp.headers()]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, request: Request) -> Answer:
        caller = request.caller
        if caller is None:
            return refusals.NOT_A_VM
        if not caller.allowed():
            return refusals.TOO_MANY
        if request.headers(b"x-forwarded-for"):
            return refusals.FORWARDED
        path = request.path.lower()
        if path == EVENTS_PATH:
            return await self._scheduled_events(request, caller)
        if path == VERSIONS_PATH:
            return self._versions_list(request)
        if path == INSTANCE_PATH or path.startswith(INSTANCE_PATH + "/"):
            return self._instance(request, caller)
        return refusals.NO_SUCH_PATH

    # --- /metadata/scheduledevents ----------------------------------------------------------------

    async def _scheduled_events(self, request: Request, caller: Caller) -> Answer:
        if request.method not in ("GET", "POST"):
            return refusals.NO_SUCH_VERB
        if request.duplicate_query:
            return refusals.DUPLICATE_QUERY
        asked = request.query.get("api-version", "")
        if not request.has_metadata_header and self._header_enforced(request.method, asked):
            return refusals.NO_METADATA_HEADER
        version = self._version(asked)
        if isinstance(version, Answer):
            return version
        if request.method == "POST":
            return await self._approve(request, caller)
        return await self._document(request, caller, version)

    def _header_enforced(self, method: str, asked: str) -> bool:
        if method == "POST" and self._rules.post_without_header:
            return False
        version = self._versions.get(asked)
        return version is None or version.header_enforced

    def _version(self, asked: str) -> ApiVersion | Answer:
        if asked in self._versions:
            return self._versions[asked]
        if not is_date(asked):
            return refusals.BAD_VERSION
        newest = max(self._versions)
        if self._rules.newer_versions == "newest" and asked > newest:
            return self._versions[newest]
        return refusals.UNKNOWN_VERSION

    async def _document(self, request: Request, caller: Caller, version: ApiVersion) -> Answer:
        page = self._pages.page(caller.group, version)
        while page is None:
            await self._enable(caller)
            page = self._pages.page(caller.group, version)
        self._engine.asked.add(caller.group)
        if_none_match = ",".join(request.headers(b"if-none-match"))
        if if_none_match and tag_matches(if_none_match, page.tag):
            return Answer(304, headers=(("etag", page.tag),))
        return Answer(200, page.body, headers=(("etag", page.tag),))

    async def _enable(self, caller: Caller) -> None:
        """The first GET of a group enables its service; others that come meanwhile wait with it."""
        task = self._enabling.get(caller.group)
        if task is None:
            task = asyncio.create_task(self._enable_after_delay(caller))
            self._enabling[caller.group] = task
            task.add_done_callback(lambda _: self._enabling.pop(caller.group, None))
        # A caller that gives up must not take the others' answer with it.
        await asyncio.shield(task)

    async def _enable_after_delay(self, caller: Caller) -> None:
        delay_seconds = self._rules.first_get_delay.total_seconds()
        if delay_seconds:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_seconds):
                    await self._stopping.wait()
        await self._engine.enable(caller.group, by=caller.vm)

    async def _approve(self, request: Request, caller: Caller) -> Answer:
        body = await request.body()
        if body is None:
            return refusals.BODY_TOO_LARGE
        if request.broken:
            return refusals.MALFORMED
        await self._engine.order(approve, parse_start_requests(body), caller.vm, caller.group)
        return Answer(200)

    # --- /metadata/instance, /metadata/versions -----------------------------------------------------

    def _instance(self, request: Request, caller: Caller) -> Answer:
        refusal = self._refuse_reading(request)
        if refusal is not None:
            return refusal
        version = request.query.get("api-version", "")
        if version not in instance.INSTANCE_VERSIONS:
            return refusals.BAD_INSTANCE_VERSION
        fleet = self._engine.fleet
        subject = instance.Subject(fleet.vm(caller.vm), fleet.group(caller.group))
        parts = request.path.split("/")[3:]
        return instance.read(subject, version, parts, request.query.get("format"))

    def _versions_list(self, request: Request) -> Answer:
        return self._refuse_reading(request) or Answer(200, instance.versions_body())

    def _refuse_reading(self, request: Request) -> Answer | None:
        if request.method != "GET":
            return refusals.ONLY_GET
        if request.duplicate_query:
            return refusals.DUPLICATE_QUERY
        if not request.has_metadata_header:
            return refusals.NO_METADATA_HEADER
        return None


class Request:
    """What the checks ask of a request."""

    def __init__(self, scope: dict[str, Any], receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.caller: Caller | None = scope["state"]["caller"]
        self._state: dict[str, Any] = scope["state"]
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        names = [name.lower() for name, _ in pairs]
        self.duplicate_query = len(names) != len(set(names))
        self.query = dict(zip(names, (value for _, value in pairs), strict=True))

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
