"""Every cause from request to removal in virtual time, as VMs inside and outside its scope see it at each version."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from acceptance.causes import (
    NEWEST,
    OLDEST,
    act_on_event,
    check_document,
    document,
    get,
    incarnation,
    request,
    scheduled_event,
    started,
)
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

MINUTE = timedelta(minutes=1)
ALONE, TOGETHER, EACH = ((0,),), ((0, 1),), ((0,), (1,))
"""Which of the two VMs on the host have an event, and which of them have the same one."""


class Story(NamedTuple):
    """What a cause must look like."""

    name: str
    cause: str
    event_type: str
    notice: timedelta = 15 * MINUTE
    settle: timedelta = 10 * MINUTE
    description: str = ""
    source: str = "Platform"
    duration: int = -1
    affected: tuple[tuple[int, ...], ...] = ALONE
    host: bool = False
    """The request names the host, not the VMs."""
    options: dict[str, str] | None = None
    """Options of the request."""
    group: str = "availability-set"
    priority: str = "regular"
    eviction_policy: str = ""

    @property
    def deletes(self) -> bool:
        return self.event_type == "Terminate" or self.eviction_policy == "delete"


UPDATE = "Host server is undergoing maintenance."
MIGRATION = "Virtual machine is being paused because of a memory-preserving Live Migration operation."
RESTART = "Virtual machine is going to be restarted as requested by authorized user."
REDEPLOY = "Virtual machine is going to be redeployed as requested by authorized user."
FAILURE = "Virtual machine has encountered a failure."
REPAIR = "Host server is undergoing an emergency repair."

TEN, FIVE, NONE, WEEK = 10 * MINUTE, 5 * MINUTE, 0 * MINUTE, timedelta(days=7)
HALF = timedelta(seconds=30)

STORIES = (
    Story("restart", cause="restart", event_type="Reboot", description=RESTART, source="User"),
    Story("restarts", cause="restart", event_type="Reboot", description=RESTART, source="User", affected=EACH),
    Story("redeploy", cause="redeploy", notice=TEN, event_type="Redeploy", description=REDEPLOY, source="User"),
    Story(
        "freeze", cause="host-update", event_type="Freeze", description=UPDATE, duration=9, affected=TOGETHER, host=True
    ),
    Story(
        "long",
        cause="host-update",
        event_type="Freeze",
        description=UPDATE,
        duration=30,
        affected=TOGETHER,
        host=True,
        options={"type": "freeze", "duration": "30s"},
    ),
    Story(
        "reboot",
        cause="host-update",
        event_type="Reboot",
        description=UPDATE,
        affected=TOGETHER,
        host=True,
        options={"type": "Reboot"},
    ),
    Story(
        "migration",
        cause="live-migration",
        settle=FIVE,
        event_type="Freeze",
        description=MIGRATION,
        duration=5,
        affected=TOGETHER,
    ),
    Story(
        "network",
        cause="host-update",
        event_type="Freeze",
        description="Network update.",
        duration=0,
        affected=TOGETHER,
        host=True,
        options={"duration": "0s", "description": "Network update."},
    ),
    Story(
        "unknown",
        cause="live-migration",
        settle=FIVE,
        event_type="Freeze",
        affected=TOGETHER,
        options={"duration": "unknown", "description": ""},
    ),
    Story(
        "degraded", cause="degraded-hardware", notice=WEEK, event_type="Freeze", duration=5, affected=EACH, host=True
    ),
    Story(
        "worn",
        cause="degraded-hardware",
        notice=WEEK,
        event_type="Redeploy",
        affected=EACH,
        host=True,
        options={"type": "redeploy"},
    ),
    Story(
        "failure",
        cause="hardware-failure",
        notice=NONE,
        event_type="Reboot",
        description=FAILURE,
        affected=TOGETHER,
        host=True,
    ),
    Story(
        "failed",
        cause="hardware-failure",
        notice=NONE,
        event_type="Redeploy",
        description=FAILURE,
        affected=TOGETHER,
        host=True,
        options={"type": "redeploy"},
    ),
    Story("repair", cause="emergency-repair", event_type="Reboot", description=REPAIR, affected=TOGETHER, host=True),
    Story("eviction", cause="eviction", notice=HALF, settle=MINUTE, event_type="Preempt", priority="spot"),
    Story(
        "evicted",
        cause="eviction",
        notice=HALF,
        settle=MINUTE,
        event_type="Preempt",
        group="scale-set",
        priority="spot",
        eviction_policy="delete",
    ),
    Story("reimage", cause="reimage", event_type="Reboot", source="User", group="scale-set"),
    Story("images", cause="image-upgrade", event_type="Reboot", affected=EACH, group="scale-set"),
    Story(
        "delete", cause="delete", notice=TEN, settle=MINUTE, event_type="Terminate", source="User", group="scale-set"
    ),
    Story("scalein", cause="scale-in", notice=TEN, settle=MINUTE, event_type="Terminate", group="scale-set"),
    Story("ill", cause="instance-repair", notice=TEN, settle=MINUTE, event_type="Terminate", group="scale-set"),
)
NOTICED = [story for story in STORIES if story.notice]
COURSES = ("due", "early", "cancelled")


def group_of(story: Story, course: str) -> str:
    return f"{story.name}-{course}"


def part_of_fleet(number: int, story: Story, course: str) -> str:
    """A group over two hosts, two of its VMs on the first, and a stranger beside the third.

    Each part has a zone of its own: what is moved in one story never comes to stand on the hosts of another.
    """
    name = group_of(story, course)
    vm_name = "" if story.group == "scale-set" else f'name = "{name}_{{n}}"'
    notices = 'os_image_notice = "PT15M"\n' if story.group == "scale-set" else ""
    if story.event_type == "Terminate":
        notices += 'terminate_notice = "PT10M"'
    eviction_policy = f'eviction_policy = "{story.eviction_policy}"' if story.eviction_policy else ""
    return f"""
