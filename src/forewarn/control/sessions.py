"""/v1/session: signing in to the portal. A session is a token with a short life, which the browser has in a cookie."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated

from forewarn import __version__
from forewarn.clock import real_seconds, system_time
from forewarn.control.auth import hash_of
from forewarn.control.input import read_body
from forewarn.control.routing import Route, caller
from forewarn.control.schema import MAX_SECRET, Body, NoMembers, Shape, Time, at_most, choice, help_text, json_response
from forewarn.core.access import Role, create_link, create_session, end_session, exchange_link
from forewarn.core.durations import to_text, to_text_if_any
from forewarn.errors import BadRequestBody, BadToken, NoSession, TooManySignIns
from forewarn.settings import FABRICS

if TYPE_CHECKING:
    from datetime import timedelta

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.control.auth import KnownTokens, WrongTokens
    from forewarn.control.session_cookie import SessionCookie
    from forewarn.core.access import Token
    from forewarn.engine.engine import Engine
    from forewarn.wire.versions import ApiVersion


PORTAL_PATH = "/portal/"
SIGN_INS_AT_ONCE = 60
"""Sign-ins with one token, directly or with its links. Each is a row of history, which is kept for long."""
SIGN_IN_SECONDS = 30
"""Real time after which one more is possible."""


@dataclass(slots=True)
class ServiceFacts:
    """What a page shows about the service."""

    name: str
    fabric: str
    faults_allowed: bool
    versions: dict[str, ApiVersion]


class SessionShape(Shape):
    """Who sends the request, and what a page needs to know about the service."""

    name: Annotated[str, help_text("The name of the token, also of a session that was made from it.")]
    role: Annotated[str, choice(*(role.value for role in Role))]
    group: str | None
    expires_at: Annotated[
        Time | None, help_text("When the session or the token expires. A session expires in real time.")
    ]
    service: Annotated[str, help_text("The name of the service on its machine.")]
    version: str
    clock: Annotated[str, choice("system", "virtual")]
    fabric: Annotated[str, choice(*FABRICS)]
    faults_allowed: bool
    api_versions: Annotated[list[str], help_text("The api-versions of documents, oldest first.")]
    default_api_version: str


class SignIn(Body):
    """How to sign in."""

    token: Annotated[Annotated[str, at_most(MAX_SECRET)] | None, help_text("A token. Give this or code.")] = None
    code: Annotated[
        Annotated[str, at_most(MAX_SECRET)] | None, help_text("The code of a one-time link. Give this or token.")
    ] = None


class LinkShape(Shape):
    """A one-time link."""

    code: str
    expires_at: Annotated[Time, help_text("One minute from now, in real time, or earlier with the session.")]
    path: Annotated[str, help_text("The path of the page that uses the code. A browser never sends the fragment.")]


class SignInRate:
    """Limits how often each token signs in. No person is so quick, not even a team that shares a token."""

    def __init__(self) -> None:
        self._busy_until: dict[str, float] = {}
        """By token: the end of its sign-ins so far, if each of them took SIGN_IN_SECONDS."""

    def count(self, name: str) -> None:
        """Count a sign-in with this token. Raises TooManySignIns."""
        now = real_seconds()
        if name not in self._busy_until:
            self._busy_until = {known: until for known, until in self._busy_until.items() if until > now}
        busy_until = max(self._busy_until.get(name, now), now) + SIGN_IN_SECONDS
        wait = busy_until - now - SIGN_INS_AT_ONCE * SIGN_IN_SECONDS
        if wait > 0:
            raise TooManySignIns(name=name, seconds=ceil(wait))
        self._busy_until[name] = busy_until


class SessionControl:
    """Sessions and one-time links."""

    def __init__(
        self,
        engine: Engine,
        tokens: KnownTokens,
        wrong_tokens: WrongTokens,
        cookie: SessionCookie,
        lifetime: timedelta,
        facts: ServiceFacts,
    ) -> None:
        self._engine = engine
        self._tokens = tokens
        self._wrong_tokens = wrong_tokens
        self._cookie = cookie
        self._lifetime = lifetime
        self._facts = facts
        self._rate = SignInRate()

    def routes(self) -> list[Route]:
        path, one = "/v1/session", SessionShape
        return [
            Route("GET", path, self.session, "Return who you are, and facts about the service.", one, tenant=True),
            Route(
                "POST",
                path,
                self.sign_in,
                "Sign in from a page of the portal. The response sets a cookie.",
                one,
                role=None,
                body=SignIn,
                status=201,
                problems=(429,),
            ),
            Route("DELETE", path, self.sign_out, "Sign out: end the session of the cookie.", one, tenant=True),
            Route(
                "POST",
                f"{path}/links",
                self.link,
                "Create a one-time link to the portal.",
                LinkShape,
                tenant=True,
                body=NoMembers,
                status=201,
            ),
        ]

    async def session(self, request: Request) -> Response:
        return json_response(self._shape(caller(request)))

    async def sign_in(self, request: Request) -> Response:
        scheme = self._cookie.sign_in_scheme(request.scope)
        body = await read_body(request, SignIn)
        if bool(body.token) == bool(body.code):
            raise BadRequestBody(pointer="/token", problem="give either /token or /code", allowed="a token")
        secret = secrets.token_urlsafe(32)
        given = (hash_of(secret), system_time(), self._lifetime)
        try:
            if body.token:
                parent = self._tokens.find(body.token)
                self._rate.count(parent.name)
                session = await self._engine.execute(create_session, parent, *given)
            else:
                code_hash = hash_of(body.code or "")
                self._rate.count(self._tokens.find_link(code_hash).parent)
                session = await self._engine.execute(exchange_link, code_hash, *given)
        except BadToken as error:
            await self._wrong_tokens.slow_down(request.scope, request.receive, error)
            raise
        request.state.token = session._replace(name=session.parent)  # for the log
        response = json_response(self._shape(request.state.token), 201)
        cookie = self._cookie.set_header(request.scope, scheme, secret, int(self._lifetime.total_seconds()))
        response.headers["set-cookie"] = cookie
        return response

    async def sign_out(self, request: Request) -> Response:
        token = caller(request)
        cookie = self._cookie.read(request.scope)
        session: str = request.state.session
        if not session or cookie is None:
            raise NoSession(name=token.name)
        await self._engine.execute(end_session, session, token.name)
        response = json_response(self._shape(token))
        response.headers["set-cookie"] = self._cookie.set_header(request.scope, cookie.scheme, "", 0)
        return response

    async def link(self, request: Request) -> Response:
        await read_body(request, NoMembers)
        maker: str = request.state.session or caller(request).name
        return json_response(await new_link(self._engine, maker), 201)

    def _shape(self, token: Token) -> SessionShape:
        facts = self._facts
        return SessionShape(
            name=token.name,
            role=token.role.value,
            group=token.group or None,
            expires_at=to_text_if_any(token.expires_at),
            service=facts.name,
            version=__version__,
            clock="virtual" if self._engine.clock.virtual else "system",
            fabric=facts.fabric,
            faults_allowed=facts.faults_allowed,
            api_versions=list(facts.versions),
            default_api_version=max(facts.versions),
        )


async def new_link(engine: Engine, maker: str) -> LinkShape:
    """Create a one-time link for the token or the session with this name."""
    code = secrets.token_urlsafe(32)
    link = await engine.execute(create_link, maker, hash_of(code), system_time())
    expires_at = to_text(link.expires_at) if link.expires_at is not None else ""
    return LinkShape(code, expires_at, f"{PORTAL_PATH}#code={code}")
