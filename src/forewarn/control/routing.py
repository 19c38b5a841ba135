"""Routes of the control API: role, request and response of each.

The Starlette routes, the checks of role and query, and the OpenAPI description are all derived from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.routing import Route as StarletteRoute

from forewarn.control.input import BodyLimit, read_query
from forewarn.control.schema import MAX_NAME, NoMembers
from forewarn.core.access import Role
from forewarn.engine.writer import collect_changes
from forewarn.errors import (
    BadParameter,
    BadToken,
    ChangeMade,
    InsufficientRole,
    NoLeader,
    PartlyDone,
    ServiceStopping,
    StoreFailed,
    StoreNotReadable,
    StoreOutcomeUnknown,
)
from forewarn.metadata.fixed_responses import JSON

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from msgspec import Struct
    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.core.access import Token
    from forewarn.errors import ForewarnError

    Forward = Callable[[Request, "Route"], Awaitable[Response]]
    """Sends a request to the leader, and returns its response. LeaderRequests sets it on a node that follows."""


class Route(NamedTuple):
    """A method and a path. `role` is the minimum role; `tenant` also allows tenants."""

    method: str
    path: str
    handle: Callable[[Request], Awaitable[Response]]
    summary: str
    response: Any
    """The type of the response body; a tuple: one of several types; a dict: a JSON Schema."""
    role: Role | None = Role.VIEWER
    """None: no token is needed."""
    tenant: bool = False
    query: type[Struct] = NoMembers
    headers: type[Struct] = NoMembers
    """Headers with a meaning for this route only."""
    body: type[Struct] | None = None
    """The type of the request body; None: no body."""
    body_type: str = JSON
    body_limit: BodyLimit = BodyLimit()
    """How large the body may be."""
    status: int = 200
    other_status: int | None = None
    """A second status: for a dry run, or if the service is not ready."""
    problems: tuple[int, ...] = ()
    """Statuses of errors that only this route has."""
    response_type: str = JSON
    text_type: str = ""
    """Another media type of the response, if the query asks for it."""
    creates: bool = False
    """Whether it creates a resource, and so supports Idempotency-Key."""

    links: tuple[tuple[str, str], ...] = ()
    """OpenAPI links: a path prefix, and a JSON pointer to its parameter in the response."""

    async def handle_request(self, request: Request) -> Response:
        """Check the role and the query, then call the handler, or let the leader do it."""
        if self.role is not None:
            token = caller(request)
            if not token.may(self.role, tenant=self.tenant):
                raise InsufficientRole(
                    role=token.role.value, what=self.summary.rstrip("."), needed=self.allowed_roles()
                )
        for name, value in request.path_params.items():
            if len(value) > MAX_NAME:
                allowed = f"at most {MAX_NAME} characters"
                raise BadParameter(parameter=name, problem=f"has more than {MAX_NAME} characters", allowed=allowed)
        if self.role is not None or self.body or self.query is not NoMembers:  # probes of health may have any query
            request.state.query = read_query(request, self.query)
        forward: Forward | None = getattr(request.state, "forward", None)
        if forward is not None:
            return await forward(request, self)
        with collect_changes() as committed:
            request.state.committed = committed  # for LeaderRequests
            try:
                response = await self.handle(request)
            except (StoreFailed, ServiceStopping, NoLeader) as error:
                if not committed:
                    raise
                if isinstance(error, StoreNotReadable):
                    raise ChangeMade(problem=error.fields["problem"]) from error
                raise partly_done("A part of the request was done.", error) from error
        # The group of a tenant may have been removed since, and its name may have another group now.
        if self.method == "GET" and self.tenant and caller(request).group and not request.state.is_authorized():
            raise BadToken
        return response

    def allowed_roles(self) -> str:
        """Return the roles that can use it, as text."""
        if self.role is None:
            return "everyone, without a token"
        roles = {Role.VIEWER: "viewer, operator or admin", Role.OPERATOR: "operator or admin", Role.ADMIN: "admin"}
        return roles[self.role] + (", or tenant" if self.tenant else "")


def partly_done(done: str, error: ForewarnError) -> PartlyDone:
    """Return the error of a request of which a part is done. The error of the rest says that nothing was changed."""
    is_unknown = isinstance(error, StoreOutcomeUnknown)
    rest = "It is not known whether the rest was done" if is_unknown else "The rest was not done"
    problem = error.fields.get("problem", "the service stops, or another node leads")
    return PartlyDone(done=done, rest=rest, problem=problem)


def caller(request: Request) -> Token:
    """Return the token of the request."""
    token: Token = request.state.token
    return token


def starlette_routes(routes: Iterable[Route]) -> list[StarletteRoute]:
    """Return one Starlette route per path, so that a 405 lists all methods of the path."""
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    return [StarletteRoute(path, _dispatch(methods), methods=list(methods)) for path, methods in by_path.items()]


def _dispatch(methods: dict[str, Route]) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await methods[method].handle_request(request)

    return handle
