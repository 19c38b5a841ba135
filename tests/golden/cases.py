"""Golden documents: events of a group as values of the core, and how the document is known.

Each case is rendered in every version and compared with `documents/<case>/<version>.json`. The ids in those files are
also parsed as approvals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from forewarn.core.events import Document, Event, EventStatus, Source, first_status
from forewarn.core.fleet import GroupKind

DOCUMENTED = "documented"
OBSERVED = "observed"
ASSUMED = "assumed"
MARKS = (ASSUMED, OBSERVED, DOCUMENTED)
"""In the order of the page: assumed rows come first."""

FOLDER = Path(__file__).with_name("documents")

RESTARTED = "Virtual machine is going to be restarted as requested by authorized user."
REDEPLOYED = "Virtual machine is going to be redeployed as requested by authorized user."
MAINTENANCE = "Host server is undergoing maintenance."
MIGRATION = "Virtual machine is being paused because of a memory-preserving Live Migration operation."
FAILURE = "Virtual machine has encountered a failure."

NOT_BEFORE = datetime(2026, 2, 28, 23, 59, 58, tzinfo=UTC)


def event(
    type_: str,
    *resources: str,
    id_: str = "602d9444-d2cd-49c7-8624-8643e7171297",
    started: bool = False,
    not_before: datetime = NOT_BEFORE,
    description: str = "",
    source: Source = Source.PLATFORM,
    seconds: int | None = None,
) -> Event:
    """Return an event. Fields that no document shows have conspicuous values."""
    return Event(
        id=id_,
        operation="99999999-9999-4999-8999-999999999999",
        group="never-shown",
        scope="never-shown",
        type=type_,
        status=EventStatus.STARTED if started else first_status(type_),
        resources=resources,
        not_before=not_before,
        description=description,
        source=source,
        duration=None if seconds is None else timedelta(seconds=seconds),
        created_at=datetime(1999, 1, 1, tzinfo=UTC),
        approved_at=datetime(1999, 1, 2, tzinfo=UTC) if started else None,
        approved_by="never-shown" if started else None,
        started_at=datetime(1999, 1, 3, tzinfo=UTC) if started else None,
    )


@dataclass(frozen=True)
class Case:
    """A document, and how it is known."""

    name: str
    mark: str
    says: str
    incarnation: int
    events: tuple[Event, ...] = field(default=())
    kind: str = GroupKind.SCALE_SET
    published: str = ""
    """The version in which exactly this document was published."""

    @property
    def document(self) -> Document:
        return Document("never-shown", 0, self.incarnation, self.events, enabled=True)

    def file(self, version: str) -> Path:
        return FOLDER / self.name / f"{version}.json"


CASES = (
    Case(
        "nothing-yet",
        OBSERVED,
        "A group without any event yet: the incarnation is the number 0, and Events is an empty array.",
        0,
        published="2020-07-01",
    ),
    Case("all-over", DOCUMENTED, "A completed event is removed. The removal increased the incarnation.", 4),
    Case(
        "two-restarts-published",
        OBSERVED,
        "Two restarts in a scale set, in the order of their creation, as a user published them in 2018.",
        192,
        (
            event(
                "Reboot",
                "sample_4",
                id_="28512af7-c957-4500-9bc4-842d6fb531e4",
                not_before=datetime(2018, 1, 24, 21, 20, 44, tzinfo=UTC),
                source=Source.USER,
            ),
            event(
                "Reboot",
                "sample_1",
                id_="a626e37f-793e-44e1-89b5-99ae0b96044c",
                not_before=datetime(2018, 1, 24, 21, 20, 44, tzinfo=UTC),
                source=Source.USER,
            ),
        ),
        published="2017-08-01",
    ),
    Case(
        "eviction-published",
        OBSERVED,
        "Eviction of a Spot VM, as published in 2021: no description. Versions before 2017-11-01 do not show it.",
        1,
        (
            event(
                "Preempt",
                "myspotvm",
                id_="a123bc45-1234-5678-ab90-abcdef123456",
                not_before=datetime(2021, 3, 16, 0, 58, 46, tzinfo=UTC),
            ),
        ),
        GroupKind.STANDALONE,
        published="2019-08-01",
    ),
    Case(
        "maintenance-published",
        OBSERVED,
        "A started host update of a cluster node, as a user published it: NotBefore is present and empty.",
        208,
        (
            event(
                "Freeze",
                "aks-nodepool1-21922338-vmss_47",
                id_="d3d9dfec-1dca-4b49-97aa-780e02f45dfe",
                started=True,
                description=MAINTENANCE,
                seconds=9,
            ),
        ),
        published="2019-08-01",
    ),
    Case(
        "restart-published",
        OBSERVED,
        "A user's restart with an empty description and duration -1, as a Linux distribution published it in 2021.",
        2,
        (
            event(
                "Reboot",
                "flatcar-vm1",
                id_="4caea225-a741-474d-a72e-428c86fcd853",
                not_before=datetime(2021, 7, 22, 4, 50, 17, tzinfo=UTC),
                source=Source.USER,
            ),
        ),
        GroupKind.STANDALONE,
        published="2020-07-01",
    ),
    Case(
        "restart-by-user",
        DOCUMENTED,
        "A user's restart: Reboot, source User, duration -1.",
        1,
        (event("Reboot", "web_0", description=RESTARTED, source=Source.USER),),
    ),
    Case(
        "redeploy-by-user",
        DOCUMENTED,
        "A user's redeploy: Redeploy, source User, duration -1.",
        1,
        (event("Redeploy", "web_0", description=REDEPLOYED, source=Source.USER),),
    ),
    Case(
        "migration-scheduled",
        DOCUMENTED,
        "A scheduled live migration: one Freeze of two VMs, 5 seconds.",
        2,
        (event("Freeze", "web_0", "web_1", description=MIGRATION, seconds=5),),
    ),
    Case(
        "migration-started",
        DOCUMENTED,
        "The same live migration after its start: same id, Started, NotBefore empty.",
        3,
        (event("Freeze", "web_0", "web_1", started=True, description=MIGRATION, seconds=5),),
    ),
    Case(
        "no-interruption",
        DOCUMENTED,
        "Duration 0 means no interruption. It differs from -1 (unknown).",
        1,
        (event("Freeze", "web_0", description=MAINTENANCE, seconds=0),),
    ),
    Case(
        "unknown-interruption",
        DOCUMENTED,
        "Duration -1 means unknown, for a Freeze too.",
        1,
        (event("Freeze", "web_0", description=MAINTENANCE),),
    ),
    Case(
        "failed-hardware",
        DOCUMENTED,
        "A hardware failure has no notice: the first document shows a Reboot as Started.",
        1,
        (event("Reboot", "web_2", started=True, description=FAILURE),),
    ),
    Case(
        "failed-hardware-redeploy",
        DOCUMENTED,
        "The same failure as a Redeploy, as Microsoft's overview page and mock server have it.",
        1,
        (event("Redeploy", "web_2", started=True, description=FAILURE),),
    ),
    Case(
        "degraded-hardware",
        ASSUMED,
        "Live migration from degraded hardware: a Freeze of 5 seconds without a description.",
        1,
        (event("Freeze", "web_0", seconds=5),),
    ),
    Case(
        "description-of-operator",
        ASSUMED,
        "A description that the operator has written is sent as it is, with quotes escaped as in JSON.",
        1,
        (event("Freeze", "web_0", description='Network update "B12", größer', seconds=0),),
    ),
    Case(
        "deletion",
        ASSUMED,
        "Deletion of a scale set instance: Terminate, no description, duration -1. Not shown before 2019-01-01.",
        1,
        (event("Terminate", "web_0", source=Source.USER),),
    ),
    Case(
        "rebalance-advice",
        ASSUMED,
        "Rebalance advice for a Spot VM is an Advisory. Only the preview version shows it. The incarnation counts it "
        "in all versions.",
        1,
        (event("SpotRebalanceRecommendation", "spot_0"),),
    ),
    Case(
        "gated-among-others",
        ASSUMED,
        "All versions have one incarnation. A version omits events of unknown types and keeps the order.",
        5,
        (
            event("Preempt", "web_3", id_="10000000-0000-4000-8000-00000000000a"),
            event("Freeze", "web_0", id_="10000000-0000-4000-8000-00000000000b", description=MAINTENANCE, seconds=9),
            event("Terminate", "web_1", id_="10000000-0000-4000-8000-00000000000c"),
            event("Reboot", "web_2", id_="10000000-0000-4000-8000-00000000000d", started=True, source=Source.USER),
        ),
    ),
    Case(
        "cloud-service",
        ASSUMED,
        "Names of cloud service roles have no underscore at 2017-03-01, because they are not IaaS VMs.",
        1,
        (event("Reboot", "WebRole_IN_0", "WebRole_IN_1", description=RESTARTED, source=Source.USER),),
        GroupKind.CLOUD_SERVICE,
    ),
    Case(
        "availability-set",
        DOCUMENTED,
        "VMs of an availability set have their resource names, with a leading underscore at 2017-03-01.",
        1,
        (event("Reboot", "db-0", description=RESTARTED, source=Source.USER),),
        GroupKind.AVAILABILITY_SET,
    ),
    Case(
        "name-beyond-ascii",
        ASSUMED,
        "A name with non-ASCII letters is sent as UTF-8, not escaped.",
        1,
        (event("Reboot", "größe-0", description="", source=Source.USER),),
        GroupKind.STANDALONE,
    ),
    Case(
        "single-digit-day",
        DOCUMENTED,
        "The day of the month has two digits, as RFC 1123 and fixed-width parsers require.",
        1,
        (event("Redeploy", "web_0", not_before=datetime(2026, 3, 5, 7, 8, 9, tzinfo=UTC)),),
    ),
)
