"""Tokens with their roles, and idempotency keys. Only token hashes are stored."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import format_time, from_text, to_text
from forewarn.core.state import HistoryEntry
from forewarn.errors import (
    BadOption,
    GroupRequired,
    IdempotencyKeyReused,
    LastAdmin,
    TokenExists,
    UnknownResource,
    nearest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"
NAME_RULE = "write 1 to 64 letters, digits, '.', '_', '-' or '@', starting with a letter or a digit"


REVOKED = "revoked "
"""Start of the name of a fact. The hash of a revoked token follows, so that its owner learns why it is invalid."""


class Role(StrEnum):
    """Permissions of a token. Operators can do everything viewers can, admins everything operators can."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    TENANT = "tenant"
    """Can only see and approve the events of one group."""


_LADDER = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


class Token(NamedTuple):
    """An issued token. History records its name as the author of a change."""

    name: str
    role: Role
    hash: str
    created_by: str
    created_at: datetime
    group: str = ""
    """The group of a tenant token; empty for other roles."""
    expires_at: datetime | None = None

    def may(self, minimum: Role, *, tenant: bool) -> bool:
        """Return whether the token has at least this role. `tenant`: whether tenants are allowed too."""
        if self.role is Role.TENANT:
            return tenant
        return _LADDER.index(self.role) >= _LADDER.index(minimum)

    def valid_at(self, now: datetime) -> bool:
        return self.expires_at is None or now < self.expires_at


def check_name(name: str) -> None:
    """Reject an invalid name of a token or a webhook."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise BadOption(name="name", value=name, problem=NAME_RULE)


def create_token(draft: Draft, now: datetime, limits: OperatorLimits, token: Token, by: str) -> Token:
    """Create a token. The name must be free, and the group of a tenant must exist."""
    check_name(token.name)
    known = draft.token(token.name)
    if known is not None and known.valid_at(now):
        raise TokenExists(name=token.name)
    if token.expires_at is not None and token.expires_at <= now:
        raise BadOption(name="expires", value=format_time(token.expires_at), problem="this time has passed.")
    if token.role is Role.TENANT and not token.group:
        raise GroupRequired
    if token.group and token.role is not Role.TENANT:
        raise BadOption(name="group", value=token.group, problem="only a tenant token has a group. Omit it.")
    if token.group:
        draft.fleet.known_group(token.group)
    draft.changes.tokens[token.name] = token
    of_group = f" of {token.group}" if token.group else ""
    draft.record(HistoryEntry(time=now, kind="token-created", by=by, reason=f"{token.name}: {token.role}{of_group}"))
    return token


def revoke_token(draft: Draft, now: datetime, limits: OperatorLimits, name: str, by: str) -> Token:
    """Revoke a token. The last admin token that does not expire cannot be revoked."""
    token = draft.token(name)
    if token is None:
        raise UnknownResource(what="token", name=name, hint=nearest(name, [token.name for token in draft.all_tokens()]))
    others = [other for other in draft.all_tokens() if other.name != name and other.role is Role.ADMIN]
    if token.role is Role.ADMIN and not any(other.expires_at is None for other in others):
        raise LastAdmin(name=name)
    draft.changes.tokens[name] = None
    draft.changes.facts[REVOKED + token.hash] = f"{to_text(now)} {name}"
    draft.record(HistoryEntry(time=now, kind="token-revoked", by=by, reason=name))
    return token


def revocation(facts: Mapping[str, str], hash_: str) -> tuple[datetime, str] | None:
    """Return when the token with this hash was revoked, and its name; None if it was not."""
    time, _, name = facts.get(REVOKED + hash_, "").partition(" ")
    return (from_text(time), name) if time else None


# --- Idempotency keys ----------------------------------------------------------------------------


RESPONSE_RETENTION = timedelta(days=1)


class StoredResponse(NamedTuple):
    """The response to a request with an idempotency key. Only the store keeps the body."""

    key: str
    """Hash of the caller's token, and the key: two callers may choose the same key."""
    fingerprint: str
    """Hash of the request, to detect a key that is reused for a different request."""
    at: datetime
    status: int
    body: str = ""


def run_once(
    draft: Draft,
    now: datetime,
    limits: OperatorLimits,
    key: str,
    fingerprint: str,
    decide: Callable[[Draft, datetime, OperatorLimits], tuple[int, str]],
) -> StoredResponse:
    """Return the stored response of the same request within the last day, or run the request and store its response.

    The change and its response are one commit: after a crash both are stored, or neither.
    """
    known = draft.stored_response(key)
    if known is not None and now - known.at < RESPONSE_RETENTION:
        if known.fingerprint != fingerprint:
            raise IdempotencyKeyReused(key=key.partition(" ")[2])
        return known
    status, body = decide(draft, now, limits)
    response = StoredResponse(key, fingerprint, now, status, body)
    draft.changes.responses[key] = response
    return response
