"""Changes on a node that follows: it sends them to the leader, and answers when they are committed and applied here.

Approving and enabling can be repeated without an effect, so a node repeats them if the leader was lost. Other requests
are repeated only if they certainly had no effect.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.clock import real_seconds, seconds_since_boot
from forewarn.core.durations import from_text, to_text
from forewarn.errors import (
    ForewarnError,
    LeaderLost,
    NoLeader,
    NotLeading,
    ServiceStopping,
    StoreFailed,
    StoreOutcomeUnknown,
)
from forewarn.nodes.link import LinkServer, open_link
from forewarn.system.addresses import read_host_port
from forewarn.system.futures import resolve
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Sequence

    from forewarn.nodes.link import Link
    from forewarn.nodes.node import Node
    from forewarn.ports import NodeRow

_log = get_logger(__name__)

WRITE_SECONDS = 10.0
"""How long a change waits for a leader."""
CUT_OFF_SECONDS, CUT_OFF_WRITE_SECONDS = 4.0, 1.5
"""A node that has heard nothing from the database for the first time does not learn who leads. A change waits there for
the second time only: its client can try another node."""
ANSWER_SECONDS = 60.0
"""How long a change that cannot be repeated waits for the answer. A test of a webhook, or a large fleet, takes long."""
APPLY_SECONDS = 5.0
"""How long the answer to a committed change waits until this node has applied it."""
CATCH_UP_SECONDS = 1.0
"""How long a node that is behind waits for what a client knows from another node."""
RETRY_SECONDS = 0.2
GRACE_SECONDS = 0.5
"""An earlier leader has this long to answer what it got."""
SEEN_SECONDS = 5.0
"""How often a node sends to the leader which scopes have polled."""


class _Refusal(NamedTuple):
    """The last attempt to connect to a leader that failed."""

    node: str
    seconds: float
    """When it failed, by the monotonic clock."""
    problem: str


class NodeForwarder:
    """Sends changes to the leader, and receives those of other nodes."""

    def __init__(self, node: Node, secret: str, tls: ssl.SSLContext | None) -> None:
        """`tls` is the context of this node's own certificate; None: connections are not encrypted."""
        self._node = node
        self.engine = node.engine
        self._tls = tls
        self.handlers: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "approve": self._do_approve,
            "enable": self._do_enable,
            "seen": self._do_seen,
        }
        """What the leader does for each kind of request."""
        self.forwarded = 0
        """Number of changes that were sent to the leader, since the start."""
        self.failed = 0
        """How many of them got no answer."""
        self._server = LinkServer(node.row.id, secret, self._handle, lambda: self.engine.position, node.rows_after)
        self._link: Link | None = None
        self._linked = ""
        """The id of the node at the other end."""
        self._linking = asyncio.Lock()
        self._refused = _Refusal("", 0.0, "")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._seen_task: asyncio.Task[None] | None = None
        node.on_new_leader.append(self._leave_earlier_leader)

    def use_secret(self, secret: str) -> None:
        """Use the secret of the service, which is in the database."""
        self._server.secret = secret

    async def start(self, listener: socket.socket) -> None:
        await self._server.start(listener, self._tls)
        self._seen_task = asyncio.create_task(self._send_seen())

    async def stop(self) -> None:
        if self._seen_task is not None:
            self._seen_task.cancel()
        if self._link is not None:
            self._link.close()
        self._server.stop()
        await asyncio.sleep(0)

    # --- On the node that received the request --------------------------------------------------------

    def approve(
        self, ids: Sequence[str], by: str, scope: str, done: Callable[[None, BaseException | None], None]
    ) -> None:
        """Approve events of a scope. Calls `done` when the approval is committed or has failed."""
        task = asyncio.create_task(self._approve([*ids], by, scope, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _approve(
        self, ids: list[str], by: str, scope: str, done: Callable[[None, BaseException | None], None]
    ) -> None:
        try:
            await self.request("approve", [ids, by, scope], repeatable=True)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            done(None, error)
        else:
            done(None, None)

    async def enable(self, scope: str, by: str) -> None:
        """Enable scheduled events for a scope."""
        await self.request("enable", [scope, by], repeatable=True)

    @property
    def is_certain(self) -> bool:
        """Whether this node leads, and its lease has not ended."""
        return self.engine.leads and self._node.lease_remaining_seconds > 0

    @property
    def has_leader(self) -> bool:
        """Whether this node leads, or knows who does."""
        return self.engine.leads or self._node.leader is not None

    def has_commits_until(self, seconds: float) -> bool:
        """Whether this node certainly has every commit that another node had at this time, in seconds since boot.

        Followers can apply a commit before the leader knows that it has succeeded.
        """
        if self.engine.leads:
            return self.is_certain and not self.engine.is_committing_since(seconds)
        return self._node.caught_up_at >= seconds

    async def catch_up(self, is_behind: Callable[[], bool]) -> bool:
        """Wait for what a client knows from another node, for a second at most.

        Returns whether this node certainly has every commit that another node had when the wait began.
        """
        began_at = seconds_since_boot()
        while is_behind() and not self.has_commits_until(began_at):
            left = began_at + CATCH_UP_SECONDS - seconds_since_boot()
            if left <= 0:
                return False
            await self._node.wait_for_change(left)
        return self.has_commits_until(began_at)

    async def request(self, kind: str, payload: Any, *, repeatable: bool) -> Any:
        """Send a request to the leader. Returns its answer when this node has applied the change.

        Raises NoLeader after a bounded time, and LeaderLost if it is not known whether the change was made.
        """
        began_at = real_seconds()
        ends_at = began_at + WRITE_SECONDS
        problem, is_cut_off = "this node does not know who leads", False
        lost: LeaderLost | StoreOutcomeUnknown | None = None
        while not is_cut_off and (left := ends_at - real_seconds()) > 0:
            has_waited = real_seconds() - began_at > CUT_OFF_WRITE_SECONDS
            is_cut_off = has_waited and self._node.is_cut_off(CUT_OFF_SECONDS)
            try:
                if self.is_certain:
                    return await self.handlers[kind](payload)
                if not self.engine.leads and (leader := self._node.leader) is not None:
                    return await self._send(leader, kind, payload, left, left if repeatable else ANSWER_SECONDS)
            except (NotLeading, ServiceStopping, NoLeader) as error:  # nothing has changed
                problem = str(error) if isinstance(error, NoLeader) else "the leader is changing"
            except (LeaderLost, StoreOutcomeUnknown) as error:
                if not repeatable:
                    self.failed += 1
                    raise
                lost = error
            if not is_cut_off:
                await self._node.wait_for_change(min(RETRY_SECONDS, left))
        self.failed += 1
        if is_cut_off:
            problem = "this node cannot reach the database"
        if lost is not None:  # a leader got it, and may have made the change
            raise lost
        raise NoLeader(problem=problem.rstrip("."))

    async def _send(
        self, leader: NodeRow, kind: str, payload: Any, connect_seconds: float, answer_seconds: float
    ) -> Any:
        link = self._open_link(leader)
        if link is None:
            try:
                async with asyncio.timeout(connect_seconds):
                    link = await self._open(leader)
            except TimeoutError:
                raise NoLeader(problem="this node cannot connect to the leader") from None
        self.forwarded += 1
        sent_at = real_seconds()
        try:
            async with asyncio.timeout(answer_seconds):
                answer = await link.request(kind, payload, self.engine.position)
        except TimeoutError:
            if link.received_at < sent_at:  # nobody gets an answer: the connection may be lost without a word
                link.close()
            raise LeaderLost(problem="it did not respond") from None
        try:
            await self._node.apply(answer.rows)
        except StoreFailed as error:  # the change is committed, so its answer must not be an error
            _log.warning("rows_not_applied", "Cannot apply a change; the journal has it.", kind=kind, error=str(error))
        if not await self._node.wait_until_applied(answer.position, APPLY_SECONDS):
            _log.warning("change_not_applied", "A change is committed, but this node has not applied it.", kind=kind)
        return answer.result

    def _open_link(self, leader: NodeRow) -> Link | None:
        """Return the open connection to this leader, which requests share; None if there is none."""
        link = self._link
        return link if link is not None and link.is_open and self._linked == leader.id else None

    async def _open(self, leader: NodeRow) -> Link:
        """Open a connection to the leader. Requests share the attempt."""
        asked_at = real_seconds()
        async with self._linking:
            if (link := self._open_link(leader)) is not None:
                return link
            if self._node.leader is None or self._node.leader.id != leader.id:  # it has waited for another attempt
                raise NoLeader(problem="the leader is changing")
            if self._refused.node == leader.id and self._refused.seconds >= asked_at:
                raise NoLeader(problem=self._refused.problem)
            if self._link is not None:
                self._link.close()
                self._link = None
            try:
                link = await self._connect(leader)
            except NoLeader as error:
                self._refused = _Refusal(leader.id, real_seconds(), str(error.fields["problem"]))
                raise
            self._link, self._linked = link, leader.id
            return link

    async def _connect(self, leader: NodeRow) -> Link:
        try:
            host, port = read_host_port(leader.address)
            tls = _trust(leader.certificate)
        except (OSError, ValueError) as error:
            raise NoLeader(problem=f"address or certificate of the leader cannot be used: {error}") from error
        return await open_link(host, port, tls, node=self._node.row.id, secret=self._server.secret, expected=leader.id)

    def _leave_earlier_leader(self) -> None:
        """Wait no longer for the answers of an earlier leader: its machine may be gone without a word."""
        link = self._link
        if link is not None and link.is_open and self._node.leader is not None and self._node.leader.id != self._linked:
            asyncio.get_running_loop().call_later(GRACE_SECONDS, link.close)

    async def _send_seen(self) -> None:
        """Tell the leader which scopes have polled here."""
        while True:
            await asyncio.sleep(SEEN_SECONDS)
            if self.engine.leads or self._node.leader is None:
                continue
            times = self.engine.last_seen.take_unwritten()
            if not times:
                continue
            try:
                payload = {scope: to_text(time) for scope, time in times.items()}
                await self._send(self._node.leader, "seen", payload, WRITE_SECONDS, WRITE_SECONDS)
            except Exception as error:  # noqa: BLE001 - the next time
                if not isinstance(error, ForewarnError):
                    _log.exception("last_seen_not_sent", "Unexpected error while sending last-seen times; retrying.")
                self.engine.last_seen.record(times)

    # --- On the leader ----------------------------------------------------------------------------

    async def _handle(self, kind: str, payload: Any) -> Any:
        if not self.is_certain or kind not in self.handlers:
            raise NotLeading
        return await self.handlers[kind](payload)

    async def _do_approve(self, payload: Any) -> None:
        ids, by, scope = payload
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.engine.approve_with_callback(ids, by, scope, partial(resolve, done))
        await done

    async def _do_enable(self, payload: Any) -> None:
        scope, by = payload
        await self.engine.enable(scope, by)

    async def _do_seen(self, payload: Any) -> None:
        self.engine.last_seen.record({scope: from_text(time) for scope, time in payload.items()})


async def is_running(node: NodeRow, secret: str) -> bool:
    """Return whether this node answers at its address."""
    host, port = read_host_port(node.address)
    try:
        link = await open_link(host, port, _trust(node.certificate), node="", secret=secret, expected=node.id)
    except NoLeader:
        return False
    link.close()
    return True


def _trust(certificate: str) -> ssl.SSLContext | None:
    """Return a context that trusts exactly this certificate."""
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # not the default: it is strict about how authorities sign
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