[[host]]
name = "{name}-a"
[[host]]
name = "{name}-b"
[[group]]
name = "{name}"
kind = "{story.group}"
update_domains = 2
{notices}
{eviction_policy}
[[vm]]
group = "{name}"
{vm_name}
count = 3
hosts = ["{name}-a", "{name}-a", "{name}-b"]
addresses = "127.1.{number}.1-127.1.{number}.3"
zone = "{name}"
priority = "{story.priority}"
[[vm]]
name = "{name}-outside"
host = "{name}-b"
address = "127.1.{number}.9"
zone = "{name}"
"""


PARTS = [(story, course) for story in STORIES for course in COURSES]
FLEET = "".join(part_of_fleet(number, *part) for number, part in enumerate(PARTS))


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(FLEET, preview_versions=True) as found:
        yield found


class Scene:
    """A running operation: its group sees the event, and other groups do not."""

    def __init__(self, service: Service, story: Story, course: str) -> None:
        self.service, self.story = service, story
        self.name = group_of(story, course)
        number = PARTS.index((story, course))
        self.inside = [f"127.1.{number}.{last}" for last in (1, 2, 3)]
        self.outside = f"127.1.{number}.9"
        self.number = incarnation(service, self.inside[0])
        self.strangers = document(service, self.outside)
        assert self.number == 0
        self.expected: list[dict[str, Any]] = []

    def begin(self) -> None:
        story = self.story
        names = [f"{self.name}_{number}" for number in range(2)]
        target = {"host": f"{self.name}-a"} if story.host else {"vms": names[: sum(map(len, story.affected))]}
        operations = request(self.service, story.cause, **target, **(story.options or {}))
        self.ids = [event["id"] for operation in operations for event in operation["events"]]
        not_before = self.service.now + story.notice
        self.expected = [
            self.event(event_id, vms, not_before) for event_id, vms in zip(self.ids, story.affected, strict=True)
        ]
        self.number += len(self.expected)

    def event(self, event_id: str, vms: tuple[int, ...], not_before: datetime) -> dict[str, Any]:
        story = self.story
        resources = [f"{self.name}_{number}" for number in vms]
        return scheduled_event(
            event_id, story.event_type, resources, not_before, story.description, story.source, story.duration
        )

    def start(self) -> None:
        self.expected = [started(event) for event in self.expected]

    def end(self) -> None:
        self.number += len(self.expected)
        self.expected = []

    def check(self) -> None:
        first, *others = self.callers()
        check_document(self.service, first, self.number, self.expected)
        for address in others:
            check_document(self.service, address, self.number, self.expected, (OLDEST, NEWEST))
        assert document(self.service, self.outside) == self.strangers, "a VM outside the scope sees nothing"

    def callers(self) -> list[str]:
        """The addresses that still get a response: all except that of a deleted VM."""
        return self.inside[1:] if self.story.deletes and not self.expected else self.inside


def pass_just(scene: Scene, length: timedelta) -> None:
    """Advance to one second before the end, check that nothing happened, then advance that second."""
    scene.service.advance(length - timedelta(seconds=1))
    scene.check()
    scene.service.advance(timedelta(seconds=1))


@pytest.mark.parametrize("story", NOTICED, ids=lambda story: story.name)
def test_an_unapproved_event_is_scheduled_starts_when_due_and_disappears_when_settled(
    service: Service, story: Story
) -> None:
    scene = Scene(service, story, "due")
    scene.check()
    scene.begin()
    scene.check()
    pass_just(scene, story.notice)
    scene.start()
    scene.number += len(scene.expected)
    scene.check()
    pass_just(scene, story.settle)
    scene.end()
    scene.check()


@pytest.mark.parametrize("story", NOTICED, ids=lambda story: story.name)
def test_an_event_starts_at_once_when_an_unaffected_vm_of_its_scope_approves_it(service: Service, story: Story) -> None:
    scene = Scene(service, story, "early")
    scene.begin()
    service.advance(story.notice / 2)
    scene.check()
    assert service.approve(*scene.ids, source=scene.outside).status == 400, "a VM outside the scope cannot approve"
    scene.check()
    answer = service.approve(*scene.ids, source=scene.inside[2])
    assert (answer.status, answer.body) == (200, b"")
    scene.start()
    scene.number += len(scene.expected)
    scene.check()
    pass_just(scene, story.settle)
    scene.end()
    scene.check()


@pytest.mark.parametrize("story", [story for story in STORIES if not story.notice], ids=lambda story: story.name)
def test_the_event_of_a_failure_has_started_at_once(service: Service, story: Story) -> None:
    scene = Scene(service, story, "due")
    scene.begin()
    scene.start()
    scene.check()
    refused = service.control("POST", f"/v1/events/{scene.ids[0]}/cancel")
    assert (refused.status, refused.json()["title"]) == (409, "Conflict")
    assert service.approve(*scene.ids, source=scene.inside[0]).status == 200, "a client approves whatever it sees"
    pass_just(scene, story.settle)
    scene.end()
    scene.check()


@pytest.mark.parametrize("story", NOTICED, ids=lambda story: story.name)
def test_a_cancelled_operation_disappears_and_does_not_affect_its_vms(service: Service, story: Story) -> None:
    scene = Scene(service, story, "cancelled")
    names = [f"{scene.name}_{number}" for number in range(3)]
    before = [(vm["host"], vm["state"]) for name in names for vm in (get(service, f"vms/{name}"),)]
    scene.begin()
    service.advance(story.notice / 2)
    for event_id in scene.ids:
        assert act_on_event(service, event_id, "cancel")["status"] == "cancelled"
    scene.end()
    check_document(service, scene.inside[0], scene.number, [])
    service.advance(story.notice + story.settle)
    check_document(service, scene.inside[0], scene.number, [])
    assert [(vm["host"], vm["state"]) for name in names for vm in (get(service, f"vms/{name}"),)] == before


# --- One at a time ----------------------------------------------------------------------------------------

PAIR = """
[[host]]
name = "shelf"
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
group = "web"
name = "web-{n}"
count = 2
hosts = ["shelf"]
addresses = "127.0.0.1-127.0.0.2"
[[vm]]
name = "other"
address = "127.0.0.9"
"""
CONFLICTS: dict[str, tuple[dict[str, Any], str]] = {
    "restart": ({"vms": ["web-0"]}, "web-0"),
    "redeploy": ({"vms": ["web-0"]}, "web-0"),
    "live-migration": ({"vms": ["web-0"]}, "web-0"),
    "host-update": ({"host": "shelf"}, "shelf"),
    "emergency-repair": ({"host": "shelf"}, "shelf"),
    "degraded-hardware": ({"host": "shelf"}, "web-0"),
    "hardware-failure": ({"host": "shelf"}, "shelf"),
}


@pytest.mark.parametrize("cause", CONFLICTS)
@pytest.mark.forewarn(fleet=PAIR, fabric="manual")
def test_a_cause_is_rejected_until_the_work_of_the_first_is_done(forewarn: Service, cause: str) -> None:
    """A VM that polls sees one event. Another cause, another VM and a finished operation do not conflict."""
    target, name = CONFLICTS[cause]
    options = {} if cause != "degraded-hardware" else {"type": "Redeploy"}
    if cause == "live-migration":
        forewarn.vm("room", host="spare")
    outside = document(forewarn, "127.0.0.9")
    first, *_ = request(forewarn, cause, **target, **options)
    shown = {version: document(forewarn, "127.0.0.1", version) for version in (OLDEST, NEWEST)}

    def is_rejected(status: str) -> None:
        refused = forewarn.control("POST", "/v1/operations", {"cause": cause, **target, **options})
        assert (refused.status, refused.json()["title"]) == (409, "Conflict")
        assert f"{name} already has a {status} {cause} (operation {first['id']})" in refused.json()["detail"]

    if cause != "hardware-failure":
        is_rejected("pending")
        assert {version: document(forewarn, "127.0.0.1", version) for version in shown} == shown
        for event in first["events"]:
            act_on_event(forewarn, event["id"], "approve")
    if cause != "degraded-hardware":  # the other VM of the host has none that has started
        is_rejected("started")
    for other in ("restart", "redeploy"):
        if other != cause:
            request(forewarn, other, "web-0")
    if cause in ("restart", "redeploy"):
        request(forewarn, cause, "web-1")
    assert document(forewarn, "127.0.0.9") == outside
    assert forewarn.control("POST", f"/v1/operations/{first['id']}/done").status == 200
    again = request(forewarn, cause, **target, **options) if cause != "live-migration" else []
    assert all(operation["id"] != first["id"] for operation in again)


POOL = """
[[group]]
name = "pool"
kind = "scale-set"
terminate_notice = "PT10M"
os_image_notice = "PT15M"
[[vm]]
group = "pool"
count = 2
addresses = "127.0.0.1-127.0.0.2"
[[vm]]
name = "spot"
address = "127.0.0.3"
priority = "spot"
"""
CONFLICTS_OF_A_VM = {
    **dict.fromkeys(("start", "eviction", "rebalance"), "spot"),
    **dict.fromkeys(("reimage", "image-upgrade", "delete", "scale-in", "instance-repair"), "pool_0"),
}


@pytest.mark.parametrize("cause", CONFLICTS_OF_A_VM)
@pytest.mark.forewarn(fleet=POOL, fabric="manual", preview_versions=True)
def test_a_vm_has_one_operation_of_a_cause_at_a_time(forewarn: Service, cause: str) -> None:
    name = CONFLICTS_OF_A_VM[cause]
    if cause == "start":
        (eviction,) = request(forewarn, "eviction", name, notice="0s", overrides=["notice"])
        assert forewarn.control("POST", f"/v1/operations/{eviction['id']}/done").status == 200
    (first,) = request(forewarn, cause, name)

    def is_rejected(status: str) -> None:
        rejected = forewarn.control("POST", "/v1/operations", {"cause": cause, "vms": [name]})
        assert rejected.status == 409
        assert f"{name} already has a {status} {cause} (operation {first['id']})" in rejected.json()["detail"]

    is_rejected(first["status"])
    if cause not in ("start", "rebalance"):  # a recommendation never starts
        act_on_event(forewarn, first["events"][0]["id"], "approve")
        is_rejected("started")
    others = request(forewarn, cause, "pool_1") if name == "pool_0" else []
    assert all(operation["id"] != first["id"] for operation in others), "another VM does not conflict"


@pytest.mark.forewarn(fleet=PAIR)
def test_a_second_restart_is_possible_while_the_first_event_is_still_shown(forewarn: Service) -> None:
    first = request(forewarn, "restart", "web-0")[0]
    act_on_event(forewarn, first["events"][0]["id"], "approve")
    forewarn.advance("0s")
    request(forewarn, "restart", "web-0")
    found = document(forewarn, "127.0.0.2")["Events"]
    assert [event["EventStatus"] for event in found] == ["Started", "Scheduled"]
