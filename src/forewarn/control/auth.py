"""Access to the control API: the Host header, tokens, and the first admin token.

Only the health routes, the proof, signing in and the files of the portal work without a token.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, Self

from starlette.routing import Match

from forewarn.clock import real_seconds, system_time
from forewarn.control.problems import problem, unauthorized
from forewarn.control.session_cookie import check_origin
from forewarn.core.access import Purpose, Role, Token, api_tokens, create_token, revocation
from forewarn.core.durations import format_time
from forewarn.core.history import ENGINE
from forewarn.errors import (
    BadToken,
    ForeignOrigin,
    NotPermitted,
    SessionEnded,
    StoreFailed,
    TokenExpired,
    TokenNotKnownHere,
    TokenRevoked,
    TokenWithoutGroup,
    UnknownCode,
    UnknownHostName,
    UnknownToken,
)
from forewarn.system.addresses import is_ipv4, is_ipv6, read_port
from forewarn.system.logs import OncePerMinute, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from forewarn.control.session_cookie import SessionCookie
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Changes, Draft
    from forewarn.engine.engine import Engine


_log = get_logger(__name__)

OPEN_PATHS = frozenset(("/healthz", "/readyz", "/v1/proof"))
SIGN_IN = ("POST", "/v1/session")
"""The request that creates a session. It has the token in its body."""
ANY_HOST_PATHS = frozenset(("/healthz", "/readyz"))
"""Probes can use any name: these paths reveal nothing but the state and the version."""


def hash_of(token: str) -> str:
    """Return the hash of a token, as stored. A fast hash is enough, because tokens are long and random."""
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


_HOST = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+)(?::(.*))?")
"""The value of a Host header: an IPv6 address in brackets or another host, and perhaps a port."""


class HostNames:
    """The names under which clients can use the control API.

    This protects against DNS rebinding. A web page can let its own name point to this machine, and a browser then lets
    the page read the responses. The Host header still has the name of the page.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Take the operator's names. IP addresses, localhost and the names of this machine are always known."""
        own = socket.gethostname()
        self._names = frozenset(_plain(name) for name in ("localhost", own, own.partition(".")[0], *names))

    def unknown(self, scope: Scope) -> str | None:
        """Return the host of a request if it is not known."""
        for name, value in scope["headers"]:
            host: str = value.decode("latin-1").strip()
            if name == b"host" and not self._knows(host):
                return host
        return None

    def _knows(self, value: str) -> bool:
        parts = _HOST.fullmatch(value)
        if parts is None or (parts[2] and read_port(parts[2]) is None):
            return False
        host = parts[1]
        if host.startswith("["):
            return is_ipv6(host[1:-1])
        return is_ipv4(host) or _plain(host) in self._names


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


ATTEMPT_SECONDS = 0.2
"""An address can send a wrong token this often without a delay."""
FREE_ATTEMPTS = 10
"""This many more can arrive at once."""
MAX_DELAY_SECONDS = 5.0
MAX_ADDRESSES = 1000
"""Addresses with wrong tokens to remember. The one whose last attempt is the oldest is forgotten first."""


