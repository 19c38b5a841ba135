"""The first token: an admin's, left by the service where its owner alone can read it, for the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.core.access import Role, Token, create_token
from forewarn.core.history import ENGINE
from forewarn.server.gate import hash_of
from forewarn.server.token_control import new_secret

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft
    from forewarn.engine import Engine

FIRST = "admin"


async def leave_admin_token(engine: Engine, left: str, leave: Callable[[str], None]) -> None:
    """See to it that what is `left` opens, unless it was revoked and another admin is there.

    Whoever may write that place owns the service: a token that is lost is replaced by another.
    """
    known = {token.name: token for token in engine.draft().all_tokens()}
    if any(token.hash == hash_of(left) for token in known.values()):
        return
    first = known.get(FIRST)
    revoked = first is None or first.role is not Role.ADMIN  # the name may have been given to another
    if revoked and any(token.role is Role.ADMIN for token in known.values()):
        return
    secret = new_secret()
    # Left first: if all ends here, the next start finds a token there that opens nothing, and makes another.
    leave(secret)

    def renew(draft: Draft, now: datetime, terms: Terms) -> None:
        draft.changes.tokens[FIRST] = None
        create_token(draft, now, terms, Token(FIRST, Role.ADMIN, hash_of(secret), ENGINE, now), ENGINE)

    await engine.order(renew)
