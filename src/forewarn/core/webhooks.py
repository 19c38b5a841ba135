"""Webhooks: who else is told of what happens, how far each has been told, and what could not be told yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.access import check_name
from forewarn.core.happenings import HAPPENINGS
from forewarn.core.ledger import Entry
from forewarn.core.targets import check_target
from forewarn.errors import BadOption, TooMany, Unknown, WebhookExists, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from forewarn.core.draft import Draft
    from forewarn.core.terms import Terms

MOST_WEBHOOKS = 100
MOST_GROUPS = 1000
MOST_GIVEN_UP = 10_000
"""How many rows of a webhook are kept that were given up, for whoever asks for them again."""
_DROPPED_BEYOND = 1000
"""How many fewer are left when there are too many: to look for the oldest at each row would take too long."""
SHORTEST_SECRET, LONGEST_SECRET = 16, 256


class Webhook(NamedTuple):
    """Somebody who is told of every row of history, or of some of them."""

    name: str
    url: str
    secret: str
    """What the signatures are made with."""
    created_by: str
    created_at: datetime
    groups: tuple[str, ...] = ()
    """Only rows about these groups; none: about all, and about none."""
    kinds: tuple[str, ...] = ()
    """Only rows that say this has happened; none: all."""
    position: int = 0
    """Every row up to here is delivered, or not wanted, or noted as undelivered."""
    ahead: tuple[int, ...] = ()
    """The same of these beyond it: groups do not wait for each other."""

    def wants(self, entry: Entry) -> bool:
        return (not self.groups or entry.group in self.groups) and (not self.kinds or entry.what in self.kinds)


class Undelivered(NamedTuple):
    """A row of history that a webhook could not be told of, or that waits behind such a one of its group."""

    webhook: str
    sequence: int
    group: str
    attempts: int = 0
    problem: str = ""
    given_up: bool = False


def find_webhook(draft: Draft, name: str) -> Webhook:
    webhook = draft.webhook(name)
    if webhook is None:
        raise Unknown(what="webhook", name=name, hint=nearest(name, draft.webhooks()))
    return webhook


def add_webhook(draft: Draft, now: datetime, terms: Terms, webhook: Webhook, by: str) -> Webhook:
    """Tell somebody else from now on. Returns it with the position that it begins at."""
    check_name(webhook.name)
    parts = check_target(webhook.url, terms.webhook_targets)
    if not SHORTEST_SECRET <= len(webhook.secret) <= LONGEST_SECRET or not webhook.secret.isprintable():
        problem = f"write {SHORTEST_SECRET} to {LONGEST_SECRET} characters on one line, or leave it out to get one"
        raise BadOption(name="secret", value="…", problem=problem)
    _check_wishes(draft, webhook)
    if draft.webhook(webhook.name) is not None:
        raise WebhookExists(name=webhook.name)
    if (count := len(draft.webhooks()) + 1) > MOST_WEBHOOKS:
        remedy = "Remove one, or have one receiver pass on to others."
        raise TooMany(count=count, things="webhooks", what="service", most=MOST_WEBHOOKS, remedy=remedy)
    # Not the whole URL: what follows the host is often meant for the receiver alone.
    draft.note(Entry(at=now, what="webhook added", by=by, why=f"{webhook.name}: {parts.scheme}://{parts.netloc}"))
    added = webhook._replace(created_by=by, created_at=now, position=draft.sequence, ahead=())
    draft.changes.webhooks[added.name] = added
    return added


def _check_wishes(draft: Draft, webhook: Webhook) -> None:
    for kind in webhook.kinds:
        if kind not in HAPPENINGS:
            problem = f"history never says that.{nearest(kind, HAPPENINGS)} It says: {', '.join(HAPPENINGS)}"
            raise BadOption(name="kinds", value=kind, problem=problem)
    if (count := len(webhook.groups)) > MOST_GROUPS:
        remedy = "Name none to be told of all."
        raise TooMany(count=count, things="groups", what="webhook", most=MOST_GROUPS, remedy=remedy)
    for group in webhook.groups:
        draft.fleet.known_group(group)


def remove_webhook(draft: Draft, now: datetime, terms: Terms, name: str, by: str) -> Webhook:
    """Tell somebody no more, also not what is still undelivered."""
    webhook = find_webhook(draft, name)
    draft.changes.undelivered.update(dict.fromkeys((name, sequence) for sequence in draft.undelivered(name)))
    draft.changes.webhooks[name] = None
    draft.note(Entry(at=now, what="webhook removed", by=by, why=name))
    return webhook


def settle(
    draft: Draft,
    now: datetime,
    terms: Terms,
    before: Webhook,
    after: Webhook,
    undelivered: Mapping[int, Undelivered | None],
) -> int | None:
    """Note how far a webhook has come. None: it was removed meanwhile, perhaps there is another of its name.

    Else how many rows are kept no more, because too many were given up.

    No row of history: it would have to be delivered too, and so on.
    """
    if draft.webhook(before.name) != before:
        return None
    draft.changes.webhooks[after.name] = after
    draft.changes.undelivered.update(((after.name, sequence), row) for sequence, row in undelivered.items())
    given_up = sum(row is not None and row.given_up for row in undelivered.values())
    # Some may have been given up before: then looking more closely shows that there is room.
    if not given_up or draft.told.tally(after.name).given_up + given_up <= MOST_GIVEN_UP:
        return 0
    return _drop_oldest(draft, after.name)


def _drop_oldest(draft: Draft, name: str) -> int:
    given_up = sorted(sequence for sequence, row in draft.undelivered(name).items() if row.given_up)
    if len(given_up) <= MOST_GIVEN_UP:
        return 0
    dropped = given_up[: len(given_up) - MOST_GIVEN_UP + _DROPPED_BEYOND]
    draft.changes.undelivered.update(dict.fromkeys((name, sequence) for sequence in dropped))
    return len(dropped)


class Retried(NamedTuple):
    """What is to be tried now, and of which webhook: there may soon be another of its name."""

    webhook: Webhook
    rows: list[Undelivered]


def retry(draft: Draft, now: datetime, terms: Terms, name: str, sequence: int | None = None) -> Retried:
    """What was given up gets one more attempt each, or one of them. Returns all that is to be tried now.

    One, not a new series: a row that is never taken would hold up its group for days again.
    """
    webhook = find_webhook(draft, name)
    rows = draft.undelivered(name)
    if sequence is not None:
        if sequence not in rows:
            hint = f" See them with: forewarn webhook failures {name}"
            raise Unknown(what="undelivered row of history", name=str(sequence), hint=hint)
        rows = {sequence: rows[sequence]}
    wanted = {number: row._replace(given_up=False) for number, row in rows.items()}
    draft.changes.undelivered.update(((name, number), row) for number, row in wanted.items() if row != rows[number])
    return Retried(webhook, [wanted[number] for number in sorted(wanted)])
