"""Webhooks: allowed addresses, registration, and the outbox of each."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit

from forewarn.core.access import check_name
from forewarn.core.durations import backoff_seconds
from forewarn.core.history import SKIPPING_KINDS, check_kind
from forewarn.core.state import HistoryEntry
from forewarn.errors import (
    BadOption,
    BadWebhookURL,
    ForbiddenWebhookAddress,
    LimitExceeded,
    UnknownResource,
    WebhookExists,
    nearest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from ipaddress import IPv4Network, IPv6Network

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft


SETTING = "webhook_private_networks"
ALL = "all"
MAX_URL_LENGTH = 2000

_GLOBAL_UNICAST = ip_network("2000::/3")
"""All global IPv6 addresses that IANA assigns. Old Python versions treat some others as global too."""
_DOCUMENTATION = ip_network("3fff::/20")
_UNIQUE_LOCAL = ip_network("fc00::/7")
_THIS_NETWORK = ip_network("0.0.0.0/8")
_EMBEDDING = tuple(
    map(
        ip_network,
        (
            "::/96",  # IPv4-compatible
            "::ffff:0:0/96",  # IPv4-mapped
            "::ffff:0:0:0/96",  # IPv4-translated
            "64:ff9b::/96",  # NAT64
            "64:ff9b:1::/48",  # NAT64 of one operator
            "2001::/32",  # Teredo
            "2002::/16",  # 6to4
        ),
    )
)
"""IPv6 addresses that contain an IPv4 address. Packets can go there, past the rules for IPv4."""
_ISATAP = 0x5EFE
_LOOPBACK = IPv6Address(1)
_NEVER = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # for protocols; Oracle's metadata was there. Old Python versions treat most as global
            "192.88.99.0/24",  # relays of 6to4
            "168.63.129.16/32",  # Azure's own services to its VMs, from a public range
            "100.100.100.200/32",  # Alibaba's metadata
            "fd00:ec2::254/128",  # Amazon's metadata
            "fd20:ce::254/128",  # Google's metadata
        ),
    )
)
"""Addresses that look ordinary, but are not: metadata services of clouds, which return secrets, and relays."""


class AllowedNetworks(NamedTuple):
    """Networks that the operator allows in addition to the public Internet."""

    everything: bool = False
    """All private and loopback addresses, but not metadata services of clouds (link-local and some others)."""
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def __str__(self) -> str:
        return ALL if self.everything else ", ".join(map(str, self.networks))

    def allow(self, text: str) -> bool:
        """Return whether a connection to this address is allowed."""
        address = ip_address(text.partition("%")[0])  # without its zone, which only selects an interface
        if any(address in network for network in self.networks):
            return True
        if any(address in network for network in _NEVER) or _embeds_ipv4(address):
            return False
        return _is_global(address) or (self.everything and _is_private(address))


def parse_allowed_networks(text: str) -> AllowedNetworks:
    """Parse "all" or a comma-separated list of networks. Raises ValueError with a hint."""
    if text.strip() == ALL:
        return AllowedNetworks(everything=True)
    networks = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ip_network(part))
        except ValueError as error:
            raise ValueError(f"{error}. Write networks like 10.0.0.0/8, 127.0.0.1/32; or all") from None
    return AllowedNetworks(networks=tuple(networks))


def _embeds_ipv4(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address) or address == _LOOPBACK:
        return False
    # The interface id of ISATAP is 0000:5efe or 0200:5efe, then the IPv4 address.
    is_isatap = int(address) >> 32 & 0xFDFF_FFFF == _ISATAP
    return is_isatap or any(address in network for network in _EMBEDDING)


def _is_global(address: IPv4Address | IPv6Address) -> bool:
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    return isinstance(address, IPv4Address) or (address in _GLOBAL_UNICAST and address not in _DOCUMENTATION)


def _is_private(address: IPv4Address | IPv6Address) -> bool:
    """Return whether the address is private. Excludes multicast, link-local and unspecified addresses."""
    odd = address.is_link_local or address.is_multicast or address.is_unspecified or address in _THIS_NETWORK
    if isinstance(address, IPv4Address):
        return not odd and not address.is_reserved
    return not odd and (address.is_loopback or address in _UNIQUE_LOCAL)


def check_url(url: str, targets: AllowedNetworks) -> SplitResult:
    """Validate a webhook URL and return its parts. Host names are checked again when they are resolved."""
    parts, host = _split(url)
    try:
        allowed = targets.allow(host)
    except ValueError:
        return parts  # a host name
    if not allowed:
        raise ForbiddenWebhookAddress(address=host, setting=SETTING)
    return parts


def _split(url: str) -> tuple[SplitResult, str]:
    if len(url) > MAX_URL_LENGTH:
        raise BadWebhookURL(url=_public(url), problem=f"it is longer than {MAX_URL_LENGTH} characters")
    if not url.isascii() or any(sign <= " " or sign in '\\"<>^`{|}\x7f' for sign in url):
        problem = "it contains invalid characters. Percent-encode them, and write host names as xn--…"
        raise BadWebhookURL(url=_public(url), problem=problem)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # its text can have the password
        problem = "its host or its port is not valid. A port is a number from 1 to 65535"
        raise BadWebhookURL(url=_public(url), problem=problem) from None
    problem = ""
    if parts.scheme not in ("http", "https"):
        problem = "it must start with http:// or https://"
    elif not host or "%" in host:
        problem = "it has no valid host. Write it like https://example.com/hook"
    elif port == 0:
        problem = "the port must be from 1 to 65535"
    elif "@" in parts.netloc:
        problem = "it must not contain a user name or a password. Deliveries are signed instead"
    elif "#" in url:
        problem = "it must not contain a fragment (#)"
    if problem:
        raise BadWebhookURL(url=_public(url), problem=problem)
    return parts, host


def _public(url: str) -> str:
    """Return a URL for a message, without a password. The URL may be invalid in any way."""
    return f"…@{url.rpartition('@')[2]}" if "@" in url else url


# --- Webhooks -------------------------------------------------------------------------------------


MAX_WEBHOOKS = 100
MAX_WEBHOOK_GROUPS = 1000
MAX_FAILED_ROWS = 10_000
"""Maximum number of failed rows of a webhook. The oldest are dropped."""
_DROPPED_BEYOND = 1000
"""Extra rows to drop at once, because finding the oldest is slow."""
MIN_SECRET_LENGTH, MAX_SECRET_LENGTH = 16, 256


class Webhook(NamedTuple):
    """A receiver of history rows."""

    name: str
    url: str
    secret: str
    """Key of the signatures."""
    created_by: str
    created_at: datetime
    groups: tuple[str, ...] = ()
    """Only rows about these groups; none: all rows."""
    kinds: tuple[str, ...] = ()
    """Only rows of these kinds; none: all rows."""
    cursor: int = 0
    """Every row up to here is delivered, filtered out, or among the undelivered rows."""


class Undelivered(NamedTuple):
    """A history row whose delivery failed. It is retried, or has failed permanently."""

    webhook: str
    sequence: int
    attempts: int
    """Number of failed attempts."""
    attempts_left: int
    """Remaining attempts. Later rows wait while there are any. With none the row has failed."""
    error: str = ""

    @property
    def failed(self) -> bool:
        return not self.attempts_left


def find_webhook(draft: Draft, name: str) -> Webhook:
    webhook = draft.webhook(name)
    if webhook is None:
        raise UnknownResource(what="webhook", name=name, hint=nearest(name, draft.webhooks()))
    return webhook


def add_webhook(draft: Draft, now: datetime, limits: OperatorLimits, webhook: Webhook, by: str) -> Webhook:
    """Add a webhook for future rows. Returns it with its initial cursor."""
    check_name(webhook.name)
    parts = check_url(webhook.url, limits.webhook_private_networks)
    if not MIN_SECRET_LENGTH <= len(webhook.secret) <= MAX_SECRET_LENGTH or not webhook.secret.isprintable():
        problem = (
            f"write {MIN_SECRET_LENGTH} to {MAX_SECRET_LENGTH} characters on one line, or omit it to get a random one."
        )
        raise BadOption(name="secret", value="…", problem=problem)
    _check_filter(draft, webhook)
    if draft.webhook(webhook.name) is not None:
        raise WebhookExists(name=webhook.name)
    if (count := len(draft.webhooks()) + 1) > MAX_WEBHOOKS:
        remedy = "Remove one, or let one receiver forward to others."
        raise LimitExceeded(count=count, things="webhooks", what="service", maximum=MAX_WEBHOOKS, remedy=remedy)
    # Not the whole URL, because paths of webhooks often contain secrets.
    origin = f"{parts.scheme}://{parts.netloc}"
    draft.record(HistoryEntry(time=now, kind="webhook-added", by=by, reason=f"{webhook.name}: {origin}"))
    added = webhook._replace(created_by=by, created_at=now, cursor=draft.sequence)
    draft.changes.webhooks[added.name] = added
    return added


def _check_filter(draft: Draft, webhook: Webhook) -> None:
    for kind in webhook.kinds:
        if problem := check_kind(kind):
            raise BadOption(name="kinds", value=kind, problem=problem)
    if (count := len(webhook.groups)) > MAX_WEBHOOK_GROUPS:
        remedy = "Omit the groups to get all rows."
        raise LimitExceeded(count=count, things="groups", what="webhook", maximum=MAX_WEBHOOK_GROUPS, remedy=remedy)
    for group in webhook.groups:
        draft.fleet.known_group(group)


def remove_webhook(draft: Draft, now: datetime, limits: OperatorLimits, name: str, by: str) -> Webhook:
    """Remove a webhook and its undelivered rows."""
    webhook = find_webhook(draft, name)
    draft.changes.undelivered.update(dict.fromkeys((name, sequence) for sequence in draft.undelivered(name)))
    draft.changes.webhooks[name] = None
    draft.record(HistoryEntry(time=now, kind="webhook-removed", by=by, reason=name))
    return webhook


def record_deliveries(
    draft: Draft,
    now: datetime,
    limits: OperatorLimits,
    before: Webhook,
    after: Webhook,
    undelivered: Mapping[int, Undelivered | None],
) -> int | None:
    """Record the results of deliveries. Returns the number of dropped rows; None if the webhook was removed.

    Writes no history row, because that row would have to be delivered too.
    """
    if draft.webhook(before.name) != before:
        return None
    draft.changes.webhooks[after.name] = after
    draft.changes.undelivered.update(((after.name, sequence), row) for sequence, row in undelivered.items())
    failed = sum(row is not None and row.failed for row in undelivered.values())
    # This may count rows twice that had failed before; _drop_oldest counts exactly.
    if not failed or draft.webhook_deliveries.stats(after.name).failed + failed <= MAX_FAILED_ROWS:
        return 0
    return _drop_oldest(draft, after.name)


def _drop_oldest(draft: Draft, name: str) -> int:
    failed = sorted(sequence for sequence, row in draft.undelivered(name).items() if row.failed)
    if len(failed) <= MAX_FAILED_ROWS:
        return 0
    dropped = failed[: len(failed) - MAX_FAILED_ROWS + _DROPPED_BEYOND]
    draft.changes.undelivered.update(dict.fromkeys((name, sequence) for sequence in dropped))
    return len(dropped)


def retry(
    draft: Draft, now: datetime, limits: OperatorLimits, name: str, sequence: int | None = None
) -> list[Undelivered]:
    """Give failed rows, or one of them, one more attempt. Returns all rows to send now.

    Only one attempt: with a new series, rows that always fail would block the webhook for days.
    """
    find_webhook(draft, name)
    rows = draft.undelivered(name)
    if sequence is not None:
        if sequence not in rows:
            hint = f" List them with: forewarn webhook failures {name}"
            raise UnknownResource(what="undelivered history row", name=str(sequence), hint=hint)
        rows = {sequence: rows[sequence]}
    again = {number: row._replace(attempts_left=1) for number, row in rows.items() if row.failed}
    draft.changes.undelivered.update(((name, number), row) for number, row in again.items())
    return [again.get(number, rows[number]) for number in sorted(rows)]


# --- The outbox of one webhook --------------------------------------------------------------------


MAX_UNCONFIRMED = 8
"""Maximum number of deliveries whose result is not on disk. After a crash they are sent again, with the same ids."""
MAX_SKIPPED = 1000
"""Number of filtered rows after which the cursor is written without a delivery."""
_MAX_DELAY_SECONDS = 3600.0
_JITTER = 0.2


class WebhookRetryPolicy(NamedTuple):
    """Delay and number of attempts of a row."""

    retry_seconds: float = 1.0
    attempts: int = 80

    def delay_seconds(self, attempts: int, jitter: float) -> float:
        """Return the delay after this many attempts: exponential, with jitter selected by `jitter` (0 to 1)."""
        spread = (1.0, 1.0 + _JITTER)
        return backoff_seconds(attempts, self.retry_seconds, _MAX_DELAY_SECONDS, spread=spread, jitter=jitter)


class Attempt(NamedTuple):
    """A history row to send now."""

    sequence: int
    number: int
    entry: HistoryEntry | None = None
    """The row, if it is in memory. An undelivered row must be read again, and may have expired."""


class DeliveryUpdate(NamedTuple):
    """Results to write: the webhook before and after, and its changed undelivered rows."""

    before: Webhook
    after: Webhook
    undelivered: dict[int, Undelivered | None]
    outcomes: int


class Outbox:
    """Pending deliveries of one webhook, in order.

    Undelivered rows with remaining attempts come first. New history waits for them. Rows that an operator retries
    come before both.
    """

    def __init__(self, webhook: Webhook, undelivered: Iterable[Undelivered], retry_policy: WebhookRetryPolicy) -> None:
        self.webhook = webhook
        """The webhook as stored."""
        self.newest = webhook.cursor
        """Sequence of the last row that was read."""
        self.unconfirmed = 0
        """Number of results that are not on disk."""
        self._groups, self._kinds = frozenset(webhook.groups), frozenset(webhook.kinds)
        self._retry_policy = retry_policy
        self._read: deque[HistoryEntry] = deque()
        """Rows that were read and match the filters."""
        self._retried = {row.sequence: row for row in sorted(undelivered) if row.attempts_left}
        """Undelivered rows with attempts left, in sequence."""
        self._immediate: dict[int, None] = {}
        """Rows among them to send immediately, in sequence."""
        self._delayed, self._due_at = 0, 0.0
        """The row that failed last, and when to retry it."""
        self._unwritten: dict[int, Undelivered | None] = {}

    @property
    def cursor(self) -> int:
        """Every row up to here is delivered, filtered out, or among the undelivered rows."""
        return self._read[0].sequence - 1 if self._read else self.newest

    @property
    def is_retrying(self) -> bool:
        return bool(self._retried)

    @property
    def needs_history(self) -> bool:
        """Whether more history must be read."""
        return not self._read and not self._retried

    def add_entries(self, entries: Sequence[HistoryEntry], newest: int) -> int:
        """Add the next history rows; `newest` is the last sequence. Returns how many rows have expired before them.

        Expired rows are counted even if the filters would have excluded them. Numbers that a restore skipped are not.
        """
        first = entries[0].sequence if entries else newest + 1
        skipped = bool(entries) and entries[0].kind in SKIPPING_KINDS
        dropped = 0 if skipped else max(first - 1 - self.newest, 0)
        self.newest = entries[-1].sequence if entries else max(newest, self.newest)
        self._read.extend(filter(self._wants, entries))
        return dropped

    def _wants(self, entry: HistoryEntry) -> bool:
        return (not self._groups or entry.group in self._groups) and (not self._kinds or entry.kind in self._kinds)

    def requeue(self, rows: Iterable[Undelivered]) -> None:
        """Send these undelivered rows now, unless they have no attempts left or are already being retried."""
        added = {row.sequence: row for row in rows if row.attempts_left and row.sequence not in self._retried}
        if added:
            self._retried = dict(sorted((self._retried | added).items()))
            self.retry_now(added)

    def retry_now(self, sequences: Iterable[int]) -> None:
        """Retry these rows now, without a delay."""
        immediate = self._immediate.keys() | (self._retried.keys() & set(sequences))
        self._immediate = dict.fromkeys(sorted(immediate))

    def due_at(self) -> float | None:
        """Return when the next attempt is due; None: when there is more history."""
        if self._immediate:
            return 0.0
        if self._retried:
            return self._due_at if next(iter(self._retried)) == self._delayed else 0.0
        return 0.0 if self._read else None

    def next(self) -> Attempt:
        """Return the next row to send. It stays the same until its result is reported."""
        if self._retried:
            row = self._retried[next(iter(self._immediate or self._retried))]
            return Attempt(row.sequence, row.attempts + 1)
        return Attempt(self._read[0].sequence, 1, self._read[0])

    def delivered(self, attempt: Attempt) -> None:
        """Report a successful delivery. The receiver is up, so the retry delay ends."""
        self._delayed = 0
        if attempt.entry is not None:
            self._read.popleft()
        else:
            self.skip(attempt)
            self._unwritten[attempt.sequence] = None
        self.unconfirmed += 1

    def failed(self, attempt: Attempt, error: str, now: float, jitter: float) -> None:
        """Report a failed delivery. The row is retried after a delay, or fails permanently."""
        if attempt.entry is not None:
            left = self._retry_policy.attempts - 1
            self._read.clear()  # history may have removed these rows when sending continues
            self.newest = attempt.sequence
        else:
            left = self._retried[attempt.sequence].attempts_left - 1
            self._immediate.pop(attempt.sequence, None)
        row = Undelivered(self.webhook.name, attempt.sequence, attempt.number, left, error)
        self._unwritten[attempt.sequence] = row
        self.unconfirmed += 1
        if row.failed:
            self._retried.pop(attempt.sequence, None)
            return
        self._retried[attempt.sequence] = row
        self._delayed, self._due_at = attempt.sequence, now + self._retry_policy.delay_seconds(attempt.number, jitter)

    def skip(self, attempt: Attempt) -> None:
        """Skip an undelivered row that history has removed. Retention counts it as dropped."""
        self._retried.pop(attempt.sequence, None)
        self._immediate.pop(attempt.sequence, None)

    def next_update(self, *, whole: bool = False) -> DeliveryUpdate | None:
        """Return the results to write, if there are enough; `whole`: any results."""
        passed = self.cursor - self.webhook.cursor
        if not (self.unconfirmed or passed >= MAX_SKIPPED or (whole and passed)):
            return None
        after = self.webhook._replace(cursor=self.cursor)
        unwritten, self._unwritten = self._unwritten, {}
        return DeliveryUpdate(self.webhook, after, unwritten, self.unconfirmed)

    def written(self, update: DeliveryUpdate) -> None:
        """Confirm that an update is on disk."""
        self.webhook = update.after
        self.unconfirmed -= update.outcomes
