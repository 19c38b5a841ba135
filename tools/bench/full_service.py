"""A service with 50,000 VMs in 1,000 groups, 500 active events and 200,000 rows of history.

`python -m tools.bench.full_service` starts one until Ctrl-C, and prints where it is.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

from tools.bench.connection import Connection, poll_bytes
from tools.bench.processes import Processes
from tools.bench.service import Service

from forewarn.core.state import Changes, HistoryEntry
from forewarn.stores.sqlite import SqliteStore

VMS, GROUPS, SCALE_SETS, VMS_PER_SCALE_SET = 50_000, 1_000, 20, 1_000
HOSTS, HOSTS_PER_GROUP = 1_000, 50
FIRST_ADDRESS = IPv4Address("127.0.0.1")
EVENTS = 500
"""Active events, one of each of this many groups. Their notice is so long that they stay for the whole run."""
NOTICE = "P30D"
HISTORY_ROWS = 200_000
ROWS_PER_COMMIT = 10_000


class FullService(NamedTuple):
    """A running service of this size."""

    service: Service
    control: tuple[str, int]
    """The address of the control API."""
    metadata: tuple[str, int]
    token: str
    """A token of an admin."""
    pid: int


def start(processes: Processes, folder: Path, *options: str) -> FullService:
    """Start a service in a new folder, and fill it. Takes about half a minute."""
    service = Service(processes, folder, fleet())
    service.start(*options)
    _schedule_events(service)
    service.stop()
    _add_history(service.data)
    service.start(*options)
    return FullService(service, service.control_address, service.metadata, service.token, service.pid)


def group_name(number: int) -> str:
    return f"{'set' if number < SCALE_SETS else 'group'}-{number:03}"


def first_vm(number: int) -> str:
    """Return the name of the first VM of a group."""
    return f"{group_name(number)}{'_' if number < SCALE_SETS else '-'}0"


def source(number: int) -> str:
    """Return the address of the first VM of a group. That of group 0 is 127.0.0.1, like in every benchmark."""
    return str(FIRST_ADDRESS + _vms_before(number))


def fleet() -> str:
    """Return the fleet file: 20 scale sets of 1,000 VMs, and groups of 30 or 31. Every VM has a loopback address."""
    lines = [f'[[host]]\nname = "host-{number:04}"' for number in range(HOSTS)]
    for number in range(GROUPS):
        name, first, end = group_name(number), _vms_before(number), _vms_before(number + 1)
        hosts = ", ".join(f'"host-{each % HOSTS:04}"' for each in range(first, min(end, first + HOSTS_PER_GROUP)))
        kind = "scale-set" if number < SCALE_SETS else "availability-set"
        names = "" if number < SCALE_SETS else f'name = "{name}-{{n}}"\n'
        lines.append(
            f'[[group]]\nname = "{name}"\nkind = "{kind}"\n'
            f'[[vm]]\n{names}group = "{name}"\ncount = {end - first}\nhosts = [{hosts}]\n'
            f'addresses = "{FIRST_ADDRESS + first}-{FIRST_ADDRESS + end - 1}"'
        )
    return "\n".join(lines)


def _vms_before(number: int) -> int:
    """Return the number of VMs in the groups before this one."""
    in_sets = min(number, SCALE_SETS) * VMS_PER_SCALE_SET
    others, rest = GROUPS - SCALE_SETS, VMS - SCALE_SETS * VMS_PER_SCALE_SET
    return in_sets + max(number - SCALE_SETS, 0) * rest // others


def _schedule_events(service: Service) -> None:
    """Enable all groups, and schedule an event for the first VM of half of them."""
    for number in range(GROUPS):
        with closing(Connection(service.metadata, source(number))) as connection:
            connection.exchange(poll_bytes())
    with closing(service.control()) as control:
        for number in range(EVENTS):
            body = {"cause": "restart", "vms": [first_vm(number)], "notice": NOTICE}
            control.call("POST", "/v1/operations", body)
        found = control.call("GET", "/v1/events?limit=1&count=true")["total"]
    if found != EVENTS:
        raise RuntimeError(f"There are {found} active events instead of {EVENTS}.")


def _add_history(data: Path) -> None:
    """Write the rows of history that the service has not written itself, while it is stopped."""
    with closing(SqliteStore(data)) as store:
        last = store.load().sequence
        for first in range(last + 1, HISTORY_ROWS + 1, ROWS_PER_COMMIT):
            numbers = range(first, min(first + ROWS_PER_COMMIT, HISTORY_ROWS + 1))
            store.commit(Changes(history=[_entry(sequence) for sequence in numbers]))


def _entry(sequence: int) -> HistoryEntry:
    number = sequence % GROUPS
    return HistoryEntry(
        time=datetime.now(UTC),
        kind="completed",
        by="forewarn",
        sequence=sequence,
        group=group_name(number),
        vms=(first_vm(number),),
        type="Reboot",
        cause="restart",
    )


def main() -> None:
    processes = Processes()
    with tempfile.TemporaryDirectory(prefix="forewarn-bench-") as folder:
        try:
            full = start(processes, Path(folder) / "full", *sys.argv[1:])
            print(json.dumps({**full._asdict(), "service": str(full.service.folder)}), flush=True)
            sys.stdin.read()
        except KeyboardInterrupt:
            pass
        finally:
            processes.end_all()


if __name__ == "__main__":
    main()
