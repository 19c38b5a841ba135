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
    SessionEnded,
    TokenExists,
    TokenExpired,
    UnknownCode,
    UnknownResource,
    UnknownToken,
    nearest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from forewarn.core.events import Event
    from forewarn.core.fleet import Fleet
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.core.steps import Steps


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


class Purpose(StrEnum):
    """What a token is for."""

    API = ""
    SESSION = "session"
    """A person who has signed in to the portal. The browser has the secret in a cookie."""
    LINK = "link"
    """A one-time link: its code can be exchanged for a session."""


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
    purpose: Purpose = Purpose.API
    parent: str = ""
    """The token that a session or a link was made from. They expire in real time, and end with this token. If a session
    made them, `created_by` is its name, and they end with it, too."""
    generation: int = 0
    """The generation of the group of a tenant token (`Fleet.generation`). The token ends with this group."""

    def may(self, minimum: Role, *, tenant: bool) -> bool:
        """Return whether the token has at least this role. `tenant`: whether tenants are allowed too."""
        if self.role is Role.TENANT:
            return tenant
        return _LADDER.index(self.role) >= _LADDER.index(minimum)

    def has_group_in(self, fleet: Fleet) -> bool:
        """Return whether its group still exists, and not only another group of that name. True if it needs none."""
        return self.role is not Role.TENANT or fleet.generation(self.group) == self.generation

    def sees(self, event: Event) -> bool:
        """Return whether the token may see and approve an event. A tenant sees the events of its group."""
        return self.role is not Role.TENANT or (event.group, event.generation) == (self.group, self.generation)

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
        token = token._replace(generation=draft.fleet.generation(token.group) or 0)
    _remove_children(draft, token.name)
    draft.changes.tokens[token.name] = token
    of_group = f" of {token.group}" if token.group else ""
    draft.record(HistoryEntry(time=now, kind="token-created", by=by, reason=f"{token.name}: {token.role}{of_group}"))
    return token


def revoke_token(draft: Draft, now: datetime, limits: OperatorLimits, name: str, by: str) -> Token:
    """Revoke a token. The last admin token that does not expire cannot be revoked."""
    token = draft.token(name)
    if token is not None and token.purpose is Purpose.SESSION:
        return end_session(draft, now, limits, name, by)
    if token is None or token.purpose is Purpose.LINK:
        raise UnknownResource(what="token", name=name, hint=nearest(name, [token.name for token in api_tokens(draft)]))
    others = [other for other in api_tokens(draft) if other.name != name and other.role is Role.ADMIN]
    if token.role is Role.ADMIN and not any(other.expires_at is None for other in others):
        raise LastAdmin(name=name)
    _revoke(draft, now, token, by, name)
    return token


def _revoke(draft: Draft, now: datetime, token: Token, by: str, reason: str) -> None:
    draft.changes.tokens[token.name] = None
    _remove_children(draft, token.name)
    draft.changes.facts[REVOKED + token.hash] = f"{to_text(now)} {token.name}"
    draft.record(HistoryEntry(time=now, kind="token-revoked", by=by, reason=reason))


def revoke_without_group(draft: Draft, now: datetime, by: str) -> list[str]:
    """Revoke the tokens of groups that no longer exist. Return their names."""
    revoked = [token for token in api_tokens(draft) if not token.has_group_in(draft.fleet)]
    for token in revoked:
        _revoke(draft, now, token, by, f"{token.name}: its group {token.group} was removed")
    return [token.name for token in revoked]


def revocation(facts: Mapping[str, str], hash_: str) -> tuple[datetime, str] | None:
    """Return when the token with this hash was revoked, and its name; None if it was not."""
    time, _, name = facts.get(REVOKED + hash_, "").partition(" ")
    return (from_text(time), name) if time else None


# --- Sessions and links ---------------------------------------------------------------------------
# People live in real time, also if the clock of the service is virtual. So these commands get the system time.


LINK_LIFETIME = timedelta(minutes=1)
MAX_CHILDREN = 50
"""Sessions of one token, and as many links. A new one replaces the oldest."""


def api_tokens(draft: Draft) -> list[Token]:
    """Return the tokens that clients of the API use: all except sessions and links."""
    return [token for token in draft.all_tokens() if token.purpose is Purpose.API]


def create_session(
    draft: Draft,
    now: datetime,
    limits: OperatorLimits,
    parent: Token,
    hash_: str,
    system_time: datetime,
    lifetime: timedelta,
) -> Token:
    """Create a session with the role and the group of a token."""
    if draft.token(parent.name) != parent:
        raise UnknownToken
    return _start_session(draft, now, parent, parent, hash_, system_time, lifetime)


def create_link(
    draft: Draft, now: datetime, limits: OperatorLimits, maker: str, hash_: str, system_time: datetime
) -> Token:
    """Create a one-time link for a token or a session."""
    token = draft.token(maker)
    parent = token if token is None or token.purpose is Purpose.API else draft.token(token.parent)
    if token is None or parent is None or token.purpose is Purpose.LINK:
        raise UnknownToken
    return _add_child(draft, now, parent, token, Purpose.LINK, hash_, system_time, LINK_LIFETIME)


