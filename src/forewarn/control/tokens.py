"""/v1/tokens: API tokens and their roles. A token is shown once, when it is created; only its hash is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from msgspec import UNSET, UnsetType

from forewarn.control.auth import hash_of, new_secret
from forewarn.control.idempotency import create_once
from forewarn.control.input import read_body, read_time
from forewarn.control.paging import Paging, page_of_names
from forewarn.control.routing import Route, caller
from forewarn.control.schema import (
    Body,
    NameIfAny,
    Shape,
    Time,
    TimeOrDuration,
    choice,
    help_text,
    json_response,
    page_of,
    pattern,
)
from forewarn.core.access import NAME_PATTERN, NAME_RULE, Purpose, Role, Token, create_token
from forewarn.core.durations import to_text, to_text_if_any
from forewarn.errors import BadRequestBody, nearest, shown

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.control.slices import Slices
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine


ROLES = tuple(role.value for role in Role)


class TokenShape(Shape):
    """A token without its secret."""

    name: str
    role: Annotated[str, choice(*ROLES)]
    group: str | None
    created_by: str
    created_at: Time
    expires_at: Time | None
    parent: Annotated[str | None, help_text("Of a session: the token that it was made from. Otherwise null.")]
    token: Annotated[
        str | UnsetType | None,
        help_text("The token itself: only in the response to its creation; null if that response is replayed."),
    ] = UNSET

    @classmethod
    def of(cls, token: Token, secret: str | UnsetType = UNSET) -> Self:
        return cls(
            name=token.name,
            role=token.role.value,
            group=token.group or None,
            created_by=token.created_by,
            created_at=to_text(token.created_at),
            expires_at=to_text_if_any(token.expires_at),
            parent=token.parent or None,
            token=secret,
        )


class NewToken(Body, kw_only=True):
    """The token to create."""

    name: Annotated[str, pattern(NAME_PATTERN), help_text(f"The user's name, as shown in history: {NAME_RULE}.")]
    role: Annotated[str, choice(*ROLES), help_text("Role of the token.")]
    group: Annotated[NameIfAny | None, help_text("For role tenant: the group whose events it may see and approve.")] = (
        None
    )
    expires: Annotated[TimeOrDuration | None, help_text("Expiry time. Default: never.")] = None


class TokensQuery(Paging):
    """Which tokens to list."""

    sessions: Annotated[bool, help_text("Also list the sessions of the portal. Their times are real times.")] = False


class TokenControl:
    """Tokens."""

    def __init__(self, engine: Engine, slices: Slices) -> None:
        self._engine = engine
        self._slices = slices

    def routes(self) -> list[Route]:
        one, path, admin = TokenShape, "/v1/tokens/{name}", Role.ADMIN
        return [
            Route(
                "GET",
                "/v1/tokens",
                self.tokens,
                "List tokens.",
                page_of("tokens", TokenShape),
                admin,
                query=TokensQuery,
            ),
            Route(
                "POST",
                "/v1/tokens",
                self.create,
                "Create a token.",
                one,
                admin,
                body=NewToken,
                status=201,
                creates=True,
                links=((path, "/name"),),
            ),
            Route("DELETE", path, self.revoke, "Revoke a token, or end a session.", one, admin),
        ]

    async def tokens(self, request: Request) -> Response:
        query: TokensQuery = request.state.query
        purposes = (Purpose.API, Purpose.SESSION) if query.sessions else (Purpose.API,)
        known = {token.name: token for token in self._engine.draft().all_tokens() if token.purpose in purposes}
        return await page_of_names(
            request, self._slices, "tokens", sorted(known), lambda name: TokenShape.of(known[name])
        )

    async def create(self, request: Request) -> Response:
        body = await read_body(request, NewToken)
        role = body.role
        if role not in ROLES:
            problem = f"{shown(role)} is not one of {', '.join(ROLES)}.{nearest(role, ROLES)}"
            raise BadRequestBody(pointer="/role", problem=problem, allowed=list(ROLES))
        secret, by = new_secret(), caller(request).name
        expires_at = read_time(body.expires, "/expires", self._engine.clock.now())

        def decide(draft: Draft, now: datetime, limits: OperatorLimits) -> TokenShape:
            token = Token(body.name, Role(role), hash_of(secret), by, now, body.group or "", expires_at)
            return TokenShape.of(create_token(draft, now, limits, token, by), secret)

        return await create_once(self._engine, request, decide, hidden=("token",))

    async def revoke(self, request: Request) -> Response:
        token = await self._engine.revoke_token(request.path_params["name"], caller(request).name)
        return json_response(TokenShape.of(token))
