"""Tokens and their roles, and idempotency keys. Only hashes of tokens are known here."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import format_time
from forewarn.core.state import Entry
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
    from collections.abc import Callable

    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"
NAME_RULE = "write 1 to 64 letters, digits, '.', '_', '-' or '@', starting with a letter or a digit"


class Role(StrEnum):
    """What the holder of a token may do. Of the first three, each may also do what those before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    TENANT = "tenant"
    """Sees and approves the events of one group, and nothing else."""


_LADDER = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


class Token(NamedTuple):
    """A token that was given out. Its name is who did something, in history."""

    name: str
    role: Role
    hash: str
    created_by: str
    created_at: datetime
    group: str = ""
    """Of a tenant: whose events it is about."""
    expires_at: datetime | None = None

    def may(self, least: Role, *, tenant: bool) -> bool:
        """Whether what needs at least this role, and is for tenants or not, is for this token."""
        if self.role is Role.TENANT:
            return tenant
        return _LADDER.index(self.role) >= _LADDER.index(least)

    def valid_at(self, now: datetime) -> bool:
        return self.expires_at is None or now < self.expires_at


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a token, or of something else that people make by name."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise BadOption(name="name", value=name, problem=NAME_RULE)


def create_token(draft: Draft, now: datetime, terms: Terms, token: Token, by: str) -> Token:
    """Give out a token. Its name must not be in use; a tenant's group must be there."""
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
    draft.record(Entry(at=now, what="token created", by=by, why=f"{token.name}: {token.role}{of_group}"))
    return token


def revoke_token(draft: Draft, now: datetime, terms: Terms, name: str, by: str) -> Token:
    """From now on the token opens nothing. One admin must always be able to come in."""
    token = draft.token(name)
    if token is None:
        raise UnknownResource(what="token", name=name, hint=nearest(name, [token.name for token in draft.all_tokens()]))
    others = [other for other in draft.all_tokens() if other.name != name and other.role is Role.ADMIN]
    if token.role is Role.ADMIN and not any(other.expires_at is None for other in others):
        raise LastAdmin(name=name)
    draft.changes.tokens[name] = None
    draft.record(Entry(at=now, what="token revoked", by=by, why=name))
    return token


# --- Idempotency keys: a repeated request is done once --------------------------------------------


RESPONSE_RETENTION = timedelta(days=1)


class StoredResponse(NamedTuple):
    """The answer to a request with a key. In memory without its body, which the store has."""

    key: str
    """Whose key (by the hash of the token), and which: two callers may choose the same."""
    fingerprint: str
    """Of the request, so that a key is not taken for another's."""
    at: datetime
    status: int
    body: str = ""


def run_once(
    draft: Draft,
    now: datetime,
    terms: Terms,
    key: str,
    fingerprint: str,
    decide: Callable[[Draft, datetime, Terms], tuple[int, str]],
) -> StoredResponse:
    """The answer to keep: of the same request before, within a day; else what is decided now.

    What is decided and what is kept are one commit: after a crash either both are there or neither.
    """
    known = draft.kept(key)
    if known is not None and now - known.at < RESPONSE_RETENTION:
        if known.fingerprint != fingerprint:
            raise IdempotencyKeyReused(key=key.partition(" ")[2])
        return known
    status, body = decide(draft, now, terms)
    answer = StoredResponse(key, fingerprint, now, status, body)
    draft.changes.kept[key] = answer
    return answer
