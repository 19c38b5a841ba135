"""Authentication by token, and the first admin token.

Only the health routes and the proof work without a token.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import TYPE_CHECKING

from forewarn.control.problems import problem
from forewarn.core.access import Role, Token, create_token, revocation
from forewarn.core.durations import format_time
from forewarn.core.history import ENGINE
from forewarn.errors import BadToken, ForewarnError, TokenExpired, TokenRevoked, UnknownToken

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from starlette.types import ASGIApp, Receive, Scope, Send

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Changes, Draft
    from forewarn.engine.engine import Engine


OPEN_PATHS = frozenset(("/healthz", "/readyz", "/v1/proof"))


def hash_of(token: str) -> str:
    """Return the hash of a token, as stored. A fast hash is enough, because tokens are long and random."""
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class Authenticator:
    """Rejects requests without a valid token, and stores the token in the request's state."""

    def __init__(self, engine: Engine, app: ASGIApp) -> None:
        self._engine = engine
        self._app = app
        self._by_hash: dict[str, Token] | None = None
        engine.subscribe_to_commits(self._on_commit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        token = self._token(scope)
        if isinstance(token, ForewarnError):
            headers = {"www-authenticate": 'Bearer realm="forewarn"'}
            await problem(token, status=401, headers=headers)(scope, receive, send)
            return
        scope.setdefault("state", {})["token"] = token
        await self._app(scope, receive, send)

    def _token(self, scope: Scope) -> Token | ForewarnError:
        """Return the token of a request, or why there is none. Only who has the token learns what happened to it."""
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, secret = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        if scheme.lower() != b"bearer":
            return BadToken()
        if self._by_hash is None:
            self._by_hash = {token.hash: token for token in self._engine.draft().all_tokens()}
        hash_ = hash_of(secret.strip().decode("latin-1"))
        token = self._by_hash.get(hash_)
        if token is None:
            revoked = revocation(self._engine.facts, hash_)
            return UnknownToken() if revoked is None else TokenRevoked(time=format_time(revoked[0]), name=revoked[1])
        if token.expires_at is not None and not token.valid_at(self._engine.clock.now()):
            return TokenExpired(time=format_time(token.expires_at), name=token.name)
        return token

    def _on_commit(self, changes: Changes) -> None:
        if changes.tokens:
            self._by_hash = None


# --- The first token ------------------------------------------------------------------------------


FIRST_ADMIN = "admin"


async def ensure_admin_token(engine: Engine, stored: str, store: Callable[[str], None]) -> None:
    """Create a new admin token if the one in the token file (`stored`) is not valid. `store` writes the file.

    Nothing happens if it was revoked and another admin token exists. A user who can write the file owns the service, so
    a lost token may be replaced.
    """
    known = {token.name: token for token in engine.draft().all_tokens()}
    if any(token.hash == hash_of(stored) for token in known.values()):
        return
    first = known.get(FIRST_ADMIN)
    revoked = first is None or first.role is not Role.ADMIN  # an operator may have reused the name
    if revoked and any(token.role is Role.ADMIN for token in known.values()):
        return
    secret = new_secret()
    # Write the file first: after a crash here, the next start finds a token that is not valid, and creates a new one.
    store(secret)

    def replace_token(draft: Draft, now: datetime, limits: OperatorLimits) -> None:
        draft.changes.tokens[FIRST_ADMIN] = None
        create_token(draft, now, limits, Token(FIRST_ADMIN, Role.ADMIN, hash_of(secret), ENGINE, now), ENGINE)

    await engine.execute(replace_token)


def new_secret() -> str:
    """Return a new random token."""
    return f"fw_{secrets.token_urlsafe(32)}"
