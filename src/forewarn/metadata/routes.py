"""What the metadata service answers: the checks in the contract's order, and one implementation of each answer.

A route returns a Reply at once, or an awaitable that gives one, or NEEDS_BODY.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from forewarn.errors import ForewarnError
from forewarn.metadata import answers, instance
from forewarn.metadata.answers import Answer, error_answer
from forewarn.metadata.long_poll import LongPoll
from forewarn.metadata.replies import Reply, build, error_reply, reply
from forewarn.metadata.request import EVENTS_PATH, Poll
from forewarn.wire.document import parse_start_requests, tag_matches
from forewarn.wire.prefer_header import parse_wait
from forewarn.wire.versions import INSTANCE_VERSIONS, ApiVersion, is_date

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forewarn.engine.engine import Engine
    from forewarn.metadata.callers import Caller
    from forewarn.metadata.long_poll import Waiters
    from forewarn.metadata.pages import Pages
    from forewarn.metadata.request import Request

    Result: TypeAlias = "Reply | NeedsBody | Awaitable[Any] | None"
    """An awaitable gives a Result in its turn. None: the connection was dealt with otherwise."""
    Route: TypeAlias = Callable[[Request, Caller], Result]

logger = logging.getLogger(__name__)

INSTANCE_PATH = "/metadata/instance"
VERSIONS_PATH = "/metadata/versions"
APPROVED = reply(Answer(200))
FAILED = reply(error_answer(500, "Internal server error."))


class NeedsBody:
    """The answer depends on the body, which is still on its way."""


NEEDS_BODY: Final = NeedsBody()


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator may choose of how the metadata service answers."""

    rate_limit: float = 5.0
    preview_versions: bool = False
    newer_versions: str = "reject"
    post_without_header: bool = False
    first_get_delay: timedelta = timedelta(0)