class WrongTokens:
    """Counts wrong tokens, logs them without their value, and delays the responses to them, per address.

    Requests with a valid token are never delayed: colleagues may use the same address.
    """

    def __init__(self) -> None:
        self.count = 0
        self._busy_until: dict[str, float] = {}
        """By address: the end of its attempts so far, if each of them took ATTEMPT_SECONDS."""
        self._warnings = OncePerMinute()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Send all delayed responses now."""
        self._stopping.set()

    async def slow_down(self, scope: Scope, receive: Receive, error: BadToken) -> None:
        """Record a request with a wrong token. Return when its response can be sent, or the client is gone."""
        scope["state"]["rejected"] = error
        name = error.fields.get("name")
        address = (scope.get("client") or ("",))[0]
        now, self.count = real_seconds(), self.count + 1
        burst = FREE_ATTEMPTS * ATTEMPT_SECONDS
        busy_until = max(self._busy_until.pop(address, now), now) + ATTEMPT_SECONDS
        self._busy_until[address] = min(busy_until, now + burst + MAX_DELAY_SECONDS)
        if len(self._busy_until) > MAX_ADDRESSES:
            del self._busy_until[next(iter(self._busy_until))]
        if self._warnings.allows(f"{address} {name}", now):
            reason = type(error).__name__
            _log.warning("wrong_token", "A request had a wrong token.", token=name, reason=reason, address=address)
        delay = self._busy_until[address] - now - burst
        if delay > 0:
            await self._wait(delay, receive)

    async def _wait(self, seconds: float, receive: Receive) -> None:
        ends = [asyncio.ensure_future(_disconnected(receive)), asyncio.ensure_future(self._stopping.wait())]
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class KnownTokens:
    """Finds tokens and sessions by their secret."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._by_hash: dict[tuple[Purpose, str], Token] | None = None
        engine.subscribe_to_commits(self._on_commit)

    def find(self, secret: str) -> Token:
        """Return the token with this secret. Raises BadToken. Only its owner learns that it was revoked."""
        hash_ = hash_of(secret)
        token = self._tokens().get((Purpose.API, hash_))
        if token is None:
            revoked = revocation(self._engine.facts, hash_)
            if revoked is not None:
                raise TokenRevoked(time=format_time(revoked[0]), name=revoked[1])
            forwarder = self._engine.forwarder
            raise UnknownToken if forwarder is None or forwarder.has_leader else TokenNotKnownHere
        self._check(token)
        return token

    def find_session(self, secret: str) -> Token:
        """Return the session with this secret. It expires in real time, and ends with its token. Raises BadToken."""
        session = self._tokens().get((Purpose.SESSION, hash_of(secret)))
        parent = self._engine.draft().token(session.parent) if session is not None else None
        if session is None or parent is None or not session.valid_at(system_time()):
            raise SessionEnded
        self._check(parent)
        return session

    def find_link(self, hash_: str) -> Token:
        """Return the one-time link whose code has this hash. Raises BadToken."""
        link = self._tokens().get((Purpose.LINK, hash_))
        if link is None:
            raise UnknownCode
        return link

    def _check(self, token: Token) -> None:
        """Raise an error if the token has expired, or is of a group that was removed."""
        if token.expires_at is not None and not token.valid_at(self._engine.clock.now()):
            raise TokenExpired(time=format_time(token.expires_at), name=token.name)
        if not token.has_group_in(self._engine.fleet):
            raise TokenWithoutGroup(name=token.name, group=token.group)

    def _tokens(self) -> dict[tuple[Purpose, str], Token]:
        if self._by_hash is None:
            self._by_hash = {(token.purpose, token.hash): token for token in self._engine.draft().all_tokens()}
        return self._by_hash

    def _on_commit(self, changes: Changes) -> None:
        if changes.tokens:
            self._by_hash = None


class ApiUser(NamedTuple):
    """Who sent a request."""

    token: Token
    """The token. For a session: the session with the name of its token, which history records."""
    session: str = ""
    """The name of the session, if the request has one."""

    @classmethod
    def of(cls, found: Token) -> Self:
        """Return the user of a token or a session."""
        return cls(found._replace(name=found.parent), found.name) if found.purpose is Purpose.SESSION else cls(found)


