"""/v1/nodes: the nodes of the service, and who leads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Self

from forewarn import __version__
from forewarn.control.auth import hash_of, new_secret
from forewarn.control.input import read_body
from forewarn.control.routing import Route
from forewarn.control.schema import Count, NoMembers, Shape, Time, choice, help_text, json_response
from forewarn.core.access import Role, Token, create_token, revocation
from forewarn.core.history import ENGINE
from forewarn.errors import ForewarnError, NotPermitted, OnlyNode
from forewarn.system.logs import get_logger
from forewarn.wire.metrics_text import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine
    from forewarn.nodes.forwarding import NodeForwarder
    from forewarn.nodes.node import Node
    from forewarn.ports import NodeRow

_log = get_logger(__name__)

ROLES = ("leader", "candidate", "follower", "lost")
LOST_SECONDS = 10.0
"""A node that has not reported for this long is lost."""


class NodeShape(Shape):
    """A node of the service."""

    id: Annotated[str, help_text("A new one for each start of the node.")]
    name: str
    role: Annotated[str, choice(*ROLES)]
    epoch: Annotated[Count, help_text("Counts the leaders of the service; 0 with one node.")]
    position: Annotated[Count, help_text("The last commit that the node has applied.")]
    behind: Annotated[Count, help_text("How many commits it is behind the most recent one that is known here.")]
    age_seconds: Annotated[float, help_text("Time since its last report to the database.")]
    address: Annotated[str | None, help_text("Its address for other nodes.")]
    control: str | None
    version: str
    started_at: Time | None
    is_self: Annotated[bool, help_text("Whether this node has answered the request.")]

    @classmethod
    def of(cls, row: NodeRow, role: str, epoch: int, newest: int, *, is_self: bool) -> Self:
        return cls(
            id=row.id,
            name=row.name,
            role=role,
            epoch=epoch,
            position=row.position,
            behind=max(newest - row.position, 0),
            age_seconds=round(row.age_seconds, 3),
            address=row.address,
            control=row.control,
            version=row.version,
            started_at=row.started_at,
            is_self=is_self,
        )


class NodesShape(Shape):
    """All nodes."""

    nodes: list[NodeShape]
    leader: Annotated[str | None, help_text("The name of the node that leads; null: none that this node knows.")]
    age_seconds: Annotated[float, help_text("How old the knowledge of this node may be.")]
    problem: Annotated[str | None, help_text("Why this node cannot use the database, or cannot lead; null: it can.")]


class NodeControl:
    """Nodes."""

    def __init__(self, engine: Engine, node: Node | None) -> None:
        self._engine = engine
        self._node = node

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/nodes", self.nodes, "List the nodes of the service.", NodesShape),
            Route(
                "POST",
                "/v1/nodes/step-down",
                self.step_down,
                "Let another node lead.",
                NodesShape,
                Role.ADMIN,
                body=NoMembers,
            ),
        ]

    async def nodes(self, _: Request) -> Response:
        return json_response(self._all())

    async def step_down(self, request: Request) -> Response:
        await read_body(request, NoMembers)
        if self._node is None:
            raise OnlyNode
        await self._node.report()
        if sum(row.age_seconds < LOST_SECONDS for row in self._node.nodes) < 2:
            raise OnlyNode
        await self._node.step_down()
        return json_response(self._all())

    def _all(self) -> NodesShape:
        node = self._node
        if node is None:
            only = NodeShape("", "this", "leader", 0, 0, 0, 0.0, None, None, __version__, None, is_self=True)
            return NodesShape([only], "this", 0.0, None)
        own = node.row._replace(position=self._engine.position)
        since = node.seconds_since_report
        rows = [each._replace(age_seconds=each.age_seconds + since) for each in node.nodes if each.id != own.id]
        # A node that was started again has a new row.
        replaced = {row.id for row in rows for other in (own, *rows) if _replaces(other, row)}
        rows = [row for row in rows if row.id not in replaced]
        newest = max(row.position for row in (own, *rows))
        shown = [
            NodeShape.of(own, node.role.name, node.role.epoch, newest, is_self=True),
            *(NodeShape.of(row, self._role(row), node.role.epoch, newest, is_self=False) for row in rows),
        ]
        leader = node.leader
        problem = node.problem or node.clock_problem or None
        return NodesShape(
            sorted(shown, key=lambda each: each.name), leader and leader.name, round(node.age_seconds, 3), problem
        )

    def _role(self, row: NodeRow) -> str:
        leader = self._node.leader if self._node is not None else None
        if leader is not None and leader.id == row.id:
            return "leader"
        return "lost" if row.age_seconds > LOST_SECONDS else "follower"


def _replaces(other: NodeRow, row: NodeRow) -> bool:
    """Return whether a node is the next start of another one, which has stopped to report."""
    return other.name == row.name and other.started_at > row.started_at and row.age_seconds > other.age_seconds + 1


def node_metrics(node: Node, forwarder: NodeForwarder) -> Iterable[Metric]:
    """Metrics of this node and its role."""

    def one(name: str, kind: str, help_text: str, value: float) -> Metric:
        return Metric(name, kind, help_text, [Sample((), value)])

    yield one("forewarn_node_leads", "gauge", "Whether this node leads.", int(node.engine.leads))
    yield one("forewarn_node_epoch", "gauge", "Number of the leader that this node knows.", node.role.epoch)
    yield one("forewarn_node_role_changes_total", "counter", "How often the role has changed.", node.role_changes)
    age, lease = node.age_seconds, node.lease_remaining_seconds
    yield one("forewarn_node_age_seconds", "gauge", "How old the knowledge of this node may be.", age)
    yield one("forewarn_node_lease_seconds", "gauge", "Time until the lease of this node ends, if it has one.", lease)
    yield one("forewarn_journal_position", "gauge", "Last commit that this node has applied.", node.engine.position)
    text = "Changes that this node has sent to the leader."
    yield one("forewarn_forwarded_requests_total", "counter", text, forwarder.forwarded)
    text = "Changes for which this node got no answer from a leader."
    yield one("forewarn_forwarded_failures_total", "counter", text, forwarder.failed)


# --- The admin token of a node --------------------------------------------------------------------


MAX_NODE_NAME = 64 - len("admin-")
TOKEN = "node_token"  # noqa: S105 - a kind of request
TOKEN_RETRY_SECONDS = 1.0


def serve_node_tokens(engine: Engine, forwarder: NodeForwarder) -> None:
    """Let other nodes create their admin tokens here, while this node leads."""

    async def handle(payload: tuple[str, str]) -> None:
        name, secret_hash = payload

        def replace(draft: Draft, now: datetime, limits: OperatorLimits) -> None:
            known = draft.token(name)
            if known is not None and known.hash == secret_hash:
                return
            draft.changes.tokens[name] = None
            create_token(draft, now, limits, Token(name, Role.ADMIN, secret_hash, ENGINE, now), ENGINE)

        await engine.execute(replace)

    forwarder.handlers[TOKEN] = handle


async def ensure_node_token(
    engine: Engine, forwarder: NodeForwarder, node: str, stored: str, store: Callable[[str], None]
) -> asyncio.Task[None] | None:
    """Create an admin token for the commands on the machine of this node. `stored` is its token file's content. If that
    is not possible now, return the task that tries it again.

    A token that was revoked is not created again. Who can read the database's password controls the service anyway.
    """
    hash_ = hash_of(stored)
    if any(token.hash == hash_ for token in engine.draft().all_tokens()) or revocation(engine.facts, hash_) is not None:
        return None
    secret = new_secret()
    # A name of a node can be as long as the name of a token.
    name = f"admin-{node}" if len(node) <= MAX_NODE_NAME else f"admin-{node[: MAX_NODE_NAME - 17]}-{hash_of(node)[:16]}"
    try:
        store(secret)  # first: see auth.ensure_admin_token
    except NotPermitted as error:
        text = "Cannot create the admin token of this node. The next start tries again."
        _log.error("node_token_not_written", text, error=str(error))
        return None
    payload = (name, hash_of(secret))
    try:
        await forwarder.request(TOKEN, payload, repeatable=True)
    except ForewarnError as error:
        text = "Cannot create the admin token of this node. Commands on this machine need it. Retrying."
        _log.warning("node_token_not_created", text, error=str(error))
        return asyncio.create_task(_create_token(forwarder, payload))
    return None


async def _create_token(forwarder: NodeForwarder, payload: tuple[str, str]) -> None:
    while True:
        await asyncio.sleep(TOKEN_RETRY_SECONDS)
        try:
            await forwarder.request(TOKEN, payload, repeatable=True)
        except ForewarnError:
            continue
        _log.info("node_token_created", "Created the admin token of this node.")
        return
