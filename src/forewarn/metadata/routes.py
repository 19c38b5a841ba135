"""Routes of the metadata service: the checks in the contract's order, and one implementation of each response.

A route returns a RenderedResponse at once, or an awaitable of one, or NEEDS_BODY.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from forewarn.clock import real_seconds
from forewarn.errors import ForewarnError, NotLeading, Unavailable
from forewarn.metadata import fixed_responses, instance
from forewarn.metadata.fixed_responses import Response, error_response
from forewarn.metadata.long_poll import LongPoll
from forewarn.metadata.rendered_responses import (
    RenderedResponse,
    not_modified_response,
    render_error,
    render_response,
    rendered,
)
from forewarn.metadata.request import EVENTS_PATH, Poll
from forewarn.system.logs import OncePerMinute, get_logger
from forewarn.wire.document import is_newer, newest_tag, parse_start_requests, tag_matches
from forewarn.wire.prefer_header import parse_wait
from forewarn.wire.versions import INSTANCE_VERSIONS, ApiVersion, is_date

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forewarn.engine.engine import Engine
    from forewarn.metadata.callers import Caller
    from forewarn.metadata.long_poll import LongPolls
    from forewarn.metadata.rendered_documents import RenderedDocuments
    from forewarn.metadata.request import MetadataRequest

    Result: TypeAlias = "RenderedResponse | NeedsBody | Awaitable[Any] | None"
    """An awaitable yields another Result. None: the route has already written to or closed the connection."""
    Route: TypeAlias = Callable[[MetadataRequest, Caller], Result]

_log = get_logger(__name__)
_warnings = OncePerMinute()

INSTANCE_PATH = "/metadata/instance"
VERSIONS_PATH = "/metadata/versions"
APPROVED = rendered(Response(200))
FAILED = rendered(error_response(500, "Internal server error."))


class NeedsBody:
    """Marker: the route needs the body, which has not arrived completely."""


NEEDS_BODY: Final = NeedsBody()


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """The operator's settings for the behaviour of the metadata service."""

    rate_limit: float = 5.0
    preview_versions: bool = False
    post_without_header: bool = False
    first_get_delay: timedelta = timedelta(0)
    access_log: bool = False


