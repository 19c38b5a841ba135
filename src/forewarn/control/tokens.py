"""/v1/tokens: who may ask for what. A token is shown once, when it is made; only its hash is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.control.auth import hash_of, new_secret
from forewarn.control.idempotency import make_once
from forewarn.control.input import read_fields
from forewarn.control.paging import PAGING, page_of_names
from forewarn.control.routing import Endpoint, caller
from forewarn.control.schema import (
    MAYBE_MOMENT,
    MAYBE_TEXT,
    MOMENT,
    MOMENT_OR_LENGTH,
    TEXT,
    Field,
    Schema,
    choice,
    page_schema,
    record,
    ref,
)
from forewarn.core.access import NAME_PATTERN, NAME_RULE, Role, Token, create_token
from forewarn.core.durations import to_text_if_any
from forewarn.errors import BadRequestBody, nearest

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request

    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine


ROLES = tuple(role.value for role in Role)
ASKED = (
    Field(
        "name",
        {"type": "string", "pattern": NAME_PATTERN},
        f"Who will use it, as history will call them: {NAME_RULE}.",
        required=True,
    ),
    Field("role", choice(*ROLES), "What it may be used for.", required=True),
    Field("group", TEXT, "Of a tenant: the group whose events it may see and approve."),
    Field("expires", MOMENT_OR_LENGTH, "When it stops to be good; if it is not said, never."),
)


class TokenControl:
    """Tokens."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def endpoints(self) -> list[Endpoint]:
        one, path, admin = ref("Token"), "/v1/tokens/{name}", Role.ADMIN
        return [
            Endpoint(
                "GET", "/v1/tokens", self.tokens, "List tokens.", page_schema("tokens", "Token"), admin, query=PAGING
            ),
            Endpoint(
                "POST",
                "/v1/tokens",
                self.create,
                "Create a token.",
                ref("NewToken"),
                admin,
                body=ASKED,
                status=201,
                makes=True,
                leads_to=((path, "/name"),),
            ),
            Endpoint("DELETE", path, self.revoke, "Revoke a token.", one, admin),
        ]

    async def tokens(self, request: Request) -> Response:
        known = {token.name: token for token in self._engine.draft().all_tokens()}
        return page_of_names(request, "tokens", sorted(known), lambda name: token_shape(known[name]))

    async def create(self, request: Request) -> Response:
        fields = await read_fields(request)
        role = fields.text("role")
        if role not in ROLES:
            problem = f"{role!r} is not one of {', '.join(ROLES)}.{nearest(role, ROLES)}"
            raise BadRequestBody(pointer="/role", problem=problem, valid=list(ROLES))
        secret, by = new_secret(), caller(request).name
        expires_at = fields.moment("expires", self._engine.clock.now())

        def decide(draft: Draft, now: datetime, terms: Terms) -> dict[str, Any]:
            token = Token(fields.text("name"), Role(role), hash_of(secret), by, now, fields.text("group"), expires_at)
            return {**token_shape(create_token(draft, now, terms, token, by)), "token": secret}

        return await make_once(self._engine, request, fields, decide, hidden=("token",))

    async def revoke(self, request: Request) -> Response:
        token = await self._engine.revoke_token(request.path_params["name"], caller(request).name)
        return JSONResponse(token_shape(token))


_TOKEN: dict[str, Schema] = {
    "name": TEXT,
    "role": choice(*(role.value for role in Role)),
    "group": MAYBE_TEXT,
    "created_by": TEXT,
    "created_at": MOMENT,
    "expires_at": MAYBE_MOMENT,
}


SHAPES: dict[str, Schema] = {
    "Token": record(_TOKEN),
    "NewToken": record(
        {
            **_TOKEN,
            "token": {
                **MAYBE_TEXT,
                "description": "The token itself: shown this once, and null where a request is repeated by its key.",
            },
        }
    ),
}


def token_shape(token: Token) -> dict[str, Any]:
    """What is known of a token; not what it is."""
    return {
        "name": token.name,
        "role": token.role.value,
        "group": token.group or None,
        "created_by": token.created_by,
        "created_at": to_text_if_any(token.created_at),
        "expires_at": to_text_if_any(token.expires_at),
    }