class Routes:
    """Answers requests, without knowing of sockets."""

    def __init__(
        self, engine: Engine, pages: Pages, waiters: Waiters, rules: Rules, versions: dict[str, ApiVersion]
    ) -> None:
        self._engine = engine
        self._pages = pages
        self._waiters = waiters
        self._rules = rules
        self._versions = versions
        self._enabling: dict[str, asyncio.Task[None]] = {}
        self.stopping = asyncio.Event()
        self._routes: dict[str, Route] = {
            EVENTS_PATH: self._scheduled_events,
            VERSIONS_PATH: self._list_versions,
            INSTANCE_PATH: self._instance,
        }

    def stop(self) -> None:
        """Answer what is held back, and hold nothing from now on."""
        self.stopping.set()
        self._waiters.stop()

    def answer(self, request: Request) -> Result:
        """The checks that every request has to pass, then its route."""
        caller = request.caller
        if caller is None:
            return reply(answers.NOT_A_VM)
        if not caller.allowed():
            return reply(answers.TOO_MANY)
        if request.values(b"x-forwarded-for"):
            return reply(answers.FORWARDED)
        path = request.target.lower_path
        route = self._routes.get(path)
        if route is None and path.startswith(INSTANCE_PATH + "/"):
            route = self._instance
        return reply(answers.NO_SUCH_PATH) if route is None else route(request, caller)

    # --- /metadata/scheduledevents --------------------------------------------------------------------

    def _scheduled_events(self, request: Request, caller: Caller) -> Result:
        if request.method not in ("GET", "POST"):
            return reply(answers.NO_SUCH_VERB)
        if request.target.has_duplicates:
            return reply(answers.DUPLICATE_QUERY)
        asked = request.target.query.get("api-version", "")
        if not request.has_metadata_header and self._header_enforced(request.method, asked):
            return reply(answers.NO_METADATA_HEADER)
        version = self._version(asked)
        if isinstance(version, Answer):
            return reply(version)
        if request.method == "POST":
            return self.approve(request)
        if_none_match = ",".join(request.values(b"if-none-match"))
        wait_seconds = parse_wait(request.values(b"prefer")) if if_none_match else None
        request.poll = Poll(version, if_none_match, wait_seconds)
        found = self.document(request.poll, caller)
        if found is not None:
            self._engine.polled.add(caller.group)
            return found
        return self._wait_for_document(request, request.poll, caller)

    def _header_enforced(self, method: str, asked: str) -> bool:
        if method == "POST" and self._rules.post_without_header:
            return False
        version = self._versions.get(asked)
        return version is None or version.header_enforced

    def _version(self, asked: str) -> ApiVersion | Answer:
        if asked in self._versions:
            return self._versions[asked]
        if not is_date(asked):
            return answers.BAD_VERSION
        newest = max(self._versions)
        if self._rules.newer_versions == "newest" and asked > newest:
            return self._versions[newest]
        return answers.UNKNOWN_VERSION

    def document(self, poll: Poll, caller: Caller, *, hold: bool = True) -> Reply | None:
        """The document, or 304. None: the group is not enabled, or the poll is to be held."""
        page = self._pages.page(caller.group, poll.version)
        if page is None:
            return None
        if not poll.if_none_match or not tag_matches(poll.if_none_match, page.tag):
            return Reply(200, page.found_head, poll.applied, page.body)
        if poll.wait_seconds and hold and not self._waiters.stopping:
            return None
        return Reply(304, page.unchanged_head, poll.applied, b"")

    def _wait_for_document(self, request: Request, poll: Poll, caller: Caller) -> Awaitable[Result]:
        """Enable the group first, or hold the poll until the document changes."""
        page = self._pages.page(caller.group, poll.version)
        if page is None:
            return self._enable_and_answer(request, poll, caller)
        self._engine.polled.add(caller.group)
        request.is_held = True
        look = partial(self._look, request, poll, page.tag)
        return LongPoll(self._waiters, look, poll.wait_seconds or 0).begin(caller.group)

    def _look(self, request: Request, poll: Poll, tag: str, is_over: bool) -> Result | str:
        """The answer to a poll that is held, if it is to be given now; else the group for which it waits on."""
        caller = request.connection.find_caller()
        if caller is None:
            return reply(answers.NOT_A_VM)
        page = self._pages.page(caller.group, poll.version)
        if page is None:
            return self._enable_and_answer(request, poll, caller)
        # `*` matches any document, and yet waits for another one.
        return self.document(poll, caller, hold=False) if is_over or page.tag != tag else caller.group

    async def _enable_and_answer(self, request: Request, poll: Poll, caller: Caller) -> Result:
        while self._pages.page(caller.group, poll.version) is None:
            await self._enable(caller)
            found = request.connection.find_caller()
            if found is None:
                return reply(answers.NOT_A_VM)
            caller = found
        self._engine.polled.add(caller.group)
        return self.document(poll, caller) or self._wait_for_document(request, poll, caller)

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
                    await self.stopping.wait()
        await self._engine.enable(caller.group, by=caller.vm)

    def approve(self, request: Request) -> Result:
        """The events that the body names may start. Called again when the body is there."""
        if request.is_too_large:
            return reply(answers.BODY_TOO_LARGE)
        if request.is_broken:
            return reply(answers.MALFORMED)
        if not request.body_complete:
            return NEEDS_BODY
        caller = request.caller
        if caller is None:
            return reply(answers.NOT_A_VM)
        try:
            ids = parse_start_requests(request.body)
        except ForewarnError as error:
            return error_reply(error)
        committed: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def tell(_: None, error: BaseException | None) -> None:
            if not committed.done():  # else the client is gone
                committed.set_result(APPROVED if error is None else failure(error))

        self._engine.approve_with_callback(ids, caller.vm, caller.group, tell)
        return committed

    # --- /metadata/instance, /metadata/versions -------------------------------------------------------

    def _instance(self, request: Request, caller: Caller) -> Result:
        rejection = _reject_reading(request)
        if rejection is not None:
            return rejection
        version = request.target.query.get("api-version", "")
        if version not in INSTANCE_VERSIONS:
            return reply(answers.BAD_INSTANCE_VERSION)
        fleet = self._engine.fleet
        subject = instance.Subject(fleet.vm(caller.vm), fleet.group(caller.group))
        parts = request.target.path.split("/")[3:]
        return build(instance.read(subject, version, parts, request.target.query.get("format")))

    def _list_versions(self, request: Request, _: Caller) -> Result:
        return _reject_reading(request) or reply(Answer(200, instance.versions_body()))


def _reject_reading(request: Request) -> Reply | None:
    if request.method != "GET":
        return reply(answers.ONLY_GET)
    if request.target.has_duplicates:
        return reply(answers.DUPLICATE_QUERY)
    if not request.has_metadata_header:
        return reply(answers.NO_METADATA_HEADER)
    return None


def failure(error: BaseException) -> Reply:
    """What is answered when an answer could not be made."""
    if isinstance(error, ForewarnError):
        return error_reply(error)
    logger.error("A request could not be answered.", exc_info=error)
    return FAILED
