"""One row per thing that can be asked of the control API: who may, what is sent, what is answered.

The routes, the checks of who may ask and of what is asked, and the OpenAPI description are all made of these rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.routing import Route

from forewarn.control.input import read_query
from forewarn.control.schema import NoMembers
from forewarn.core.access import Role
from forewarn.errors import InsufficientRole
from forewarn.metadata.answers import JSON

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from msgspec import Struct
    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.core.access import Token


class Endpoint(NamedTuple):
    """A method and a path. `role` is the least that may use it; tenants only where it says so."""

    method: str
    path: str
    handle: Callable[[Request], Awaitable[Response]]
    summary: str
    answer: Any
    """The type of what is answered; several where it is one of them; a JSON Schema where it is no object."""
    role: Role | None = Role.VIEWER
    """None: needs no token at all."""
    tenant: bool = False
    query: type[Struct] = NoMembers
    headers: type[Struct] = NoMembers
    """Those that mean something here alone."""
    body: type[Struct] | None = None
    """The object that is sent; None: nothing is."""
    body_type: str = JSON
    status: int = 200
    other_status: int | None = None
    """Another that is not an error: of a dry run, of a service that is not ready."""
    answer_type: str = JSON
    makes: bool = False
    """Whether it makes something, so that an Idempotency-Key is heeded."""

    leads_to: tuple[tuple[str, str], ...] = ()
    """Where to go on with what it makes: the beginning of paths, and where in the answer their parameter is."""

    async def answer_to(self, request: Request) -> Response:
        """Check who asks and what, and hand over."""
        request.state.endpoint = self
        if self.role is not None:
            token = caller(request)
            if not token.may(self.role, tenant=self.tenant):
                raise InsufficientRole(role=token.role.value, what=self.summary.rstrip("."), needed=self.who())
            request.state.query = read_query(request, self.query)
        return await self.handle(request)

    def who(self) -> str:
        """The roles that may use it, in words."""
        if self.role is None:
            return "anybody"
        roles = {Role.VIEWER: "viewer, operator or admin", Role.OPERATOR: "operator or admin", Role.ADMIN: "admin"}
        return roles[self.role] + (", or tenant" if self.tenant else "")


def caller(request: Request) -> Token:
    """Whose token the request came with."""
    token: Token = request.state.token
    return token


def routes(endpoints: Iterable[Endpoint]) -> list[Route]:
    """One route for each path, so that a wrong method is told all that are right."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [Route(path, _choose(methods), methods=list(methods)) for path, methods in by_path.items()]


def _choose(methods: dict[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await methods[method].answer_to(request)

    return handle
