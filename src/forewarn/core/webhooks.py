"""Webhooks: where they may send, what they are, and what each one still has to send. Pure: `now` is an argument."""

from __future__ import annotations

import heapq
from collections import deque
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit

from forewarn.core.access import check_name
from forewarn.core.history import HAPPENINGS
from forewarn.core.state import Entry
from forewarn.errors import BadOption, BadWebhookTarget, ForbiddenTarget, TooMany, Unknown, WebhookExists, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from ipaddress import IPv4Network, IPv6Network

    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft


SETTING = "webhook_private_targets"
ALL = "all"
LONGEST_URL = 2000

_GLOBAL_UNICAST = ip_network("2000::/3")
"""All that IANA gives out of IPv6. Old Pythons take some of the rest, site-local addresses say, for global."""
_DOCUMENTATION = ip_network("3fff::/20")
_NAT64 = ip_network("64:ff9b::/96")
_UNIQUE_LOCAL = ip_network("fc00::/7")
_THIS_NETWORK = ip_network("0.0.0.0/8")
_PROTOCOLS = ip_network("192.0.0.0/24")
"""Kept for protocols; metadata of Oracle's cloud has been there. Old Pythons take most of it for global."""
_METADATA = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # Azure's own services to its VMs, from a public range
            "100.100.100.200/32",  # Alibaba's metadata
            "fd00:ec2::254/128",  # Amazon's metadata
            "fd20:ce::254/128",  # Google's metadata
        ),
    )
)
"""What clouds tell their machines, secrets among it, from addresses that look like any other."""


class Targets(NamedTuple):
    """What the operator allows beyond the public Internet."""

    everything: bool = False
    """All private and loopback addresses. Not where the metadata of clouds is: link-local, and a few others."""
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def __str__(self) -> str:
        return ALL if self.everything else ", ".join(map(str, self.networks))

    def allow(self, text: str) -> bool:
        """Whether a connection to this address is allowed."""
        address = unwrapped(ip_address(text))
        if any(address in network for network in self.networks):
            return True
        if address in _PROTOCOLS or any(address in network for network in _METADATA):
            return False
        return _is_global(address) or (self.everything and _is_private(address))


def parse_targets(text: str) -> Targets:
    """Read "all", or networks with commas between them. A ValueError's text says what would be right."""
    if text.strip() == ALL:
        return Targets(everything=True)
    networks = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ip_network(part))
        except ValueError as error:
            raise ValueError(f"{error}. Write networks like 10.0.0.0/8, 127.0.0.1/32; or all; or nothing") from None
    return Targets(networks=tuple(networks))


def unwrapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address stands for, where it stands for one: that is where packets end up."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    # Without its zone ("%eth0"), which says through which interface, not where to.
    return inner or IPv6Address(int(address))


def _is_global(address: IPv4Address | IPv6Address) -> bool:
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    return isinstance(address, IPv4Address) or (address in _GLOBAL_UNICAST and address not in _DOCUMENTATION)


def _is_private(address: IPv4Address | IPv6Address) -> bool:
    """Not what reaches many, or whoever happens to be on the same wire, or the machine itself by an odd name."""
    odd = address.is_link_local or address.is_multicast or address.is_unspecified or address in _THIS_NETWORK
    if isinstance(address, IPv4Address):
        return not odd and not address.is_reserved
    return not odd and (address.is_loopback or address in _UNIQUE_LOCAL)


def check_target(url: str, targets: Targets) -> SplitResult:
    """The parts of a URL that a webhook may have. An address in it is judged here; a name when it is looked up."""
    parts, host = _split(url)
    try:
        allowed = targets.allow(host)
    except ValueError:
        return parts  # a name
    if not allowed:
        raise ForbiddenTarget(address=host, setting=SETTING)
    return parts


def _split(url: str) -> tuple[SplitResult, str]:
    if len(url) > LONGEST_URL:
        raise BadWebhookTarget(url=url[:80] + "…", problem=f"it is longer than {LONGEST_URL} characters")
    if not url.isascii() or any(sign <= " " or sign in '\\"<>^`{|}\x7f' for sign in url):
        problem = "it has characters that no URL has. Write them percent-encoded, and names of hosts as xn--…"
        raise BadWebhookTarget(url=url, problem=problem)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise BadWebhookTarget(url=url, problem=f"{error}") from None
    problem = ""
    if parts.scheme not in ("http", "https"):
        problem = "it begins with neither http:// nor https://"
    elif not host or "%" in host:
        problem = "it has no host, or one that cannot be: write it like https://example.com/hook"
    elif port == 0:
        problem = "a port is from 1 to 65535"
    elif "@" in parts.netloc:
        problem = "a user name or password does not belong in it: what is sent is signed instead"
    elif "#" in url:
        problem = "what follows a # is never sent: leave it out"
    if problem:
        raise BadWebhookTarget(url=url, problem=problem)
    return parts, host


