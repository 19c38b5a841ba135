"""Tokens and kept answers as rows of a table, and back."""

from __future__ import annotations

from typing import Any

from forewarn.core.access import Kept, Role, Token
from forewarn.core.durations import from_text, to_text, to_text_if_any

Row = tuple[Any, ...]


def token_to_row(token: Token) -> Row:
    return (
        token.name,
        token.role.value,
        token.group,
        token.hash,
        token.created_by,
        to_text(token.created_at),
        to_text_if_any(token.expires_at),
    )


def token_from_row(row: Row) -> Token:
    name, role, group, digest, created_by, created_at, expires_at = row
    return Token(
        name=name,
        role=Role(role),
        hash=digest,
        created_by=created_by,
        created_at=from_text(created_at),
        group=group,
        expires_at=from_text(expires_at) if expires_at else None,
    )


def kept_to_row(kept: Kept) -> Row:
    return (kept.key, kept.fingerprint, to_text(kept.at), kept.status, kept.body)


def kept_from_row(row: Row) -> Kept:
    key, fingerprint, at, status, body = row
    return Kept(key, fingerprint, from_text(at), status, body)
