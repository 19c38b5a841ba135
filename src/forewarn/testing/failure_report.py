"""What the report of a failed test shows about each service: its history, and what each VM saw.

The pytest plugin reads the sections after a failure. A service that stops during a test leaves a snapshot until the
test ends. Fixtures stop their service later, so a test that passes with a fixture takes no snapshot.
"""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import format_time
from forewarn.ports import HistoryFilter
from forewarn.wire.document_reader import read_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from forewarn.assembly import Assembly
    from forewarn.core.state import HistoryEntry
    from forewarn.metadata.delivery_tracking import DeliveredDocument
    from forewarn.testing.running_service import RunningService

__tracebackhide__ = True

TIMEOUT_SECONDS = 5.0
"""How long the report waits for a service that hangs."""
MAX_SERVICES = 3
MAX_ROWS = 40
MAX_VMS = 15
MAX_DOCUMENTS = 5
MAX_NAMES = 5
MAX_WIDTH = 160

_COLUMNS = ("time (UTC)", "kind", "about", "type", "by", "reason")


class SeenByVM(NamedTuple):
    """What one VM saw."""

    vm: str
    polls: int
    status: int
    """The status of the last response. 0: there was none."""
    document_count: int
    documents: list[DeliveredDocument]
    """The last ones."""


class ServiceSnapshot(NamedTuple):
    """A service at one moment."""

    now: datetime
    row_count: int
    rows: list[HistoryEntry]
    """The newest rows, oldest first."""
    seen: list[SeenByVM]
    silent: list[str]
    """The VMs that have never polled."""


_services: dict[RunningService, ServiceSnapshot | str | None] = {}
"""The services, in the order of their start. A stopped one has a snapshot, or the reason why there is none."""


def service_started(service: RunningService) -> None:
    """Include the service in reports."""
    _services[service] = None


def service_stopping(service: RunningService) -> None:
    """Keep a snapshot if the test can still fail, and forget the service otherwise."""
    if os.environ.get("PYTEST_CURRENT_TEST", "").endswith(("(setup)", "(call)")):
        _services[service] = _read(service)
    else:
        _services.pop(service, None)


def forget_stopped() -> None:
    """Forget the services of a test that has ended."""
    for service, snapshot in list(_services.items()):
        if snapshot is not None:
            _services.pop(service, None)


def _read(service: RunningService) -> ServiceSnapshot | str:
    """Return a snapshot, or the reason why there is none. A report must not fail or hang."""
    try:
        reading = service.loop.submit(_take(service.assembly))
        try:
            return reading.result(TIMEOUT_SECONDS)
        except TimeoutError:
            reading.cancel()
            return f"The service did not respond within {TIMEOUT_SECONDS:g} seconds."
    except Exception as error:  # noqa: BLE001 - the failure of the test is more important
        return f"The service could not be read: {error!r}"


async def _take(assembly: Assembly) -> ServiceSnapshot:
    engine, tracker = assembly.engine, assembly.metadata.delivery_tracker
    rows = await engine.records.history(HistoryFilter(newest=True, limit=MAX_ROWS))
    polled = tracker.vms()
    seen = []
    for vm in polled:
        tracking = tracker.tracking(vm)
        documents = tracking.documents
        seen.append(SeenByVM(vm, tracking.polls, tracking.status, len(documents), documents[-MAX_DOCUMENTS:]))
    silent = [vm for vm in engine.fleet.vms if vm not in polled]
    return ServiceSnapshot(engine.clock.now(), engine.records.newest, rows[::-1], seen, silent)


# --- Text -----------------------------------------------------------------------------------------


def sections() -> list[tuple[str, str]]:
    """Return the title and the text of each section, for the services that run and those that have just stopped."""
    services = list(_services.items())
    found = []
    for number, (service, stopped) in enumerate(services[-MAX_SERVICES:], max(len(services) - MAX_SERVICES, 0) + 1):
        which = f", service {number}" if len(services) > 1 else ""
        snapshot = stopped or _read(service)
        if isinstance(snapshot, str):
            found.append((f"Forewarn: history{which}", snapshot))
            continue
        for title, lines in (("history", _history(snapshot)), ("what each VM saw", _seen(snapshot))):
            found.append((f"Forewarn: {title}{which}", "\n".join(line[:MAX_WIDTH] for line in lines)))
    return found


def _history(snapshot: ServiceSnapshot) -> Iterable[str]:
    rows = [_COLUMNS, *map(_cells, snapshot.rows), (format_time(snapshot.now, zone=False), "(now)", "", "", "", "")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    earlier = snapshot.row_count - len(snapshot.rows)
    return [lines[0], f"({earlier} earlier rows)", *lines[1:]] if earlier > 0 else lines


def _cells(row: HistoryEntry) -> tuple[str, ...]:
    vms = _names(row.vms)
    about = f"{row.group}: {vms}" if row.group and vms and vms != row.group else vms or row.group or row.host
    return format_time(row.time, zone=False), row.kind, about, row.type, row.by, row.reason


def _seen(snapshot: ServiceSnapshot) -> Iterable[str]:
    for vm in islice(snapshot.seen, MAX_VMS):
        status = "" if vm.status == 200 else f"; last status {vm.status}" if vm.status else "; no response yet"
        yield f"{vm.vm}: {vm.polls} {'poll' if vm.polls == 1 else 'polls'}{status}"
        if vm.document_count > len(vm.documents):
            yield f"  ({vm.document_count - len(vm.documents)} earlier documents)"
        for document in vm.documents:
            yield f"  {format_time(document.at, zone=False)}  {_content(document.body)}"
    if len(snapshot.seen) > MAX_VMS:
        yield f"also polled: {_names([vm.vm for vm in snapshot.seen[MAX_VMS:]])}"
    if snapshot.silent:
        yield f"never polled: {_names(snapshot.silent)}"
    if not snapshot.seen and not snapshot.silent:
        yield "The fleet has no VMs."


def _content(body: bytes) -> str:
    try:
        document = read_document(body)
    except Exception as error:  # noqa: BLE001 - a report must not fail
        return str(error)
    events = [f"{event.type} of {_names(event.resources)} {event.status}" for event in document.events]
    return f"incarnation {document.incarnation}: {'; '.join(events) or 'no events'}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