# --- Webhooks -------------------------------------------------------------------------------------


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


# --- The outbox of one webhook --------------------------------------------------------------------


WINDOW = 1000
"""How many rows beyond the position may be taken, and how many of them be settled ahead of it."""
MOST_WAITING = 10_000
"""How many undelivered rows a webhook may have before it is given more."""
_LONGEST_PAUSE_SECONDS = 3600.0
_JITTER = 0.2


class Pace(NamedTuple):
    """How often, and how many times, a row is tried."""

    retry_seconds: float = 1.0
    attempts: int = 80

    def pause_seconds(self, attempts: int, luck: float) -> float:
        """After so many attempts: twice as long each time, and by luck (from 0 to 1) a little longer."""
        doubled = self.retry_seconds * 2.0 ** min(attempts - 1, 60)
        return min(doubled, _LONGEST_PAUSE_SECONDS) * (1 + _JITTER * luck)


class Attempt(NamedTuple):
    """A row of history that is to be sent now."""

    sequence: int
    group: str
    number: int


class Settlement(NamedTuple):
    """What is to be written: the webhook as it was and as it is to be, and what is undelivered, or no more."""

    before: Webhook
    after: Webhook
    undelivered: dict[int, Undelivered | None]
    groups: dict[str, float]
    """Whose next row may go out once it is written, and from when on."""