def exchange_link(
    draft: Draft,
    now: datetime,
    limits: OperatorLimits,
    code_hash: str,
    hash_: str,
    system_time: datetime,
    lifetime: timedelta,
) -> Token:
    """Replace a link with a session. Both are one commit, so a link is valid once."""
    links = (token for token in draft.all_tokens() if token.purpose is Purpose.LINK and token.hash == code_hash)
    link = next(links, None)
    if link is None or not link.valid_at(system_time):
        raise UnknownCode
    parent, maker = draft.token(link.parent), draft.token(link.created_by)
    if parent is None or maker is None:
        raise UnknownCode
    draft.changes.tokens[link.name] = None
    return _start_session(draft, now, parent, maker, hash_, system_time, lifetime)


def end_session(draft: Draft, now: datetime, limits: OperatorLimits, name: str, by: str) -> Token:
    """End a session before it expires, and with it the sessions and links that it has made."""
    session = draft.token(name)
    if session is None or session.purpose is not Purpose.SESSION:
        raise UnknownResource(what="session", name=name, hint="")
    _remove_with_made(draft, [session])
    draft.record(HistoryEntry(time=now, kind="session-ended", by=by, reason=name))
    return session


def _start_session(
    draft: Draft,
    now: datetime,
    parent: Token,
    maker: Token,
    hash_: str,
    system_time: datetime,
    lifetime: timedelta,
) -> Token:
    session = _add_child(draft, now, parent, maker, Purpose.SESSION, hash_, system_time, lifetime)
    reason = f"{session.name}, until {format_time(session.expires_at)}" if session.expires_at else session.name
    draft.record(HistoryEntry(time=now, kind="session-started", by=parent.name, reason=reason))
    return session


def _add_child(
    draft: Draft,
    now: datetime,
    parent: Token,
    maker: Token,
    purpose: Purpose,
    hash_: str,
    system_time: datetime,
    lifetime: timedelta,
) -> Token:
    """Add a session or a link, and remove expired ones. `maker`: the parent itself, or a session of it.

    What a session makes does not outlive it. So nobody can stay signed in for longer than a session lasts.
    """
    if parent.expires_at is not None and not parent.valid_at(now):
        raise TokenExpired(time=format_time(parent.expires_at), name=parent.name)
    made = [token for token in draft.all_tokens() if token.purpose is not Purpose.API]
    expired = [token for token in made if not token.valid_at(system_time)]
    siblings = [token for token in made if token.parent == parent.name and token.purpose is purpose]
    oldest_first = sorted((token for token in siblings if token not in expired), key=lambda token: token.created_at)
    _remove_with_made(draft, [*expired, *oldest_first[: max(len(oldest_first) + 1 - MAX_CHILDREN, 0)]])
    expires_at = system_time + lifetime
    if maker.purpose is Purpose.SESSION and maker.expires_at is not None:
        if draft.token(maker.name) is None or not maker.valid_at(system_time):
            raise SessionEnded
        expires_at = min(expires_at, maker.expires_at)
    child = parent._replace(
        name=f"{parent.name}~{hash_[:12]}",  # users cannot choose a name with this character
        hash=hash_,
        created_by=maker.name,
        created_at=system_time,
        expires_at=expires_at,
        purpose=purpose,
        parent=parent.name,
    )
    draft.changes.tokens[child.name] = child
    return child


def _remove_with_made(draft: Draft, removed: Iterable[Token]) -> None:
    """Remove sessions and links, and what these sessions have made, directly or not."""
    waiting = list(removed)
    made: dict[str, list[Token]] = {}
    for token in draft.all_tokens() if waiting else ():
        if token.purpose is not Purpose.API:
            made.setdefault(token.created_by, []).append(token)
    while waiting:
        name = waiting.pop().name
        draft.changes.tokens[name] = None
        waiting += made.pop(name, ())


def _remove_children(draft: Draft, parent: str) -> None:
    """Remove the sessions and links of a token that ends or is replaced."""
    for token in draft.all_tokens():
        if token.parent == parent:
            draft.changes.tokens[token.name] = None


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


def known_response(draft: Draft, now: datetime, key: str) -> StoredResponse | None:
    """Return the response to a request with this key within the last day."""
    known = draft.stored_response(key)
    return known if known is not None and now - known.at < RESPONSE_RETENTION else None


def run_once(
    draft: Draft,
    now: datetime,
    limits: OperatorLimits,
    key: str,
    fingerprint: str,
    decide: Callable[[Draft, datetime, OperatorLimits], Steps[tuple[int, str]]],
) -> Steps[StoredResponse]:
    """Return the stored response of the same request within the last day, or run the request and store its response.

    The change and its response are one commit: after a crash both are stored, or neither.
    """
    known = known_response(draft, now, key)
    if known is not None:
        if known.fingerprint != fingerprint:
            raise IdempotencyKeyReused(key=key.partition(" ")[2])
        return known
    status, body = yield from decide(draft, now, limits)
    response = StoredResponse(key, fingerprint, now, status, body)
    draft.changes.responses[key] = response
    return response
