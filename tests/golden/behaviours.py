"""What happens to events in the course of time, and what is known of it (docs/contract.md, sections 4 and 5).

Each line names the test that holds the service to it.
"""

from __future__ import annotations

from typing import NamedTuple

from golden.cases import ASSUMED, DOCUMENTED, OBSERVED


class Behaviour(NamedTuple):
    """A line of the contract about the life of events."""

    name: str
    says: str
    mark: str
    test: str


BEHAVIOURS = (
    Behaviour(
        "host update",
        "Freeze, or Reboot; 'Host server is undergoing maintenance.'; Started for 10 minutes, the median.",
        DOCUMENTED,
        "acceptance/test_causes.py",
    ),
    Behaviour(
        "live migration",
        "Freeze of 5 seconds, 15 minutes of notice, stays Started for 5 minutes: the published medians.",
        DOCUMENTED,
        "acceptance/test_causes.py",
    ),
    Behaviour(
        "eviction", "Preempt, 30 seconds, description empty, source Platform.", OBSERVED, "acceptance/test_spot.py"
    ),
    Behaviour(
        "after an eviction",
        "The event stays Started for a minute; the VM is deallocated, and its document is still answered.",
        ASSUMED,
        "acceptance/test_spot.py",
    ),
    Behaviour(
        "rebalance advice",
        "Scheduled with NotBefore at the moment of the advice; an approval is taken and starts nothing.",
        ASSUMED,
        "acceptance/test_spot.py",
    ),
    Behaviour(
        "deletion",
        "Terminate with the notice of the scale set, for deletion alone; an approved one waits for others told "
        "for the same moment.",
        DOCUMENTED,
        "acceptance/test_deletion.py",
    ),
    Behaviour(
        "words of a deletion",
        "Description empty, no duration; source User for a deletion by hand, Platform for scale-in and repair; "
        "Started for a minute.",
        ASSUMED,
        "acceptance/test_deletion.py",
    ),
    Behaviour(
        "degraded hardware",
        "Redeploy with NotBefore seven days ahead, or less; a redeploy by the user settles it.",
        DOCUMENTED,
        "acceptance/test_hosts.py",
    ),
    Behaviour(
        "words of degraded hardware",
        "Description empty; one event for each VM, since none has to wait for another.",
        ASSUMED,
        "acceptance/test_hosts.py",
    ),
    Behaviour(
        "hardware failure",
        "Started at once, as Redeploy or Reboot; 'Virtual machine has encountered a failure.'",
        OBSERVED,
        "acceptance/test_hosts.py",
    ),
    Behaviour(
        "emergency repair",
        "'Host server is undergoing an emergency repair.' is observed; that it is a Reboot, and its notice, are not.",
        ASSUMED,
        "acceptance/test_causes.py",
    ),
    Behaviour(
        "shared hardware",
        "The start waits until every group on the host has approved or is due.",
        DOCUMENTED,
        "acceptance/test_shared_hosts.py",
    ),
    Behaviour(
        "a later NotBefore",
        "A postponed event keeps its id; NotBefore moves later, and the incarnation goes up by one.",
        ASSUMED,
        "acceptance/test_maintenance_windows.py",
    ),
    Behaviour(
        "VMs that move away",
        "Resources do not change while an event lives; it is withdrawn when it concerns none of them any more.",
        ASSUMED,
        "acceptance/test_shared_hosts.py",
    ),
)