class Backlog:
    """The queues of one webhook."""

    def __init__(self, webhook: Webhook, undelivered: Iterable[Undelivered], pace: Pace, now: float) -> None:
        self.webhook = webhook
        """As it is on disk."""
        self.newest = webhook.position
        """Up to where history has been taken."""
        self._pace = pace
        self._queues: dict[str, deque[int]] = {}
        self._waiting: dict[int, Undelivered] = {}
        """What is undelivered and not given up."""
        self._open: dict[int, None] = {}
        """What is taken and not settled, in sequence."""
        self._ahead = set(webhook.ahead)
        self._furthest = max(webhook.ahead, default=0)
        """Up to where history was taken before the start: it must be read again, for what is missing there."""
        self._agenda: list[tuple[float, int, str]] = []
        self._due_at: dict[str, float] = {}
        """When each group's next attempt is due; entries of the agenda that differ are outdated."""
        self._busy: dict[str, int] = {}
        """Groups with an attempt under way, or one whose outcome is not written; and of which row."""
        self._finished: dict[str, float] = {}
        """Of those, the ones with an outcome; and when the next attempt may be."""
        self._unwritten: dict[int, Undelivered | None] = {}
        self._being_written: dict[int, Undelivered | None] = {}
        """Of the settlement that is under way."""
        self._stuck: set[str] = set()
        """Groups whose first row has failed."""
        self._hopeful: set[str] = set()
        """Of those, the ones that nothing was delivered since: perhaps the receiver was away."""
        self.revive(undelivered, now)

    # --- What comes in ------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether more of history may be taken."""
        if len(self._waiting) >= MOST_WAITING or len(self._open) >= WINDOW:
            return False
        return len(self._ahead) < WINDOW or self.newest < self._furthest

    def skip(self, oldest: int) -> int:
        """History is not kept before this row. How many it had not come to are gone with that, wanted or not."""
        if oldest <= self.newest + 1:
            return 0
        known = sum(self.newest < sequence < oldest for sequence in self._ahead)
        gone = oldest - 1 - self.newest - known
        self.newest = oldest - 1
        return gone

    def take(self, entries: Iterable[Entry], now: float) -> None:
        """The next rows of history."""
        for entry in entries:
            self.newest = entry.sequence
            if entry.sequence in self._ahead or not self.webhook.wants(entry):
                continue
            queue = self._queues.setdefault(entry.group, deque())
            self._open[entry.sequence] = None
            if queue and queue[0] in self._waiting:
                self._put_off(entry.sequence, entry.group)
            queue.append(entry.sequence)
            if len(queue) == 1:
                self._plan(entry.group, now)

    def revive(self, rows: Iterable[Undelivered], now: float) -> None:
        """Undelivered rows, as they are on disk: what is not given up is to be tried, unless it is known here.

        All at a start; later what was given up and is asked for again.
        """
        found: dict[str, list[int]] = {}
        for row in rows:
            if not row.given_up and not self._knows(row.sequence):
                self._waiting[row.sequence] = row
                found.setdefault(row.group, []).append(row.sequence)
        for group, sequences in found.items():
            queue = sorted([*self._queues.get(group, ()), *sequences])
            if (under_way := self._busy.get(group)) in queue:  # it stays first
                queue.insert(0, queue.pop(queue.index(under_way)))
            self._queues[group] = deque(queue)
            self._plan(group, now)

    def wake(self, groups: Iterable[str], now: float) -> None:
        """Wait no longer: try the first row of each of these groups now."""
        for group in self._queues.keys() & groups:
            self._plan(group, now)

    # --- What goes out ------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """When the next attempt is due."""
        while self._agenda and self._due_at.get(self._agenda[0][2]) != self._agenda[0][0]:
            heapq.heappop(self._agenda)
        return self._agenda[0][0] if self._agenda else None

    def begin(self, now: float) -> Attempt | None:
        """The next row to send, if one is due."""
        due_at = self.next_due()
        if due_at is None or due_at > now:
            return None
        _, _, group = heapq.heappop(self._agenda)
        del self._due_at[group]
        sequence = self._busy[group] = self._queues[group][0]
        known = self._waiting.get(sequence)
        return Attempt(sequence, group, 1 + (known.attempts if known else 0))

    def abandon(self, attempt: Attempt, now: float) -> None:
        """It did not come to the attempt: it is due at another time."""
        del self._busy[attempt.group]
        self._plan(attempt.group, now)

    def pass_over(self, attempt: Attempt, now: float) -> bool:
        """There is nothing to send any more. Whether it was noted as undelivered."""
        self._queues[attempt.group].popleft()
        noted = self._waiting.pop(attempt.sequence, None) is not None
        if noted:
            self._unwritten[attempt.sequence] = None
        self._settle(attempt.sequence)
        self._stuck.discard(attempt.group)
        self._hopeful.discard(attempt.group)
        self._finished[attempt.group] = now
        return noted

    def delivered(self, attempt: Attempt, now: float) -> None:
        """The receiver has it."""
        self.pass_over(attempt, now)
        # The receiver is there. Who has only failed since it was last there need not wait any longer; who
        # fails again now has a problem of its own, and keeps to its pauses.
        for group in self._hopeful:
            self._plan(group, now)
        self._hopeful &= self._busy.keys()

    def failed(self, attempt: Attempt, problem: str, now: float, luck: float) -> None:
        """The receiver has not taken it."""
        group = attempt.group
        given_up = attempt.number >= self._pace.attempts
        row = Undelivered(self.webhook.name, attempt.sequence, group, attempt.number, problem, given_up)
        self._unwritten[attempt.sequence] = row
        self._settle(attempt.sequence)
        if given_up:
            self._queues[group].popleft()
            self._waiting.pop(attempt.sequence, None)
            self._stuck.discard(group)
            self._hopeful.discard(group)
            self._finished[group] = now
            return
        self._waiting[attempt.sequence] = row
        for sequence in self._queues[group]:
            if sequence in self._open:
                self._put_off(sequence, group)
        if group not in self._stuck:
            self._stuck.add(group)
            self._hopeful.add(group)
        self._finished[group] = now + self._pace.pause_seconds(attempt.number, luck)

    @property
    def is_behind(self) -> bool:
        """Whether anything is tried again, or waits behind such a one."""
        return bool(self._waiting)

    # --- What is to be written ------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Everything up to here is settled."""
        return next(iter(self._open), self.newest + 1) - 1

    def settlement(self, *, whole: bool = False) -> Settlement | None:
        """What has changed since the last, if it is worth a write; `whole`: however little."""
        position = self.position
        moved = position - self.webhook.position
        if not (self._finished or self._unwritten or moved >= WINDOW or (whole and moved)):
            return None
        self._ahead = {sequence for sequence in self._ahead if sequence > position}
        after = self.webhook._replace(position=position, ahead=tuple(sorted(self._ahead)))
        found = Settlement(self.webhook, after, self._unwritten, self._finished)
        self._being_written = self._unwritten
        self._unwritten, self._finished = {}, {}
        return found

    def written(self, settlement: Settlement) -> None:
        """It is on disk."""
        self.webhook = settlement.after
        self._being_written = {}
        for group, next_at in settlement.groups.items():
            del self._busy[group]
            if self._queues[group]:
                self._plan(group, next_at)
            else:
                del self._queues[group]

    # --- Inside ---------------------------------------------------------------------------------------

    def _knows(self, sequence: int) -> bool:
        """Whether the disk says nothing new of an undelivered row: it waits, or its outcome is about to be written."""
        if sequence in self._waiting or sequence in self._unwritten:
            return True
        # What is given up in this very write is asked for again if the disk has it as not given up after that.
        outcome = self._being_written.get(sequence)
        return sequence in self._being_written and (outcome is None or not outcome.given_up)

    def _put_off(self, sequence: int, group: str) -> None:
        """It waits behind a row that has failed."""
        self._waiting[sequence] = self._unwritten[sequence] = Undelivered(self.webhook.name, sequence, group)
        self._settle(sequence)

    def _settle(self, sequence: int) -> None:
        if sequence in self._open:
            del self._open[sequence]
            self._ahead.add(sequence)

    def _plan(self, group: str, moment: float) -> None:
        """When the group's first row is tried. While one is under way that is not known: `written` will say."""
        if group not in self._busy:
            self._due_at[group] = moment
            heapq.heappush(self._agenda, (moment, self._queues[group][0], group))
