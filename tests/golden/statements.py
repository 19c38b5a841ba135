"""The statements of Microsoft's documents about Scheduled Events, and whether Forewarn behaves as they say.

Each statement is one sentence in our own words. It has the page that makes it, the rules of the contract
(docs/explanation/contract.md), and what shows it: a golden request, a golden document, or a test.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class StatementStatus(StrEnum):
    """Whether a statement is true of Forewarn."""

    HOLDS = "holds"
    DIFFERS = "differs"
    NOT_APPLICABLE = "not applicable"


class Statement(NamedTuple):
    """A statement of a page."""

    says: str
    page: str
    rules: tuple[str, ...]
    shown_by: tuple[str, ...]
    """`request: NAME` and `document: NAME` are rows of the golden lists. Others are tests, as FILE::FUNCTION."""
    status: StatementStatus = StatementStatus.HOLDS
    reason: str = ""
    """Why the statement is not true, or not applicable."""
    reading: str = ""
    """What we assume about a statement that holds: the page leaves it open, or Forewarn has its own form of it."""


class Page(NamedTuple):
    """A document of Microsoft. The paths of documentation pages are below `articles/` in azure-compute-docs."""

    path: str
    version: str


LINUX, OVERVIEW = "Linux page", "overview page"
EVENT_GRID, RESOURCE_GRAPH = "Event Grid page", "Resource Graph page"
TERMINATE, SPOT, SPOT_VMS, SPOT_SETS = "Terminate page", "Spot page", "Spot overview page", "Spot scale sets page"
IMDS, MAINTENANCE = "IMDS page", "maintenance page"
MOCK, NODE, DISCOVERY, COLLECTOR = "Microsoft's mock server", "Node sample", "discovery sample", "Windows sample"

PAGES = {
    LINUX: Page("virtual-machines/linux/scheduled-events.md", "2026-05, commit 533281db"),
    OVERVIEW: Page("virtual-machines/scheduled-events-overview.md", "2026-05-01, commit 379d370a"),
    EVENT_GRID: Page("virtual-machines/scheduled-events-event-grid.md", "2026-05-01, commit 1d8378b2"),
    RESOURCE_GRAPH: Page("virtual-machines/scheduled-events-resource-graph.md", "2026-05-01, commit 1e4a840a"),
    TERMINATE: Page(
        "virtual-machine-scale-sets/virtual-machine-scale-sets-terminate-notification.md",
        "2026-05-19, commit 883ff7bb",
    ),
    SPOT: Page("virtual-machines/linux/spot-cli.md", "2023-05-31, commit 883ff7bb"),
    SPOT_VMS: Page("virtual-machines/spot-vms.md", "2024-08-05, commit 3bbed19b"),
    SPOT_SETS: Page("virtual-machine-scale-sets/use-spot.md", "2025-04-01, commit 412c17b3"),
    IMDS: Page("virtual-machines/instance-metadata-service.md", "with version 2025-04-07, commit 1dc6d3b8"),
    MAINTENANCE: Page("virtual-machines/maintenance-and-updates.md", "2026-04-30, commit 0feba6f0"),
    MOCK: Page("Azure-Samples/scheduled-events-mock-server, README.md and scenarios", "2025, commit de80aec4"),
    NODE: Page("Azure/vm-scheduled-events, README.md", "2021-07, commit 1856ad6d"),
    DISCOVERY: Page(
        "Azure-Samples/virtual-machines-scheduled-events-discover-endpoint-for-non-vnet-vm, READMEs",
        "2017 to 2018, commits 357137e5, 17ec138f and 10eaf8b0",
    ),
    COLLECTOR: Page("microsoft/AzureScheduledEventsService, README.md", "commit 394d0ef0"),
}
"""Each page by its name, which the contract uses too. The Windows page makes the statements of the Linux page."""


def _holds(says: str, page: str, rules: str, *shown_by: str, reading: str = "") -> Statement:
    return Statement(says, page, tuple(rules.split()), shown_by, reading=reading)


def _differs(says: str, page: str, rules: str, reason: str, *shown_by: str) -> Statement:
    return Statement(says, page, tuple(rules.split()), shown_by, StatementStatus.DIFFERS, reason)


def _not_applicable(says: str, page: str, rules: str, reason: str, *shown_by: str) -> Statement:
    return Statement(says, page, tuple(rules.split()), shown_by, StatementStatus.NOT_APPLICABLE, reason)


# Tests that show several statements.
UNAPPROVED = "acceptance/test_causes.py::test_unapproved_it_is_scheduled_starts_when_due_and_disappears_when_settled"
APPROVED = "acceptance/test_causes.py::test_approved_by_a_vm_of_the_scope_that_is_not_hit_it_starts_at_once"
CANCELLED = "acceptance/test_causes.py::test_a_cancelled_operation_disappears_and_does_not_affect_its_vms"
FAILURE = "acceptance/test_causes.py::test_a_failure_is_never_scheduled_it_has_started"
SHARED = (
    "acceptance/test_shared_hosts.py::test_each_group_sees_only_its_own_vms_and_the_start_waits_for_the_last_approval"
)
SCENARIOS = "testing/test_kit.py::test_every_scenario_runs_in_an_empty_fleet"
EVICTED = "acceptance/test_spot.py::test_an_evicted_vm_is_deallocated_at_the_start_stays_in_the_fleet_and_can_poll"
MINIMUM = "acceptance/test_notices.py::test_a_notice_below_the_minimum_is_rejected_with_the_minimum"
SHORTER = "acceptance/test_notices.py::test_an_override_makes_it_shorter_and_is_written_to_history"
TERMINATE_NOTICE = "acceptance/test_deletion.py::test_the_notice_is_that_of_the_set_and_can_be_changed_while_it_runs"
FLEET_ERRORS = "unit/test_fleet_file.py::test_an_error_has_its_line_and_key"
ELEMENT = "acceptance/test_statements.py::test_an_element_is_there_from_its_version_on"
VALUES = "unit/test_instance.py::test_values_follow_from_the_vm_and_its_group"
STATUS_FAULT = "http/test_injected_faults.py::test_a_status_fault_sends_the_response_of_the_wire"
OWN = "acceptance/test_statements.py"
EFFECT = "unit/test_engine.py::test_the_fabric_does_to_the_vm_what_the_event_says"
OS_IMAGE = f"{OWN}::test_a_new_os_image_has_a_notice_of_fifteen_minutes_if_the_set_enables_it"

NO_ARM = "Forewarn does not serve ARM. Its control API has the operation."
NO_EVENT_GRID = "Forewarn does not send to Event Grid. It has webhooks and a feed."
NO_RESOURCE_GRAPH = "Forewarn has no Resource Graph. It has history."
COUNTERPART = "Webhooks and the feed are Forewarn's form of Event Grid."

AREAS: dict[str, tuple[Statement, ...]] = {
    "Endpoint": (
        _holds(
            "In a virtual network, the service is at 169.254.169.254.",
            LINUX,
            "7.1",
            "acceptance/test_link_local.py::test_a_client_written_for_azure",
        ),
        _holds(
            "The path of the document is `/metadata/scheduledevents`.", LINUX, "3.1", "request: document at 2020-07-01"
        ),
        _holds(
            "Outside a virtual network, DHCP option 245 carries the address of the service.",
            DISCOVERY,
            "7.2 7.3",
            "agent/test_dhcp.py::test_the_endpoint_is_in_the_lease",
        ),
        _holds(
            "A client builds the URL of the document from the address that DHCP returned.",
            DISCOVERY,
            "7.4",
            "agent/test_discovery.py::test_otherwise_the_first_address_of_option_245_is_used",
        ),
        _holds(
            "A client must bypass proxies.", IMDS, "7.1", "agent/test_discovery.py::test_a_connection_ignores_proxies"
        ),
        _holds("A VM gets only its own metadata.", IMDS, "6.1 5.8", f"{OWN}::test_a_vm_gets_only_its_own_metadata"),
        _holds(
            "The information is not exposed outside the VMs.",
            LINUX,
            "3.21",
            "request: unknown caller: document",
            "request: unknown caller: instance",
            reading="A caller that is no VM gets 404.",
        ),
        _differs(
            "A request from another than the primary address of the VM gets no response.",
            IMDS,
            "3.21",
            "An address that belongs to no VM gets 404 at once, so that a wrong fleet file is noticed.",
            "request: unknown caller: document",
        ),
    ),
    "Requests and statuses": (
        _holds("A correct GET gets 200.", IMDS, "3.1", "request: document at 2020-07-01"),
        _holds("A response is JSON unless the request names another format.", IMDS, "2.2", "request: another group"),
        _holds("Every request needs the header `Metadata: true`.", LINUX, "1.4 3.6", "request: header false"),
        _holds("A request without the header gets 400.", LINUX, "3.6", "request: no header"),
        _holds(
            "The error names the missing header: `Required metadata header not specified`.",
            IMDS,
            "3.6",
            "request: instance: no header",
        ),
        _holds("A request with `X-Forwarded-For` is rejected.", IMDS, "3.13", "request: forwarded"),
        _holds(
            "A request with the same query parameter twice is rejected.",
            IMDS,
            "3.15",
            "request: duplicate query parameter",
        ),
        _holds("A request for an unknown element gets 404.", IMDS, "3.18 6.6", "request: instance: unknown element"),
        _holds("A method that the path does not support gets 405.", IMDS, "3.16", "request: method PUT"),
        _holds("Instance metadata supports only GET.", IMDS, "3.16", "request: instance: POST"),
        _holds("The status 410 asks the client to retry for at most 70 seconds.", IMDS, "3.51", STATUS_FAULT),
        _holds("The status 500 asks the client to retry.", IMDS, "3.52", STATUS_FAULT),
        _holds(
            "More than five requests per second get 429.",
            IMDS,
            "3.22",
            "request: more requests than allowed",
            "http/test_rate_limit.py::test_repeated_polls_are_throttled",
        ),
        _holds(
            "The limit counts the requests of each VM.",
            IMDS,
            "3.22",
            "http/test_rate_limit.py::test_a_burst_of_polls_is_cut_off_for_this_vm_alone",
        ),
        _holds(
            "A client may poll at any rate, and should poll once per second.",
            LINUX,
            "3.55",
            "agent/test_client.py::test_an_endpoint_without_long_polls_is_polled_once_a_second",
            "agent/test_client.py::test_at_its_own_pace_it_is_never_throttled",
            reading="Any rate below the limit of five requests per second.",
        ),
        _not_applicable(
            "Managed identity has its own limit, 20 requests per second.",
            IMDS,
            "3.22",
            "Forewarn does not serve managed identity.",
            "request: path /metadata/identity/oauth2/token?api-version=2018-02-01",
        ),
    ),
    "Versions": (
        _holds("A request must name a version.", LINUX, "3.9", "request: no version"),
        _holds("The current version is 2020-07-01.", LINUX, "1.13 3.10", "request: no version"),
        _holds("2020-07-01 adds the duration of the event.", LINUX, "1.13 1.12", "request: document at 2020-07-01"),
        _holds("2019-08-01 adds `EventSource`.", LINUX, "1.11", "request: document at 2019-08-01"),
        _holds("2019-04-01 adds `Description`.", LINUX, "1.10 1.9", "request: document at 2019-04-01"),
        _holds("2019-01-01 adds the type `Terminate`.", LINUX, "1.7", "document: deletion", UNAPPROVED),
        _holds(
            "A Terminate is visible only at 2019-01-01 or later.", TERMINATE, "1.8", "document: deletion", UNAPPROVED
        ),
        _holds(
            "2017-11-01 adds the type `Preempt`.",
            LINUX,
            "1.6",
            "document: eviction-published",
            UNAPPROVED,
            reading="Earlier versions do not show a Preempt.",
        ),
        _holds("2017-08-01 removes the underscore before names.", LINUX, "1.4 1.2", "request: document at 2017-08-01"),
        _holds(
            "2017-08-01 requires the header on every request.", LINUX, "1.4 3.38", "request: approval without header"
        ),
        _holds("2017-03-01 is the first version, a preview.", LINUX, "1.1", "request: document at 2017-03-01"),
        _holds(
            "The discovery sample reads the document at 2017-03-01.",
            DISCOVERY,
            "1.3",
            "request: no header at 2017-03-01",
            "request: approval at 2017-03-01",
        ),
        _holds("`latest` is no longer a version.", LINUX, "1.17", "request: latest"),
        _holds("Older versions stay available.", IMDS, "1.1 1.19", "request: document at 2017-11-01"),
    ),
    "Document": (
        _holds("The document has an array of events.", LINUX, "2.12", "request: document at 2020-07-01"),
        _holds(
            "Without events, the array is empty.",
            LINUX,
            "2.12",
            "document: nothing-yet",
            "request: first GET",
            UNAPPROVED,
        ),
        _holds("`DocumentIncarnation` is an integer.", LINUX, "2.7", "document: nothing-yet", "request: first GET"),
        _holds(
            "`DocumentIncarnation` increases when the array changes.",
            LINUX,
            "2.9",
            f"{OWN}::test_a_live_migration_of_two_vms_makes_four_documents",
        ),
        _holds(
            "Documents with the same incarnation have the same events.",
            LINUX,
            "2.10",
            f"{OWN}::test_the_incarnation_identifies_the_events",
        ),
        _holds(
            "`DocumentIncarnation` increases when an event changes.",
            LINUX,
            "2.9",
            f"{OWN}::test_the_incarnation_identifies_the_events",
        ),
        _holds(
            "`DocumentIncarnation` serves as an ETag: a client compares it with the last one.",
            TERMINATE,
            "2.10 3.2 3.5",
            "request: ETag as given",
            reading="The header `ETag` has a value of its own, because incarnations restart.",
        ),
        _holds(
            "The document has all current events that affect the VM.",
            LINUX,
            "5.10",
            f"{OWN}::test_one_operation_on_one_host_is_one_event",
        ),
        _holds(
            "Example: a live migration of two VMs shows empty, Scheduled, Started, and empty again.",
            LINUX,
            "2.47",
            f"{OWN}::test_a_live_migration_of_two_vms_makes_four_documents",
            "document: migration-scheduled",
            "document: migration-started",
        ),
        _holds(
            "The sample documents have two restarts in one document, and an empty document.",
            DISCOVERY,
            "2.1 2.5",
            "document: two-restarts-published",
            "document: all-over",
            UNAPPROVED,
        ),
        _differs(
            "The first document of a new VM has incarnation 1.",
            NODE,
            "2.8",
            "Two captures of new VMs show 0. Forewarn follows them.",
            "request: first GET",
        ),
    ),
    "Fields of an event": (
        _holds(
            "`EventId` is globally unique.", LINUX, "2.13", f"{OWN}::test_ids_are_unique_across_groups_and_operations"
        ),
        _holds(
            "`EventId` does not change while the status changes.",
            EVENT_GRID,
            "2.14",
            f"{OWN}::test_a_live_migration_of_two_vms_makes_four_documents",
        ),
        _holds("`EventType` is Freeze, Reboot, Redeploy, Preempt or Terminate.", LINUX, "2.17", UNAPPROVED),
        _holds("`ResourceType` is always VirtualMachine.", LINUX, "2.18", UNAPPROVED),
        _holds("`Resources` lists the VMs that the event affects.", LINUX, "2.19", UNAPPROVED),
        _holds("`EventStatus` is Scheduled or Started.", LINUX, "2.16", UNAPPROVED),
        _holds("No status such as Completed appears.", LINUX, "2.16", UNAPPROVED),
        _holds("A finished event is no longer returned.", LINUX, "2.16", UNAPPROVED, "document: all-over"),
        _holds(
            "`NotBefore` is a time in GMT, as in RFC 1123.",
            EVENT_GRID,
            "2.20",
            "document: single-digit-day",
            UNAPPROVED,
        ),
        _holds("`NotBefore` is blank after the start.", LINUX, "2.24", "document: migration-started", UNAPPROVED),
        _holds(
            "An event does not start before `NotBefore`.",
            LINUX,
            "4.3",
            "unit/test_lifecycle.py::test_without_approval_nothing_starts_before_its_time",
            reading="An approval allows an earlier start.",
        ),
        _holds("`EventSource` is Platform when the platform acts.", LINUX, "2.26", UNAPPROVED, FAILURE),
        _holds("`EventSource` is User when a user acts.", LINUX, "2.26", UNAPPROVED),
        _holds("`DurationInSeconds` is the expected interruption: 9 means nine seconds.", LINUX, "2.27", UNAPPROVED),
        _holds(
            "`DurationInSeconds` 0 means no interruption.",
            LINUX,
            "2.28",
            f"{OWN}::test_a_freeze_can_have_no_interruption_or_an_unknown_one",
            "document: no-interruption",
        ),
        _holds(
            "`DurationInSeconds` is -1 when it is unknown or not applicable.",
            LINUX,
            "2.28",
            f"{OWN}::test_a_freeze_can_have_no_interruption_or_an_unknown_one",
            "document: restart-by-user",
        ),
        _holds("Description of a host update: `Host server is undergoing maintenance.`", LINUX, "2.30", UNAPPROVED),
        _holds(
            "Description of a live migration: the VM is being paused by a memory-preserving Live Migration.",
            LINUX,
            "2.31",
            f"{OWN}::test_a_live_migration_of_two_vms_makes_four_documents",
        ),
        _holds("Description of a restart: as requested by authorized user.", LINUX, "2.32", UNAPPROVED),
        _holds(
            "Description of an urgent repair: `Host server is undergoing an emergency repair.`",
            LINUX,
            "2.34",
            UNAPPROVED,
        ),
        _holds(
            "Another description: `Host Server infrastructure is undergoing maintenance.`",
            LINUX,
            "2.25",
            f"{OWN}::test_an_operator_can_set_the_description",
            reading="No page names its cause. An operator can set it.",
        ),
        _holds(
            "VMs of a cloud service have names such as `FrontEnd_IN_0`.",
            LINUX,
            "2.44",
            f"{OWN}::test_every_vm_of_a_group_gets_and_approves_its_events",
        ),
        _differs(
            "Example: `NotBefore` of a live migration is `2026-04-29T18:00:00Z`.",
            MAINTENANCE,
            "2.21",
            "Every published document and the Event Grid page have RFC 1123.",
            "document: migration-scheduled",
        ),
    ),
    "Event types": (
        _holds(
            "A Freeze leaves memory and open files intact: the VM keeps running.",
            LINUX,
            "4.19",
            EFFECT,
            reading="The fabric pauses the VM. Forewarn does not look into the VM.",
        ),
        _holds(
            "A Freeze that is no live migration leaves the VM on its host.",
            OVERVIEW,
            "4.19",
            f"{OWN}::test_a_host_update_freezes_a_vm_where_it_is_and_a_migration_moves_it",
        ),
        _holds(
            "A Reboot restarts the VM.",
            LINUX,
            "4.21",
            EFFECT,
        ),
        _differs(
            "In rare cases, a VM with a Reboot is paused instead.",
            LINUX,
            "4.21",
            "Forewarn does what the event says. A client cannot see the difference in the document.",
        ),
        _holds(
            "A Redeploy moves the VM to another host.",
            LINUX,
            "4.22",
            "acceptance/test_hosts.py::test_moved_vms_are_on_other_hosts_with_separate_domains",
        ),
        _holds("A Preempt takes away a Spot VM.", LINUX, "4.25", EVICTED),
        _holds("Notice of a Preempt is best effort.", LINUX, "4.23", SHORTER),
        _holds(
            "A Terminate deletes the VM.",
            LINUX,
            "4.26",
            "acceptance/test_deletion.py::test_a_deleted_vm_leaves_the_fleet_when_its_event_does",
        ),
        _holds("A Freeze has at least 15 minutes of notice.", LINUX, "4.18", MINIMUM, UNAPPROVED),
        _holds("A Reboot has at least 15 minutes of notice.", LINUX, "4.21", MINIMUM, UNAPPROVED),
        _holds("A Redeploy has at least 10 minutes of notice.", LINUX, "4.22", MINIMUM, UNAPPROVED),
        _holds("A Preempt has at least 30 seconds of notice.", LINUX, "4.23", MINIMUM, UNAPPROVED),
        _holds("A Terminate has 5 to 15 minutes of notice, as the user sets it.", LINUX, "4.26", TERMINATE_NOTICE),
        _holds("In rare cases, the notice is as short as 30 seconds.", MAINTENANCE, "4.18", SHORTER),
    ),
    "Lifecycle": (
        _holds("A planned operation is Scheduled at first.", OVERVIEW, "4.1", UNAPPROVED),
        _holds("Without an approval, the event is approved when `NotBefore` is reached.", LINUX, "4.3", UNAPPROVED),
        _holds(
            "On shared hardware, the start waits until every tenant has approved or has timed out.",
            LINUX,
            "4.4",
            SHARED,
            "acceptance/test_shared_hosts.py::test_the_start_waits_until_not_before_for_a_group_without_approval",
        ),
        _holds("At the start, the document shows the event as Started.", LINUX, "4.1", UNAPPROVED),
        _holds("At the end, the event is removed from the document.", LINUX, "4.1", UNAPPROVED),
        _holds(
            "After the removal, nothing more happens without a new event.",
            LINUX,
            "4.1",
            f"{OWN}::test_after_its_event_nothing_happens_to_the_vm",
        ),
        _holds("Azure can cancel an operation: its event disappears without a start.", LINUX, "4.12", CANCELLED),
        _holds("A cancelled operation does not interrupt its VMs.", OVERVIEW, "4.12", CANCELLED),
        _holds("An event never goes back to an earlier status.", OVERVIEW, "4.1", "unit/test_lifecycle.py::test_cell"),
        _holds("Typical: 15 minutes from Scheduled to the start.", LINUX, "4.14", UNAPPROVED),
        _holds("Typical: 10 minutes from the start to the removal.", LINUX, "4.10 4.14", UNAPPROVED),
        _differs(
            "Typical: the interruption lasts 7 seconds.",
            LINUX,
            "4.13 4.14",
            "Forewarn uses the medians of Microsoft's mock server: 5 and 9 seconds. A request can set another value.",
            UNAPPROVED,
        ),
        _differs(
            "While an event is Started, a second and shorter interruption can occur.",
            LINUX,
            "2.27",
            "Forewarn interrupts a VM once per event. A client cannot see the difference in the document.",
        ),
        _holds(
            "Every operation that affects the availability of a VM creates an event.",
            LINUX,
            "4.1 4.35",
            UNAPPROVED,
            FAILURE,
            reading="Operations on a scope that has not enabled events create none.",
        ),
    ),
    "Approvals": (
        _holds("A POST with `StartRequests` and an `EventId` approves the event.", LINUX, "3.24", APPROVED),
        _holds("One POST can approve several events.", LINUX, "3.24", "request: approval of several"),
        _holds("A valid id gets 200.", LINUX, "3.25", "request: approval"),
        _holds(
            "It also gets 200 after another VM has approved the event.",
            LINUX,
            "3.25",
            "request: approval repeated",
            "request: approval of a started event",
            reading="The id of a Started event is valid, too.",
        ),
        _holds("A malformed header gets 400.", LINUX, "3.6 3.38", "request: approval without header"),
        _holds(
            "A malformed body gets 400.",
            LINUX,
            "3.32 3.33",
            "request: approval: not JSON",
            "request: approval: no StartRequests",
        ),
        _holds("An approval can shorten the notice.", LINUX, "4.2", APPROVED),
        _holds("The event may not start at once after an approval.", LINUX, "4.4", SHARED),
        _holds("An approval covers all `Resources` of the event.", LINUX, "4.7", APPROVED),
        _holds("Any VM of the scope can approve.", OVERVIEW, "4.2", "request: approval by another VM", APPROVED),
        _holds(
            "An event can be read inside a VM, and approved through the management API.",
            OVERVIEW,
            "4.2 8.8",
            "testing/test_kit.py::test_an_operator_can_cancel_approve_and_postpone_an_event",
            reading="The management API is Forewarn's control API, not ARM.",
        ),
        _holds("The samples approve with an id in lower case.", LINUX, "2.15", "request: approval in lower case"),
        _holds(
            "The Bash sample approves without a JSON content type.",
            LINUX,
            "3.31",
            "request: approval as application/x-www-form-urlencoded",
        ),
    ),
    "Enabling": (
        _holds(
            "The first request enables the service.",
            LINUX,
            "4.41 3.47",
            f"{OWN}::test_the_first_request_of_one_vm_enables_its_scale_set",
        ),
        _holds(
            "The first request of an instance enables its scale set.",
            TERMINATE,
            "4.41",
            f"{OWN}::test_the_first_request_of_one_vm_enables_its_scale_set",
        ),
        _holds(
            "The first response can take up to two minutes.",
            LINUX,
            "3.47",
            "testing/test_service_lifecycle.py::test_the_delay_of_the_first_poll_can_be_tested",
            reading="The default is no delay. A setting adds it.",
        ),
        _holds(
            "Events appear within five minutes after the first request.",
            LINUX,
            "3.49",
            f"{OWN}::test_the_first_request_of_one_vm_enables_its_scale_set",
            reading="Forewarn shows them at once.",
        ),
        _holds(
            "After 24 hours without a request, the service is disabled.",
            LINUX,
            "4.42",
            "acceptance/test_notices.py::test_a_group_that_has_not_polled_for_a_day_gets_no_notice",
            "acceptance/test_notices.py::test_a_valid_approval_counts_as_activity",
            reading="A request is a GET of the document, or an approval with status 200.",
        ),
    ),
    "Scope": (
        _holds("A standalone VM gets its own events.", LINUX, "5.1", EVICTED),
        _holds(
            "All VMs of a cloud service get its events.",
            LINUX,
            "5.2",
            f"{OWN}::test_every_vm_of_a_group_gets_and_approves_its_events",
        ),
        _holds("All VMs of an availability set get its events.", LINUX, "5.3", APPROVED),
        _holds(
            "All VMs of a placement group of a scale set get its events.",
            LINUX,
            "5.4",
            f"{OWN}::test_every_vm_of_a_group_gets_and_approves_its_events",
        ),
        _holds(
            "Zones make no difference to who gets the events.",
            LINUX,
            "5.4",
            f"{OWN}::test_vms_in_different_zones_share_their_document",
        ),
        _holds("A VM finds the affected VMs in `Resources`.", LINUX, "5.10", UNAPPROVED),
        _holds(
            "GPU VMs in a scale set with one fault domain get only their own events.",
            LINUX,
            "5.6",
            f"{OWN}::test_with_own_visibility_a_vm_sees_and_approves_only_its_own_events",
        ),
        _holds(
            "By default, a scale set is one placement group with at most 100 VMs.",
            SPOT_SETS,
            "5.5",
            f"{OWN}::test_a_placement_group_has_a_hundred_vms",
        ),
        _holds(
            "A scale set can have several placement groups, and then more than 100 VMs.",
            SPOT_SETS,
            "5.5",
            f"{OWN}::test_a_placement_group_has_a_hundred_vms",
        ),
        _differs(
            "A scale set with several placement groups has at most 1,000 VMs.",
            SPOT_SETS,
            "5.5",
            "Forewarn sets no limit.",
        ),
        _holds(
            "Scheduled Events are available in flexible scale sets.",
            LINUX,
            "5.4",
            f"{OWN}::test_the_vms_of_a_flexible_set_share_their_events",
        ),
        _holds(
            "Three VMs on three hosts with an update at the same time get three events.",
            EVENT_GRID,
            "5.11",
            f"{OWN}::test_operations_on_three_hosts_are_three_events_that_end_separately",
        ),
        _holds(
            "Azure can cancel the operation on one of these hosts and continue on the others.",
            EVENT_GRID,
            "5.11",
            f"{OWN}::test_operations_on_three_hosts_are_three_events_that_end_separately",
        ),
        _holds(
            "Three VMs on one host get one event with three names.",
            EVENT_GRID,
            "5.11 2.19",
            f"{OWN}::test_one_operation_on_one_host_is_one_event",
        ),
    ),
    "User operations": (
        _holds("A restart by a user creates a Reboot.", LINUX, "4.32", "document: restart-by-user", UNAPPROVED),
        _holds("A redeploy by a user creates a Redeploy.", LINUX, "4.32", "document: redeploy-by-user", UNAPPROVED),
        _holds("These events wait for an approval or for `NotBefore`, too.", LINUX, "4.33", UNAPPROVED),
        _differs(
            "A user requests them through a portal, an API, a CLI or PowerShell.",
            LINUX,
            "4.32 8.1",
            "Forewarn has a portal, a control API and a command line. PowerShell needs ARM, which it does not serve.",
            "acceptance/test_cli.py::test_a_restart_from_request_to_end",
        ),
        _holds(
            "With `automaticallyApprove`, a user's event is Started at once.",
            OVERVIEW,
            "4.34",
            "acceptance/test_notices.py::test_automatic_approval_starts_user_operations_at_once",
        ),
        _holds(
            "An event that is approved automatically is never Scheduled.",
            OVERVIEW,
            "4.34",
            f"{OWN}::test_automatic_approval_can_be_set_for_a_vm_a_set_and_a_scale_set",
        ),
        _holds(
            "Automatic approval applies to reboots, to redeploys, or to both.",
            OVERVIEW,
            "4.34 8.5",
            "acceptance/test_notices.py::test_automatic_approval_starts_user_operations_at_once",
            f"{OWN}::test_automatic_approval_can_be_set_for_a_vm_a_set_and_a_scale_set",
        ),
        _holds(
            "Automatic approval is set on a VM, a scale set or an availability set.",
            OVERVIEW,
            "8.7",
            f"{OWN}::test_automatic_approval_can_be_set_for_a_vm_a_set_and_a_scale_set",
        ),
        _holds("A VM of a set cannot have a policy of its own.", EVENT_GRID, "8.7", FLEET_ERRORS),
    ),
    "Hardware": (
        _holds("An expected hardware failure creates an event with `NotBefore` days ahead.", LINUX, "4.28", UNAPPROVED),
        _holds("Azure tries to give seven days of notice.", LINUX, "4.28", UNAPPROVED, SCENARIOS),
        _holds(
            "The notice is shorter if the failure is imminent.",
            LINUX,
            "4.28",
            "acceptance/test_hosts.py::test_each_vm_of_a_degraded_host_moves_when_it_is_approved_or_due",
        ),
        _holds(
            "Azure schedules a migration away from the degraded host.",
            LINUX,
            "4.29",
            f"{OWN}::test_a_vm_on_a_degraded_host_is_migrated",
        ),
        _holds(
            "An approval moves the VM to other hardware early.",
            OVERVIEW,
            "4.28 4.29",
            "acceptance/test_hosts.py::test_each_vm_of_a_degraded_host_moves_when_it_is_approved_or_due",
        ),
        _holds(
            "The user can redeploy the VM instead.",
            LINUX,
            "4.28",
            "acceptance/test_hosts.py::test_moving_the_vm_settles_degraded_hardware_early",
        ),
        _holds("A hardware failure skips Scheduled: the event is Started at once.", LINUX, "4.30", FAILURE),
        _holds(
            "After a hardware failure, all affected VMs have an event.",
            LINUX,
            "4.30",
            "acceptance/test_hosts.py::test_the_vms_of_a_failed_host_move_and_the_host_is_out_of_service",
        ),
        _holds(
            "The event of a hardware failure is a Reboot.",
            LINUX,
            "4.31",
            f"{OWN}::test_a_failed_host_reboots_its_vms_or_redeploys_them_on_request",
            FAILURE,
        ),
        _holds(
            "The event of a hardware failure is a Redeploy.",
            OVERVIEW,
            "4.31",
            f"{OWN}::test_a_failed_host_reboots_its_vms_or_redeploys_them_on_request",
            FAILURE,
            reading="The pages differ. Forewarn has one type by default, and the other on request.",
        ),
    ),
    "Maintenance": (
        _holds("A host update pauses VMs for less than 10 seconds.", MAINTENANCE, "4.14", UNAPPROVED),
        _holds("Rarely, the pause lasts about 30 seconds.", MAINTENANCE, "2.29", UNAPPROVED),
        _holds("A live migration pauses the VM for about 5 seconds.", MAINTENANCE, "4.13", UNAPPROVED),
        _holds(
            "A live migration keeps the VM running and moves it to another host.",
            MAINTENANCE,
            "4.19",
            f"{OWN}::test_a_host_update_freezes_a_vm_where_it_is_and_a_migration_moves_it",
        ),
        _holds("Some maintenance reboots the VM, with notice.", MAINTENANCE, "4.21", UNAPPROVED),
        _holds(
            "Maintenance stops at warnings about health, and pending events disappear.",
            MAINTENANCE,
            "4.12",
            "unit/test_rollout_run.py::test_a_failed_health_check_stops_the_rollout_and_cancels_pending_operations",
        ),
        _holds(
            "Only one update domain of a set is updated at a time.",
            MAINTENANCE,
            "5.12",
            "unit/test_rollout.py::test_each_host_is_in_one_wave_with_one_domain_of_a_group",
        ),
        _holds(
            "Operations on a set can follow one another.",
            LINUX,
            "5.13",
            "unit/test_rollout.py::test_hosts_are_updated_domain_after_domain",
        ),
        _differs(
            "Routine maintenance does not affect different fault domains at the same time.",
            LINUX,
            "5.13",
            "A rollout affects one update domain of a group at a time. Its VMs can be in different fault domains.",
            "unit/test_rollout.py::test_each_host_is_in_one_wave_with_one_domain_of_a_group",
        ),
        _differs(
            "An update that reboots VMs proceeds zone by zone.",
            MAINTENANCE,
            "5.13",
            "Rollouts do not consider zones. Start one rollout for the hosts of each zone.",
        ),
        _differs(
            "A live migration affects one VM of a set at a time.",
            MAINTENANCE,
            "2.47",
            "The Linux page shows a live migration of two VMs. In Forewarn, VMs on one host move together.",
            f"{OWN}::test_a_live_migration_of_two_vms_makes_four_documents",
        ),
        _differs(
            "An availability set has at most 20 update domains.",
            MAINTENANCE,
            "5.12",
            "Forewarn allows 100, because a private cloud may have more.",
            FLEET_ERRORS,
        ),
        _not_applicable(
            "Before maintenance with a reboot, users can start it themselves for some weeks.",
            MAINTENANCE,
            "4.35",
            "It is an operation of ARM and the portal. In Forewarn, a user redeploys the VM, or approves early.",
        ),
        _not_applicable(
            "After a pause, Azure synchronizes the clock of the VM.",
            MAINTENANCE,
            "4.19",
            "Forewarn does not look into the VM. The fabric does it.",
        ),
    ),
    "Terminate notices": (
        _holds(
            "A scale set must opt in to notices of deletions.",
            TERMINATE,
            "4.26",
            "acceptance/test_deletion.py::"
            "test_a_vm_without_terminate_notice_or_polls_is_deleted_at_once_without_notice",
        ),
        _holds("The notice is a duration in ISO 8601, such as `PT5M`.", TERMINATE, "4.26 8.3", TERMINATE_NOTICE),
        _holds("The notice is between 5 and 15 minutes.", TERMINATE, "4.26", FLEET_ERRORS, TERMINATE_NOTICE),
        _holds(
            "Example: a Terminate at 2019-01-01 has six fields.", TERMINATE, "1.7 1.9", "document: deletion", UNAPPROVED
        ),
        _holds("A deletion by hand creates a Terminate.", TERMINATE, "4.37", UNAPPROVED),
        _holds("A scale-in creates a Terminate.", TERMINATE, "4.37", UNAPPROVED, SCENARIOS),
        _holds(
            "A reboot or redeploy creates no Terminate.",
            TERMINATE,
            "4.37",
            f"{OWN}::test_only_deletions_create_a_terminate",
        ),
        _not_applicable(
            "A stop or a deallocation creates no Terminate.",
            TERMINATE,
            "4.35 4.37",
            "Forewarn has no cause that stops or deallocates a VM, except an eviction.",
        ),
        _holds("An instance can be deleted before the timeout: it approves.", TERMINATE, "4.2", APPROVED),
        _holds(
            "At the timeout, the VM is deleted in any case.",
            TERMINATE,
            "4.39",
            "acceptance/test_deletion.py::test_a_deleted_vm_leaves_the_fleet_when_its_event_does",
        ),
        _holds(
            "The timeout of an event cannot be extended.",
            TERMINATE,
            "4.39",
            f"{OWN}::test_a_terminate_cannot_be_postponed",
        ),
        _holds("The notice of the set can be changed at any time.", TERMINATE, "4.26", TERMINATE_NOTICE),
        _holds(
            "An approved deletion waits until other pending deletions are approved or time out.",
            TERMINATE,
            "4.38",
            "acceptance/test_deletion.py::test_an_approved_deletion_waits_for_pending_ones_with_another_not_before",
            "acceptance/test_deletion.py::test_an_approved_deletion_starts_when_an_earlier_one_times_out",
        ),
        _holds(
            "Deletions with the same `NotBefore` need all approvals, or wait for the timeout.",
            TERMINATE,
            "4.38",
            "acceptance/test_deletion.py::test_an_approved_deletion_waits_for_the_other_to_be_approved",
            "acceptance/test_deletion.py::test_an_approved_deletion_starts_when_the_other_reaches_not_before",
        ),
        _holds(
            "Spot instances cannot have notices of deletions.",
            TERMINATE,
            "4.27",
            f"{OWN}::test_a_spot_set_cannot_have_a_terminate_notice",
        ),
        _holds(
            "A VM gets its name, `{set}_{number}`, from instance metadata.",
            TERMINATE,
            "2.42 6.12",
            "agent/test_identity.py::test_instances_of_a_scale_set_are_never_mixed_up",
            VALUES,
        ),
        _not_applicable(
            "After a change of the notice, instances must be updated to the latest model.",
            TERMINATE,
            "8.3",
            "Forewarn has no models of scale sets. A change applies at once.",
        ),
        _not_applicable(
            "The profile needs compute API version 2019-03-01 or later.",
            TERMINATE,
            "8.3",
            "Forewarn does not serve ARM. The fleet file and the control API have the notice.",
        ),
    ),
    "Spot evictions": (
        _holds("An eviction creates a Preempt with 30 seconds of notice.", SPOT_VMS, "4.23", UNAPPROVED, SCENARIOS),
        _holds("The notice is best effort: it can be shorter.", SPOT_VMS, "4.23", SHORTER),
        _holds("The VM is not evicted before `NotBefore`.", SPOT, "4.3 4.23", EVICTED),
        _holds(
            "The Preempt has an empty description and the source Platform.",
            SPOT,
            "2.37",
            "document: eviction-published",
            UNAPPROVED,
        ),
        _holds("Instances of a Spot scale set get the notice, too.", LINUX, "4.23 5.4", EVICTED),
        _holds("The eviction policy is Deallocate by default.", SPOT_VMS, "4.25", EVICTED),
        _holds(
            "A deallocated VM can be started again later.",
            SPOT_VMS,
            "4.25",
            "acceptance/test_spot.py::test_a_deallocated_vm_is_started_without_notice",
        ),
        _holds(
            "With the policy Delete, the eviction deletes the VM.",
            SPOT_VMS,
            "4.25",
            f"{OWN}::test_an_eviction_deletes_a_vm_with_that_policy",
        ),
        _holds(
            "An evicted VM is not started automatically.",
            SPOT_VMS,
            "4.25",
            f"{OWN}::test_an_evicted_vm_stays_deallocated",
        ),
        _holds(
            "A simulated eviction creates the same event.",
            SPOT,
            "2.37 8.2",
            "acceptance/test_spot.py::test_the_notice_of_an_eviction_may_be_longer",
            UNAPPROVED,
            reading="In Forewarn, every eviction is simulated or carried out by the fabric.",
        ),
        _not_applicable("The REST operation `simulateEviction` responds with 204.", SPOT, "8.2", NO_ARM),
        _not_applicable(
            "A VM is evicted when its price exceeds the maximum.",
            SPOT_VMS,
            "4.23",
            "Forewarn has no prices. An operator requests the eviction.",
        ),
        _not_applicable(
            "Azure tries to restore evicted instances of a scale set.",
            SPOT_SETS,
            "4.25",
            "Forewarn has no capacity to restore from. An operator starts the VM.",
        ),
    ),
    "Guest OS updates": (
        _holds("An OS image upgrade of a scale set creates an event.", LINUX, "8.4", OS_IMAGE),
        _holds("A reimage of a scale set instance creates an event.", LINUX, "8.4", OS_IMAGE),
        _holds("These events are off by default.", LINUX, "8.4", OS_IMAGE),
        _holds(
            "`osImageNotificationProfile` enables them.",
            OVERVIEW,
            "8.4",
            OS_IMAGE,
            reading="In Forewarn, it is the key `os_image_notice` of the scale set.",
        ),
        _holds("Their notice is `PT15M`.", OVERVIEW, "8.4", OS_IMAGE),
        _not_applicable(
            "Sizes of the G, M, N and H series have no such events.",
            LINUX,
            "8.4",
            "Forewarn does not interpret VM sizes. The operator enables the notice where it fits.",
        ),
    ),
    "Event Grid and Resource Graph": (
        _holds(
            "Nothing is delivered to Event Grid until the user enables it.",
            EVENT_GRID,
            "8.6",
            "acceptance/test_webhooks.py::test_from_adding_to_removing_by_command_line",
            reading=COUNTERPART,
        ),
        _holds(
            "A single place receives the events of all VMs.",
            EVENT_GRID,
            "8.6",
            "unit/test_dispatcher.py::test_all_rows_after_the_add_arrive_once_and_signed",
            reading=COUNTERPART,
        ),
        _holds(
            "The status is also Completed at the end.",
            EVENT_GRID,
            "8.13",
            "testing/test_kit.py::test_advance_moves_fifteen_minutes_at_once",
            reading=COUNTERPART,
        ),
        _holds(
            "The status is also Canceled after a cancellation.",
            EVENT_GRID,
            "8.13",
            CANCELLED,
            reading=COUNTERPART + " The word is `cancelled`.",
        ),
        _holds(
            "The event has the same id as in the VM.",
            EVENT_GRID,
            "8.11 8.14",
            "unit/test_cloud_event.py::test_a_row_about_an_event",
            reading=COUNTERPART,
        ),
        _holds(
            "A notification can arrive twice, with the same id.",
            EVENT_GRID,
            "8.15",
            "unit/test_dispatcher.py::test_a_delivery_that_was_not_written_before_a_kill_is_repeated_with_the_same_id",
            reading=COUNTERPART,
        ),
        _holds(
            "The payload has the fields of the event.",
            EVENT_GRID,
            "8.12",
            f"{OWN}::test_history_has_the_fields_of_the_event",
            reading=COUNTERPART,
        ),
        _not_applicable("The subject is the ARM id of the event.", EVENT_GRID, "8.11", NO_EVENT_GRID),
        _not_applicable("All notifications have one `eventType`.", EVENT_GRID, "8.11", NO_EVENT_GRID),
        _not_applicable("The only version for Event Grid is 2020-07-01.", EVENT_GRID, "8.6", NO_EVENT_GRID),
        _not_applicable(
            "Readers need the role `ScheduledEventContributor`.",
            EVENT_GRID,
            "8.8",
            "Forewarn has its own roles and tokens.",
            "http/test_roles.py::test_each_role_has_its_permissions",
        ),
        _not_applicable("The maintenance provider has an operation that approves an event.", EVENT_GRID, "8.8", NO_ARM),
        _not_applicable("A subscription needs preview flags.", EVENT_GRID, "8.6", "Forewarn has no subscriptions."),
        _not_applicable(
            "The table `maintenanceresources` has a row for each event.", RESOURCE_GRAPH, "8.12", NO_RESOURCE_GRAPH
        ),
        _not_applicable(
            "Each change of status updates the row of the event.",
            RESOURCE_GRAPH,
            "8.13",
            NO_RESOURCE_GRAPH,
            "acceptance/test_history.py::test_the_history_of_a_vm_in_a_month",
        ),
    ),
    "Instance metadata": (
        _holds(
            "The whole tree has the branches `compute` and `network`.",
            IMDS,
            "6.1",
            "unit/test_instance.py::test_every_kind_of_request_gets_its_response",
        ),
        _holds("A path selects a branch.", IMDS, "6.2", "request: instance: branch"),
        _holds("A number selects an element of an array.", IMDS, "6.3", "request: instance: index"),
        _holds("A single value needs `format=text`.", IMDS, "6.4 6.5", "request: instance: value as text"),
        _holds(
            "A single value without `format=text` gets 400.",
            IMDS,
            "6.5",
            "request: instance: value without format",
            reading="The table of statuses says `format=json`. The note about leaf nodes says `format=text`.",
        ),
        _holds("`format=text` is available wherever a path filters.", IMDS, "6.23", "request: instance: list as text"),
        _holds("All primitive values are strings.", IMDS, "6.9", "request: instance: numbers are text"),
        _holds(
            "A value that is missing or not applicable is an empty string.",
            IMDS,
            "6.9",
            "request: instance: empty value",
        ),
        _holds(
            "Without a version, the error lists the newest versions.", IMDS, "6.11", "request: instance: no version"
        ),
        _holds("There are 35 versions, 2017-03-01 to 2025-04-07.", IMDS, "6.24", "request: versions"),
        _holds("`/metadata/versions` lists them, and needs no version.", IMDS, "6.8", "request: versions"),
        _holds(
            "Since 2017-04-02: `location`, `name`, `offer`, `osType`, `publisher`, `sku`, `version`, `vmId`, `vmSize`.",
            IMDS,
            "6.16",
            ELEMENT,
        ),
        _holds("Since 2017-04-02: `platformUpdateDomain`, `platformFaultDomain`.", IMDS, "6.16", ELEMENT),
        _holds(
            "Since 2017-04-02: the network addresses.",
            IMDS,
            "6.14",
            "unit/test_instance.py::test_every_kind_of_request_gets_its_response",
        ),
        _holds(
            "Since 2017-08-01: `placementGroupId`, `resourceGroupName`, `subscriptionId`, `tags`.",
            IMDS,
            "6.17",
            ELEMENT,
        ),
        _holds("Since 2017-12-01: `vmScaleSetName`, `zone`.", IMDS, "6.18", ELEMENT),
        _holds("Since 2018-04-02: `plan`, `publicKeys`.", IMDS, "6.25", ELEMENT),
        _holds("Since 2018-10-01: `azEnvironment`, `provider`.", IMDS, "6.19", ELEMENT),
        _holds("Since 2019-02-01: `customData`.", IMDS, "6.25", ELEMENT),
        _differs(
            "`customData` is disabled: it is empty.",
            IMDS,
            "6.34 6.35",
            "It is empty by default. A VM with `custom_data` in the fleet file shows it.",
        ),
        _holds("Since 2019-03-11: `resourceId`.", IMDS, "6.19", ELEMENT),
        _holds("Since 2019-06-01: `storageProfile`, with image, OS disk and data disks.", IMDS, "6.26", ELEMENT),
        _holds("Since 2019-06-04: `tagsList`.", IMDS, "6.19", ELEMENT),
        _holds("Since 2020-06-01: `isHostCompatibilityLayerVm`, `securityProfile`.", IMDS, "6.27", ELEMENT),
        _holds("Since 2020-07-15: `osProfile` with `adminUsername` and `computerName`.", IMDS, "6.20", ELEMENT),
        _holds("Since 2020-09-01: `licenseType`.", IMDS, "6.28", ELEMENT),
        _holds("Since 2020-10-01: `osProfile.disablePasswordAuthentication`.", IMDS, "6.28", ELEMENT),
        _holds("Since 2020-12-01: `priority`, `evictionPolicy`.", IMDS, "6.20", ELEMENT),
        _holds("Since 2021-01-01: `userData`, in Base64.", IMDS, "6.28 6.33", ELEMENT),
        _holds("Since 2021-02-01: `storageProfile.resourceDisk.size`.", IMDS, "6.26", ELEMENT),
        _holds("Since 2021-03-01: `extendedLocation`.", IMDS, "6.29", ELEMENT),
        _holds(
            "Since 2021-03-01: `virtualMachineScaleSet.id`, for flexible scale sets only.",
            IMDS,
            "6.21",
            f"{OWN}::test_only_flexible_sets_have_an_id_of_the_set",
            ELEMENT,
        ),
        _not_applicable(
            "Since 2021-05-01: throttles and capacity of data disks.",
            IMDS,
            "6.36",
            "A fleet has no data disks. The array is empty.",
        ),
        _holds("Since 2021-10-01: `platformSubFaultDomain`.", IMDS, "6.29", ELEMENT),
        _holds(
            "Since 2021-11-01: `additionalCapabilities.hibernationEnabled`, `securityProfile.encryptionAtHost`.",
            IMDS,
            "6.27 6.30",
            ELEMENT,
        ),
        _holds("Since 2021-11-15: `host.id` and `hostGroup.id`.", IMDS, "6.21 6.29", ELEMENT),
        _holds("Since 2021-12-13: `securityProfile.securityType`.", IMDS, "6.27", ELEMENT),
        _holds("Since 2023-07-01: ids and exact version of gallery images.", IMDS, "6.31", ELEMENT),
        _holds("Since 2023-11-15: `physicalZone`.", IMDS, "6.31", ELEMENT),
        _holds("`tags` joins names and values with colons and semicolons.", IMDS, "6.13", VALUES),
        _holds("`tagsList` is a JSON array.", IMDS, "6.13", VALUES),
        _holds(
            "`vmId` identifies a VM uniquely.",
            IMDS,
            "6.12",
            "unit/test_instance.py::test_ids_are_stable_guids_and_unique_where_required",
        ),
        _holds("`azEnvironment` is `AzurePublicCloud` in the public cloud.", IMDS, "6.19", VALUES),
        _differs(
            "A change of the tags of a scale set is visible only after a reboot or reimage.",
            IMDS,
            "6.13",
            "Forewarn shows new tags at once. Nothing depends on old ones.",
        ),
        _differs(
            "VMs of the classic deployment model have no `compute` branch.",
            IMDS,
            "6.1",
            "VMs of a cloud service have it in Forewarn, because clients read their name there.",
            f"{OWN}::test_a_vm_of_a_cloud_service_can_read_its_name",
        ),
        _not_applicable(
            "`/metadata/attested/document` returns a document that Microsoft signed.",
            IMDS,
            "3.18",
            "Forewarn cannot sign for Microsoft. The path gets 404.",
        ),
        _not_applicable(
            "`/metadata/identity` returns tokens of managed identities.",
            IMDS,
            "3.18",
            "Forewarn has no identities. The path gets 404.",
            "request: path /metadata/identity/oauth2/token?api-version=2018-02-01",
        ),
        _not_applicable(
            "`/metadata/loadbalancer` describes the load balancer.",
            IMDS,
            "3.18",
            "Forewarn has no load balancers. The path gets 404.",
        ),
    ),
    "Mock server and samples": (
        _holds("Live migration: 15 minutes Scheduled, 5 minutes Started.", MOCK, "4.13", UNAPPROVED, SCENARIOS),
        _holds("Host maintenance: 15 minutes Scheduled, 10 minutes Started.", MOCK, "4.14", UNAPPROVED, SCENARIOS),
        _holds("User reboot: 15 minutes Scheduled, 10 minutes Started.", MOCK, "4.15", UNAPPROVED, SCENARIOS),
        _holds(
            "User redeploy: 15 minutes Scheduled, 10 minutes Started.",
            MOCK,
            "4.15",
            SCENARIOS,
            reading="The scenario has these times. Otherwise the notice is the documented minimum, 10 minutes.",
        ),
        _holds("Cancelled maintenance disappears after 8 minutes.", MOCK, "4.16", SCENARIOS),
        _holds(
            "Description of a Redeploy by the platform: `Virtual machine has encountered a failure.`",
            MOCK,
            "2.36",
            "document: failed-hardware-redeploy",
            FAILURE,
        ),
        _holds(
            "A scenario can run 60 times faster.",
            MOCK,
            "4.13",
            "acceptance/test_scenarios.py::test_on_the_system_clock_only_the_run_is_faster",
        ),
        _holds(
            "The resources of a scenario can be chosen.",
            MOCK,
            "2.19",
            "testing/test_kit.py::test_every_scenario_runs_in_an_empty_fleet",
        ),
        _holds("GET returns the current events.", MOCK, "3.1", "request: document at 2020-07-01"),
        _holds("A POST with the id of the event moves the event on at once.", MOCK, "4.2", APPROVED),
        _differs(
            "The mock server sends `NotBefore` in ISO 8601.",
            MOCK,
            "2.21",
            "Every published document and the Event Grid page have RFC 1123.",
            "document: migration-scheduled",
        ),
        _differs(
            "The mock server responds 200 to the approval of an unknown id.",
            MOCK,
            "3.35",
            "The Linux page promises 200 for valid ids only. Forewarn returns 400.",
            "request: approval of an unknown id",
        ),
        _holds(
            "The Node sample polls with an ETag and gets a response only after a change.",
            NODE,
            "3.2 3.3",
            "request: ETag as given",
            "request: ETag unquoted 0",
        ),
        _holds(
            "Its log shows a first response after 60 seconds.",
            NODE,
            "3.48",
            "testing/test_service_lifecycle.py::test_the_delay_of_the_first_poll_can_be_tested",
            reading="The default is no delay. A setting adds it.",
        ),
        _differs(
            "Its log shows a user's restart with an empty description.",
            NODE,
            "2.25",
            "Forewarn sends the description of the Linux page, as later captures have it.",
            UNAPPROVED,
        ),
        _differs(
            "Its log shows an approved restart that is removed after a minute.",
            NODE,
            "4.11",
            "Forewarn keeps it Started for 10 minutes, the median of the mock server. The setting `settle` changes it.",
            "acceptance/test_notices.py::test_the_settle_time_is_a_setting_of_each_cause",
        ),
        _holds(
            "The Windows sample polls every 10 seconds and approves every event.",
            COLLECTOR,
            "3.28 3.56",
            "request: approval with incarnation",
        ),
        _holds(
            "The Python sample of the Linux page polls, and approves user events and short freezes.",
            LINUX,
            "3.1 3.24",
            "acceptance/test_link_local.py::test_a_client_written_for_azure",
        ),
    ),
}
"""Every statement, by area."""

STATEMENTS = tuple(statement for area in AREAS.values() for statement in area)