class Routes:
    """Responds to requests. Knows nothing of sockets."""

    def __init__(
        self,
        engine: Engine,
        documents: RenderedDocuments,
        long_polls: LongPolls,
        options: MetadataOptions,
        versions: dict[str, ApiVersion],
    ) -> None:
        self._engine = engine
        self._documents = documents
        self._long_polls = long_polls
        self._options = options
        self._versions = versions
        self._enabling: dict[str, asyncio.Task[None]] = {}
        self.stopping = asyncio.Event()
        self._routes: dict[str, Route] = {
            EVENTS_PATH: self._scheduled_events,
            VERSIONS_PATH: self._list_versions,
            INSTANCE_PATH: self._instance,
        }

    def stop(self) -> None:
        """Complete delayed responses and long polls, and delay no further requests."""
        self.stopping.set()
        self._long_polls.stop()

    def respond(self, request: MetadataRequest) -> Result:
        """Run the checks for every request, then its route."""
        caller = request.caller
        if caller is None:
            return rendered(fixed_responses.NOT_A_VM)
        if not caller.take_token():
            return rendered(fixed_responses.TOO_MANY)
        if request.values(b"x-forwarded-for"):
            return rendered(fixed_responses.FORWARDED)
        path = request.target.lower_path
        route = self._routes.get(path)
        if route is None and path.startswith(INSTANCE_PATH + "/"):
            route = self._instance
        return rendered(fixed_responses.UNKNOWN_PATH) if route is None else route(request, caller)

    # --- /metadata/scheduledevents --------------------------------------------------------------------

    def _scheduled_events(self, request: MetadataRequest, caller: Caller) -> Result:
        if request.method not in ("GET", "POST"):
            return rendered(fixed_responses.METHOD_NOT_ALLOWED)
        if request.target.has_duplicates:
            return rendered(fixed_responses.DUPLICATE_QUERY)
        requested = request.target.query.get("api-version", "")
        if not request.has_metadata_header and self._header_enforced(request.method, requested):
            return rendered(fixed_responses.NO_METADATA_HEADER)
        version = self._version(requested)
        if isinstance(version, Response):
            return rendered(version)
        if request.method == "POST":
            return self.approve(request)
        if_none_match = ",".join(request.values(b"if-none-match"))
        wait_seconds = parse_wait(request.values(b"prefer")) if if_none_match else None
        request.poll = Poll(version, if_none_match, wait_seconds)
        found = self.document(request.poll, caller)
        if found is not None:
            self._engine.polled.add(caller.scope)
            return found
        return self._wait_for_document(request, request.poll, caller)

    def _header_enforced(self, method: str, requested: str) -> bool:
        if method == "POST" and self._options.post_without_header:
            return False
        version = self._versions.get(requested)
        return version is None or version.header_enforced

    def _version(self, requested: str) -> ApiVersion | Response:
        if requested in self._versions:
            return self._versions[requested]
        if not is_date(requested):
            return fixed_responses.BAD_VERSION
        return fixed_responses.UNKNOWN_VERSION

    def document(
        self, poll: Poll, caller: Caller, *, hold: bool = True, catch_up: bool = True
    ) -> RenderedResponse | None:
        """Return the document or a 304; None if the scope is not enabled, or the poll must wait.

        A poll waits for a change, or until this node has caught up: the client knows a newer document.
        """
        page = self._documents.find(caller.scope, poll.version)
        if page is None:
            return None
        if not poll.if_none_match or not tag_matches(poll.if_none_match, page.tag):
            if catch_up and self._engine.forwarder is not None and is_newer(poll.if_none_match, page.tag):
                return None
            return RenderedResponse(200, page.ok_head, poll.applied, page.body)
        if poll.wait_seconds and hold and not self._long_polls.stopping:
            return None
        return RenderedResponse(304, page.not_modified_head, poll.applied, b"")

    def _wait_for_document(
        self, request: MetadataRequest, poll: Poll, caller: Caller, *, catch_up: bool = True
    ) -> Awaitable[Result]:
        """Enable the scope, catch up with other nodes, or hold the poll until the document changes."""
        page = self._documents.find(caller.scope, poll.version)
        if page is None:
            return self._enable_and_respond(request, poll, caller)
        self._engine.polled.add(caller.scope)
        if catch_up and is_newer(poll.if_none_match, page.tag):
            return self._catch_up(request, poll, caller)
        request.is_held = True
        caller.polls.add(self._engine.clock)
        check = partial(self._check_long_poll, request, poll, page.tag)
        return LongPoll(self._long_polls, check, poll.wait_seconds or 0).begin(caller.scope)

    def _check_long_poll(self, request: MetadataRequest, poll: Poll, tag: str, is_expired: bool) -> Result | str:
        """Return the response to a held poll if it is due, otherwise the scope to keep waiting for."""
        caller = request.connection.find_caller()
        if caller is None:
            return rendered(fixed_responses.NOT_A_VM)
        page = self._documents.find(caller.scope, poll.version)
        if page is None:
            return self._enable_and_respond(request, poll, caller)
        # `*` matches every document, but still waits for a different one.
        if not is_expired and page.tag == tag:
            return caller.scope
        return self.document(poll, caller, hold=False) or self._catch_up(request, poll, caller)

    async def _catch_up(self, request: MetadataRequest, poll: Poll, caller: Caller) -> Result:
        """Wait until this node has the document that the client knows from another node, or a later one.

        If it gets neither, it responds that it knows nothing newer, never with an older document. Only if it has every
        commit of that time, no node has ever sent this tag.
        """
        forwarder = self._engine.forwarder

        def knows_newer() -> bool:
            page = self._documents.find(caller.scope, poll.version)
            return page is not None and is_newer(poll.if_none_match, page.tag)

        is_behind = forwarder is not None and not await forwarder.catch_up(knows_newer)
        found = request.connection.find_caller()
        if found is None:
            return rendered(fixed_responses.NOT_A_VM)
        page = self._documents.find(found.scope, poll.version)
        if page is not None and is_behind and is_newer(poll.if_none_match, page.tag):
            tag = newest_tag(poll.if_none_match, page.tag)
            return RenderedResponse(304, not_modified_response(tag).head, poll.applied, b"")
        document = self.document(poll, found, catch_up=False)
        return document or self._wait_for_document(request, poll, found, catch_up=False)

    async def _enable_and_respond(self, request: MetadataRequest, poll: Poll, caller: Caller) -> Result:
        while self._documents.find(caller.scope, poll.version) is None:
            await self._enable(caller)
            found = request.connection.find_caller()
            if found is None:
                return rendered(fixed_responses.NOT_A_VM)
            caller = found
        self._engine.polled.add(caller.scope)
        return self.document(poll, caller) or self._wait_for_document(request, poll, caller)

    async def _enable(self, caller: Caller) -> None:
        """Enable the scope on its first GET. Concurrent GETs share the same task."""
        task = self._enabling.get(caller.scope)
        if task is None:
            task = asyncio.create_task(self._enable_after_delay(caller))
            self._enabling[caller.scope] = task
            task.add_done_callback(lambda _: self._enabling.pop(caller.scope, None))
        # A client that disconnects must not cancel the task for the others.
        await asyncio.shield(task)

    async def _enable_after_delay(self, caller: Caller) -> None:
        delay_seconds = self._options.first_get_delay.total_seconds()
        if delay_seconds:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_seconds):
                    await self.stopping.wait()
        vm = self._engine.fleet.vms.get(caller.vm)
        if vm is not None and self._engine.fleet.scope_of(vm) == caller.scope:  # otherwise it has left the scope
            try:
                await self._engine.enable(caller.scope, by=caller.vm)
            except NotLeading:  # this node has just stopped leading
                if self._engine.forwarder is None:
                    raise
                await self._engine.forwarder.enable(caller.scope, by=caller.vm)

    def approve(self, request: MetadataRequest) -> Result:
        """Approve the events that the body names. Called again when the body is complete."""
        if request.is_too_large:
            return rendered(fixed_responses.BODY_TOO_LARGE)
        if request.is_broken:
            return rendered(fixed_responses.MALFORMED)
        if not request.body_complete:
            return NEEDS_BODY
        # The fleet may have changed since the head arrived.
        caller = request.caller = request.connection.find_caller()
        if caller is None:
            return rendered(fixed_responses.NOT_A_VM)
        try:
            ids = parse_start_requests(request.body)
        except ForewarnError as error:
            return render_error(error)
        committed: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def on_committed(_: None, error: BaseException | None) -> None:
            if error is None and self._engine.document(caller.scope).enabled:  # a POST does not enable a scope
                self._engine.polled.add(caller.scope)
            if committed.done():  # the client has disconnected
                return
            # This node may have just stopped leading.
            if isinstance(error, NotLeading) and self._engine.forwarder is not None:
                self._engine.forwarder.approve(ids, caller.vm, caller.scope, on_committed)
                return
            committed.set_result(APPROVED if error is None else failure(error))

        self._engine.approve_with_callback(ids, caller.vm, caller.scope, on_committed)
        return committed

    # --- /metadata/instance, /metadata/versions -------------------------------------------------------

    def _instance(self, request: MetadataRequest, caller: Caller) -> Result:
        rejection = _check_read_request(request)
        if rejection is not None:
            return rejection
        version = request.target.query.get("api-version", "")
        if version not in INSTANCE_VERSIONS:
            return rendered(fixed_responses.BAD_INSTANCE_VERSION)
        fleet = self._engine.fleet
        subject = instance.InstanceContext(fleet.vm(caller.vm), fleet.group_of(caller.scope))
        parts = request.target.path.split("/")[3:]
        return render_response(instance.read(subject, version, parts, request.target.query.get("format")))

    def _list_versions(self, request: MetadataRequest, _: Caller) -> Result:
        return _check_read_request(request) or rendered(Response(200, instance.versions_body()))


def _check_read_request(request: MetadataRequest) -> RenderedResponse | None:
    if request.method != "GET":
        return rendered(fixed_responses.GET_ONLY)
    if request.target.has_duplicates:
        return rendered(fixed_responses.DUPLICATE_QUERY)
    if not request.has_metadata_header:
        return rendered(fixed_responses.NO_METADATA_HEADER)
    return None


def failure(error: BaseException) -> RenderedResponse:
    """Return the response to an exception, and log what the client does not see."""
    if isinstance(error, Unavailable) and _warnings.allows(type(error).__name__, real_seconds()):
        _log.warning("metadata_unavailable", "Cannot process a request of a VM.", error=str(error))
    if isinstance(error, ForewarnError):
        return render_error(error)
    _log.error("metadata_request_failed", "Unexpected error while processing a request.", exc_info=error)
    return FAILED
