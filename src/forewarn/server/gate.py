"""Who is asking: the token of a request to the control API. Without one, nothing but health answers."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from forewarn.errors import BadToken
from forewarn.server.problems import problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from forewarn.core.access import Token
    from forewarn.core.state import Changes
    from forewarn.engine import Engine

OPEN_PATHS = frozenset(("/healthz", "/readyz"))


def hash_of(token: str) -> str:
    """What is kept of a token. Tokens are long and random, so nothing slower is needed."""
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class Gate:
    """Lets requests through to the application, with the token they came with in their state."""

    def __init__(self, engine: Engine, app: ASGIApp) -> None:
        self._engine = engine
        self._app = app
        self._by_hash: dict[str, Token] | None = None
        engine.follow(self._on_commit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        token = self._token(scope)
        if token is None:
            headers = {"www-authenticate": 'Bearer realm="forewarn"'}
            await problem(BadToken(), status=401, headers=headers)(scope, receive, send)
            return
        scope.setdefault("state", {})["token"] = token
        await self._app(scope, receive, send)

    def _token(self, scope: Scope) -> Token | None:
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, secret = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        if scheme.lower() != b"bearer":
            return None
        if self._by_hash is None:
            self._by_hash = {token.hash: token for token in self._engine.draft().all_tokens()}
        token = self._by_hash.get(hash_of(secret.strip().decode("latin-1")))
        return token if token is not None and token.valid_at(self._engine.clock.now()) else None

    def _on_commit(self, changes: Changes) -> None:
        if changes.tokens:
            self._by_hash = None
