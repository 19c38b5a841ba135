"""Webhooks as rows of a table, and back."""

from __future__ import annotations

import json
from typing import Any

from forewarn.core.durations import from_text, to_text
from forewarn.core.webhooks import Undelivered, Webhook

Row = tuple[Any, ...]


def webhook_to_row(webhook: Webhook) -> Row:
    created_at = to_text(webhook.created_at)
    lists = (json.dumps(webhook.groups), json.dumps(webhook.kinds), webhook.position, json.dumps(webhook.ahead))
    return (webhook.name, webhook.url, webhook.secret, webhook.created_by, created_at, *lists)


def webhook_from_row(row: Row) -> Webhook:
    groups, kinds, position, ahead = row[5:]
    lists = (tuple(json.loads(groups)), tuple(json.loads(kinds)), position, tuple(json.loads(ahead)))
    return Webhook._make((*row[:4], from_text(row[4]), *lists))


def undelivered_from_row(row: Row) -> Undelivered:
    return Undelivered._make((*row[:5], bool(row[5])))