class Authenticator:
    """Rejects requests without a valid token or session, and stores the token in the request's state."""

    def __init__(
        self,
        tokens: KnownTokens,
        cookie: SessionCookie,
        app: ASGIApp,
        wrong_tokens: WrongTokens,
        host_names: HostNames | None = None,
        public_routes: Sequence[Route] = (),
    ) -> None:
        """Without `host_names`, requests for every host are accepted. `public_routes` need no token."""
        self._tokens = tokens
        self._cookie = cookie
        self._app = app
        self._wrong_tokens = wrong_tokens
        self._host_names = host_names
        self._public_routes = public_routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._host_names is not None and scope["path"] not in ANY_HOST_PATHS:
            host = self._host_names.unknown(scope)
            if host is not None:
                await problem(UnknownHostName(host=host), status=421)(scope, receive, send)
                return
        if self._is_open(scope):
            await self._app(scope, receive, send)
            return
        try:
            found = self._caller(scope)
        except BadToken as error:
            if type(error) is not BadToken:  # it has a token, and a wrong one
                await self._wrong_tokens.slow_down(scope, receive, error)
            await unauthorized(error)(scope, receive, send)
            return
        except ForeignOrigin as error:
            await problem(error)(scope, receive, send)
            return

        def is_authorized() -> bool:
            try:
                return self._caller(scope) == found
            except BadToken:
                return False

        async def receive_and_check() -> Message:
            """Check the token again when the body is complete: it may have been revoked in the meantime."""
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body") and self._caller(scope) != found:
                raise BadToken
            return message

        state = scope.setdefault("state", {})
        state["token"], state["session"], state["is_authorized"] = found.token, found.session, is_authorized
        await self._app(scope, receive_and_check, send)

    def _is_open(self, scope: Scope) -> bool:
        """Return whether a request needs no token."""
        if scope["path"] in OPEN_PATHS or (scope["method"], scope["path"]) == SIGN_IN:
            return True
        is_public = any(route.matches(scope)[0] is not Match.NONE for route in self._public_routes)
        scope["state"]["public"] = is_public
        return is_public

    def _caller(self, scope: Scope) -> ApiUser:
        """Return who sent a request: by its bearer token, or by the cookie of a session. Raises BadToken."""
        secret = _secret(scope)
        cookie = self._cookie.read(scope) if not secret else None
        if cookie is None:
            if not secret:
                raise BadToken
            return ApiUser.of(self._tokens.find(secret.decode("latin-1")))
        check_origin(scope, cookie.scheme)
        return ApiUser.of(self._tokens.find_session(cookie.secret))


def _secret(scope: Scope) -> bytes:
    """Return the token that the client sent, or nothing."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, secret = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return secret.strip() if scheme.lower() == b"bearer" else b""


# --- The first token ------------------------------------------------------------------------------


FIRST_ADMIN = "admin"


async def ensure_admin_token(engine: Engine, stored: str, store: Callable[[str], None]) -> None:
    """Create a new admin token if the one in the token file (`stored`) is not valid. `store` writes the file.

    Nothing happens if it was revoked and another admin token exists. A user who can write the file owns the service, so
    a lost token may be replaced.
    """
    known = {token.name: token for token in api_tokens(engine.draft())}
    if any(token.hash == hash_of(stored) for token in known.values()):
        return
    first = known.get(FIRST_ADMIN)
    revoked = first is None or first.role is not Role.ADMIN  # an operator may have reused the name
    if revoked and any(token.role is Role.ADMIN for token in known.values()):
        return
    secret = new_secret()

    def replace_token(draft: Draft, now: datetime, limits: OperatorLimits) -> None:
        draft.changes.tokens[FIRST_ADMIN] = None
        create_token(draft, now, limits, Token(FIRST_ADMIN, Role.ADMIN, hash_of(secret), ENGINE, now), ENGINE)

    try:
        # The file first: after a crash here, the next start finds a token that is not valid, and creates a new one.
        store(secret)
        await engine.execute(replace_token)
    except (NotPermitted, StoreFailed) as error:
        if not known:
            raise
        _log.error(
            "admin_token_not_written", "Cannot replace the admin token. The next start tries again.", error=str(error)
        )


def new_secret() -> str:
    """Return a new random token."""
    return f"fw_{secrets.token_urlsafe(32)}"
