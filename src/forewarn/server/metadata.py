"""/metadata the slow way: every check in the contract's order, every answer of its section 3."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from forewarn.core.approvals import approve
from forewarn.errors import ForewarnError, UnknownVM
from forewarn.server.fastlane import FastLane
from forewarn.server.lane import EVENTS_PATH
from forewarn.server.pages import SERVER
from forewarn.server.problems import metadata_answer
from forewarn.server.request import Request
from forewarn.server.waiters import Bell
from forewarn.wire import instance, refusals
from forewarn.wire.answer import Answer
from forewarn.wire.document import parse_start_requests, tag_matches
from forewarn.wire.preferences import parse_wait
from forewarn.wire.versions import ApiVersion, is_date

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forewarn.server.callers import Caller
    from forewarn.server.lane import Lane
    from forewarn.server.pages import Page
    from forewarn.server.request import Receive

    Send = Callable[[dict[str, Any]], Awaitable[None]]

INSTANCE_PATH = "/metadata/instance"
VERSIONS_PATH = "/metadata/versions"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator may choose of how the metadata service answers."""

    rate_limit: float = 5.0
    preview_versions: bool = False
    newer_versions: str = "refuse"
    post_without_header: bool = False
    first_get_delay: timedelta = timedelta(0)


class ClientGone(Exception):
    """Nobody is there any more to be answered."""


class Metadata:
    """The ASGI application of the metadata service. `caller` is in the scope's state: the protocol knows it."""

    connection: type[FastLane] = FastLane
    """What it wants a connection to be."""

    def __init__(self, lane: Lane, rules: Rules) -> None:
        self._lane = lane
        self._engine = lane.engine
        self._pages = lane.pages
        self._waiters = lane.waiters
        self._rules = rules
        self._versions = lane.versions
        self._enabling: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Answer what is held back."""
        self._stopping.set()
        self._waiters.stop()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except ClientGone:
            return
        except UnknownVM:
            answer = refusals.NOT_A_VM  # it left the fleet while its request was under way
        except ForewarnError as error:
            answer = metadata_answer(error)
        except Exception:
            self._count(request, 500)  # which is what uvicorn makes of it
            raise
        await self._send(request, answer, send)

    async def _send(self, request: Request, answer: Answer, send: Send) -> None:
        """Count an answer, and send it with the headers that every answer has."""
        self._count(request, answer.status)
        headers = [(name.encode(), value.encode()) for name, value in answer.headers]
        if answer.status != 304:
            if answer.body or answer.status != 200:
                headers.insert(0, (b"content-type", answer.content_type.encode()))
            headers.insert(len(headers) - len(answer.headers), (b"content-length", b"%d" % len(answer.body)))
        headers += [(b"server", SERVER.encode()), *self._lane.stamp.headers()]
        if answer.applied:
            headers.append((b"preference-applied", answer.applied.encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    def _count(self, request: Request, status: int) -> None:
        if request.path.lower() != EVENTS_PATH:
            return
        if request.method == "GET":
            self._lane.tallies.poll(request.query.get("api-version", ""), status).count += 1
        elif request.method == "POST":
            self._lane.tallies.approval(status).count += 1

    async def _answer(self, request: Request) -> Answer:
        caller = request.caller
        if caller is None:
            return refusals.NOT_A_VM
        if not request.counted and not caller.allowed():
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
        page = await self._page(caller, version)
        self._engine.asked.add(caller.group)
        if_none_match = ",".join(request.headers(b"if-none-match"))
        if not if_none_match:
            return Answer(200, page.body, headers=(("etag", page.tag),))
        wait_seconds = parse_wait(request.headers(b"prefer"))
        if wait_seconds and tag_matches(if_none_match, page.tag):
            left_seconds = request.wait_seconds if request.wait_seconds is not None else wait_seconds
            page = await self._hold(request, caller, version, page, left_seconds)
        applied = "" if wait_seconds is None else f"wait={wait_seconds}"
        if tag_matches(if_none_match, page.tag):
            return Answer(304, headers=(("etag", page.tag),), applied=applied)
        return Answer(200, page.body, headers=(("etag", page.tag),), applied=applied)

    async def _page(self, caller: Caller, version: ApiVersion) -> Page:
        page = self._pages.page(caller.group, version)
        while page is None:
            await self._enable(caller)
            page = self._pages.page(caller.group, version)
        return page

    async def _hold(self, request: Request, caller: Caller, version: ApiVersion, page: Page, seconds: float) -> Page:
        """What the document is when it has changed, the time is over, or the service stops."""
        tag, over = page.tag, False
        bell = Bell(self._waiters, seconds)
        gone = asyncio.create_task(request.until_gone())
        gone.add_done_callback(lambda _: bell.wake())
        try:
            while page.tag == tag and not over and not self._waiters.stopping:
                over = not await bell.wait(caller.group)
                if gone.done():
                    raise ClientGone
                found = request.caller_now(self._lane.callers)
                if found is None:
                    raise UnknownVM(name=caller.vm, hint="")
                caller, page = found, await self._page(found, version)
        finally:
            gone.cancel()
        return page

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
