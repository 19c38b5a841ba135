"""How events develop over time, and how that is known (docs/explanation/contract.md, sections 4 and 5).

Each row names the test that checks it.
"""

from __future__ import annotations

from typing import NamedTuple

from golden.cases import ASSUMED, DOCUMENTED, OBSERVED


class Behaviour(NamedTuple):
    """A row about the lifecycle of events."""

    name: str
    says: str
    mark: str
    test: str


BEHAVIOURS = (
    Behaviour(
        "host update",
        "Freeze or Reboot, 'Host server is undergoing maintenance.', Started for 10 minutes (the median).",
        DOCUMENTED,
        "acceptance/test_causes.py",
    ),
    Behaviour(
        "live migration",
        "Freeze of 5 seconds, 15 minutes of notice, Started for 5 minutes (the published medians).",
        DOCUMENTED,
        "acceptance/test_causes.py",
    ),
    Behaviour(
        "eviction",
        "Preempt, 30 seconds of notice, empty description, source Platform. The eviction policy decides about the VM.",
        OBSERVED,
        "acceptance/test_spot.py",
    ),
    Behaviour(
        "after an eviction",
        "The event stays Started for a minute. A deallocated VM can still poll its document. A deleted VM leaves the "
        "fleet when its event ends.",
        ASSUMED,
        "acceptance/test_spot.py",
    ),
    Behaviour(
        "rebalance advice",
        "EventStatus Advisory, NotBefore empty. It never starts and needs no approval. A Preempt may follow.",
        OBSERVED,
        "acceptance/test_spot.py",
    ),
    Behaviour(
        "approval of rebalance advice",
        "200 with an empty body, and no effect.",
        ASSUMED,
        "acceptance/test_spot.py",
    ),
    Behaviour(
        "deletion",
        "Terminate with the notice of the scale set or VM, for deletions only. An approved one waits for the other "
        "pending ones of the set.",
        DOCUMENTED,
        "acceptance/test_deletion.py",
    ),
    Behaviour(
        "details of a deletion",
        "Empty description, duration -1, Started for a minute. Source User for a deletion by hand, Platform for "
        "scale-in and repair.",
        ASSUMED,
        "acceptance/test_deletion.py",
    ),
    Behaviour(
        "degraded hardware",
        "Freeze for a live migration, or Redeploy if it is not possible. NotBefore is up to seven days ahead. A "
        "redeploy by the user completes it.",
        DOCUMENTED,
        "acceptance/test_hosts.py",
    ),
    Behaviour(
        "details of degraded hardware",
        "Empty description. One event per VM, so that no VM waits for another. If no host can take the VM at the "
        "start, a Redeploy with the minimum notice replaces the Freeze.",
        ASSUMED,
        "acceptance/test_hosts.py",
    ),
    Behaviour(
        "hardware failure",
        "Started at once, Reboot or on request Redeploy. The VMs start on other hosts.",
        DOCUMENTED,
        "acceptance/test_hosts.py",
    ),
    Behaviour(
        "emergency repair",
        "Reboot with the notice of a Reboot. Only 'Host server is undergoing an emergency repair.' is observed.",
        ASSUMED,
        "acceptance/test_causes.py",
    ),
    Behaviour(
        "shared hardware",
        "The event starts when every group on the host has approved or has reached NotBefore.",
        DOCUMENTED,
        "acceptance/test_shared_hosts.py",
    ),
    Behaviour(
        "postponement",
        "A postponed event keeps its id. NotBefore moves to a later time, and the incarnation increases by one.",
        ASSUMED,
        "acceptance/test_maintenance_windows.py",
    ),
    Behaviour(
        "VMs that leave the host",
        "Resources do not change while the event exists. The event is cancelled when it affects none of its VMs.",
        ASSUMED,
        "acceptance/test_shared_hosts.py",
    ),
)
