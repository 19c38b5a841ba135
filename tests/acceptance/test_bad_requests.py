"""Bad input gets an error that says what would be right, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from acceptance.causes import act_on_event, event_ids, everything, request, request_one
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

FLEET = """
[[host]]
name = "rack-1"
[[host]]
name = "rack-2"
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
group = "web"
name = "web-{n}"
count = 4
hosts = ["rack-1", "rack-2"]
addresses = "127.6.0.1-127.6.0.4"
[[host]]
name = "rack-3"
[[vm]]
group = "web"
name = "web-4"
host = "rack-3"
address = "127.6.0.5"
[[group]]
name = "pool"
kind = "scale-set"
terminate_notice = "PT10M"
[[vm]]
group = "pool"
name = "pool_2"
address = "127.6.0.21"
[[group]]
name = "batch"
kind = "scale-set"
[[vm]]
group = "batch"
count = 4
hosts = ["rack-2"]
addresses = "127.6.0.11-127.6.0.14"
priority = "spot"
"""
WEB, BATCH = "127.6.0.1", "127.6.0.11"

INVALID, NOT_FOUND, CONFLICT = (400, "Invalid"), (404, "NotFound"), (409, "Conflict")
OPERATIONS, ROLLOUTS = "/v1/operations", "/v1/rollouts"


class Bad(NamedTuple):
    """A request, its expected error family, and a part of the expected message."""

    what: str
    path: str
    body: Any
    family: tuple[int, str]
    words: tuple[str, ...]


def restart(**options: Any) -> dict[str, Any]:
    return {"cause": "restart", "vms": ["web-0"], **options}


def update(**options: Any) -> dict[str, Any]:
    return {"cause": "host-update", "host": "rack-1", **options}


NAMES = (
    Bad("unknown VM", OPERATIONS, restart(vms=["web0"]), NOT_FOUND, ("Unknown VM 'web0'", "Did you mean 'web-0'?")),
    Bad("one of several unknown", OPERATIONS, restart(vms=["web-0", "x"]), NOT_FOUND, ("Unknown VM 'x'",)),
    Bad(
        "unknown host", OPERATIONS, update(host="rack1"), NOT_FOUND, ("Unknown host 'rack1'", "Did you mean 'rack-1'?")
    ),
    Bad("unknown cause", OPERATIONS, restart(cause="restarts"), INVALID, ("eviction", "Did you mean 'restart'?")),
    Bad("no cause", OPERATIONS, {"vms": ["web-0"]}, INVALID, ("/cause", "is required: the cause of the operation")),
    Bad(
        "unknown host", OPERATIONS, update(host="rack1"), NOT_FOUND, ("Unknown host 'rack1'", "Did you mean 'rack-1'?")
    ),
    Bad("unknown event", "/v1/events/{misspelt}/cancel", None, NOT_FOUND, ("Unknown event", "Did you mean '{user}")),
    Bad("unknown event, approved", "/v1/events/x/approve", None, NOT_FOUND, ("Unknown event 'x'",)),
    Bad("unknown operation", "/v1/operations/x/cancel", None, NOT_FOUND, ("Unknown operation 'x'",)),
    Bad("unknown host, returned", "/v1/hosts/rack3/return", None, NOT_FOUND, ("Did you mean 'rack-",)),
    Bad("pattern without a match", ROLLOUTS, {"hosts": ["shelf-*"]}, INVALID, ("'shelf-*'", "forewarn host list")),
    Bad("one pattern of two", ROLLOUTS, {"hosts": ["rack-*", "shelf"]}, INVALID, ("'shelf'",)),
    Bad("no pattern", ROLLOUTS, {}, INVALID, ("/hosts", "is required: host names, or patterns like 'rack-1-*'")),
)

FORMS = (
    Bad("unknown field", OPERATIONS, restart(notise="1h"), INVALID, ("/notise", "Did you mean 'notice'?")),
    *(
        Bad(f"unknown field {name}", OPERATIONS, restart(**{name: 1}), INVALID, ("is not a known member",))
        for name in ("a - at `$.zzz", "a` - at `$.vms", "a - at `$[0]", "a - at `$.cause[0]", "x` - at `key` in `$.y")
    ),
    Bad("unknown field that is no text", OPERATIONS, b'{"\\ud800": 1}', INVALID, ("not Unicode text",)),
    Bad("not JSON", OPERATIONS, b"cause=restart", INVALID, ("is not JSON",)),
    Bad("not an object", OPERATIONS, b'["restart"]', INVALID, ("is not a JSON object",)),
    Bad("cause a number", OPERATIONS, restart(cause=5), INVALID, ("/cause", "must be a string")),
    Bad("VMs not a list", OPERATIONS, restart(vms="web-0"), INVALID, ("/vms", "must be a list of strings")),
    Bad("VM a number", OPERATIONS, restart(vms=[5]), INVALID, ("/vms/0", "must be a string")),
    Bad("host a list", OPERATIONS, update(host=["rack-1"]), INVALID, ("/host", "must be a string")),
    Bad("notice a number", OPERATIONS, restart(notice=900), INVALID, ("/notice", "must be a string")),
    Bad("notice no length", OPERATIONS, restart(notice="soon"), INVALID, ("/notice", "Write it like 90s")),
    Bad("notice negative", OPERATIONS, restart(notice="-1h"), INVALID, ("/notice", "Write it like 90s")),
    Bad("notice beyond all numbers", OPERATIONS, b'{"notice": 1e999}', INVALID, ("/notice: must be a string",)),
    Bad("VMs beyond all numbers", OPERATIONS, b'{"vms": [1e999]}', INVALID, ("/vms/0: must be a string",)),
    Bad("dry run beyond all numbers", OPERATIONS, b'{"dry_run": 1e999}', INVALID, ("must be true or false",)),
    Bad("hosts beyond all numbers", ROLLOUTS, b'{"hosts": 1e999}', INVALID, ("must be a list of strings",)),
    Bad(
        "max_unavailable beyond all numbers",
        ROLLOUTS,
        b'{"hosts": ["rack-*"], "max_unavailable": 1e999}',
        INVALID,
        ("/max_unavailable: must be a whole number",),
    ),
    Bad(
        "reported host beyond all numbers",
        "/v1/operations/x/done",
        b'{"hosts": {"a": 1e999}}',
        INVALID,
        ("/hosts: must be a string",),
    ),
    Bad("notice too long", OPERATIONS, restart(notice="20000d"), INVALID, ("'20000d' is too long", "is 3660d")),
    Bad(
        "deadline too far away",
        OPERATIONS,
        update(postpone_deadline="20000d"),
        INVALID,
        ("'20000d' is too far away", "within 3660 days"),
    ),
    Bad(
        "notice of a deletion too long",
        "/v1/groups/pool/policy",
        {"terminate_notice": "20000d"},
        INVALID,
        ("'20000d' is too long. Write it from PT5M",),
    ),
    Bad("dry run a word", OPERATIONS, restart(dry_run="yes"), INVALID, ("/dry_run", "true or false")),
    Bad("overrides a word", OPERATIONS, restart(overrides="notice"), INVALID, ("/overrides", "list of strings")),
    Bad(
        "deadline no moment", OPERATIONS, update(postpone_deadline="never"), INVALID, ("/postpone_deadline", "like 2h")
    ),
    Bad(
        "max_unavailable a word",
        ROLLOUTS,
        {"hosts": ["rack-*"], "max_unavailable": "2"},
        INVALID,
        ("/max_unavailable", "whole number"),
    ),
    Bad("postponed by nothing", "/v1/events/{platform}/postpone", {}, INVALID, ("/by", "/until")),
    Bad("postponed twice", "/v1/events/{platform}/postpone", {"by": "1h", "until": "2h"}, INVALID, ("not both",)),
)

VALUES = (
    Bad("no VMs", OPERATIONS, restart(vms=[]), INVALID, ("at least one VM",)),
    Bad("a freeze of half a second", OPERATIONS, update(duration="0.5s"), INVALID, ("'0.5s'", "from 1s to 1h", "0s")),
    Bad(
        "a freeze of bad length",
        OPERATIONS,
        update(duration="unkown"),
        INVALID,
        ("/duration", "90s", "Or write unknown"),
    ),
    Bad(
        "an unknown reboot",
        OPERATIONS,
        update(type="reboot", duration="unknown"),
        INVALID,
        ("'unknown'", "only a Freeze"),
    ),
    Bad(
        "description of a user's", OPERATIONS, restart(description="x"), INVALID, ("a user requests a restart", "Azure")
    ),
    Bad(
        "a long description",
        OPERATIONS,
        update(description="x" * 257),
        INVALID,
        ("/description: has more than 256 characters",),
    ),
    Bad("a description of lines", OPERATIONS, update(description="a\nb"), INVALID, ("control characters",)),
    Bad("a description that is no text", OPERATIONS, update(description=5), INVALID, ("/description", "a string")),
    Bad("a long description of many", ROLLOUTS, {"hosts": ["rack-*"], "description": "\t"}, INVALID, ("control",)),
    Bad("a freeze of hours", OPERATIONS, update(duration="2h"), INVALID, ("duration '2h'", "from 1s to 1h")),
    Bad("length of a reboot", OPERATIONS, update(type="reboot", duration="9s"), INVALID, ("only a Freeze", "Omit it")),
    Bad("length of a restart", OPERATIONS, restart(duration="9s"), INVALID, ("only a Freeze",)),
    Bad("type of another cause", OPERATIONS, update(type="redeploy"), INVALID, ("needs Freeze or Reboot",)),
    Bad("notice too short", OPERATIONS, restart(notice="14m59s"), INVALID, ("is 15m", "--override-notice")),
    Bad(
        "notice of a failure",
        *(OPERATIONS, {"cause": "hardware-failure", "host": "rack-1", "notice": "1h"}, INVALID),
        ("hardware-failure has no notice",),
    ),
    Bad(
        "notice of a deletion",
        *(OPERATIONS, {"cause": "delete", "vms": ["batch_0"], "notice": "10m"}, INVALID),
        ("terminate_notice",),
    ),
    Bad(
        "notice of a reimage",
        *(OPERATIONS, {"cause": "reimage", "vms": ["batch_0"], "notice": "15m"}, INVALID),
        ("os_image_notice",),
    ),
    Bad("reimage of no group", OPERATIONS, {"cause": "reimage", "group": "bitch"}, NOT_FOUND, ("mean 'batch'?",)),
    Bad("restart of a group", OPERATIONS, {"cause": "restart", "group": "web"}, INVALID, ("reimage, image-upgrade",)),
    Bad(
        "reimage of a group and a VM",
        *(OPERATIONS, {"cause": "reimage", "group": "web", "vms": ["web-0"]}, INVALID),
        ("without vms and host",),
    ),
    Bad("unknown override", OPERATIONS, restart(overrides=["notices"]), INVALID, ("notice, windows", "Did you mean")),
    Bad(
        "deadline passed",
        OPERATIONS,
        update(postpone_deadline="2020-01-01T00:00:00Z"),
        INVALID,
        ("this time has passed",),
    ),
    Bad("deadline before the start", OPERATIONS, update(postpone_deadline="5m"), INVALID, ("cannot start before",)),
    Bad("deadline beyond time", OPERATIONS, update(postpone_deadline="9999-12-31T23:59:59-12:00"), INVALID, ()),
    Bad("deadline before time", OPERATIONS, update(postpone_deadline="0001-01-01T00:00:00+12:00"), INVALID, ()),
    Bad("deadline of a user's", OPERATIONS, restart(postpone_deadline="2h"), INVALID, ("cannot be postponed",)),
    Bad("host for a VM's cause", OPERATIONS, {"cause": "restart", "host": "rack-1"}, INVALID, ("affects VMs",)),
    Bad("VM and host", OPERATIONS, restart(host="rack-1"), INVALID, ("affects VMs", "no host")),
    Bad("VM for a host's cause", OPERATIONS, {"cause": "host-update", "vms": ["web-0"]}, INVALID, ("affects a host",)),
    Bad(
        "max_unavailable of none",
        ROLLOUTS,
        {"hosts": ["rack-*"], "max_unavailable": 0},
        INVALID,
        ("max_unavailable '0'", "from 1 to 1,000"),
    ),
    Bad(
        "max_unavailable too large",
        ROLLOUTS,
        {"hosts": ["rack-*"], "max_unavailable": 1001},
        INVALID,
        ("from 1 to 1,000",),
    ),
    Bad("no time to be well", ROLLOUTS, {"hosts": ["rack-*"], "health_timeout": "0s"}, INVALID, ("health_timeout",)),
    Bad("rollout of no freeze", ROLLOUTS, {"hosts": ["rack-*"], "duration": "0.1s"}, INVALID, ("from 1s to 1h",)),
    Bad("rollout too soon", ROLLOUTS, {"hosts": ["rack-*"], "notice": "1m"}, INVALID, ("is 15m",)),
    Bad(
        "postponed to before",
        "/v1/events/{platform}/postpone",
        {"until": "2020-01-01"},
        INVALID,
        ("NotBefore is already",),
    ),
    Bad("postponed by no time", "/v1/events/{platform}/postpone", {"by": "0s"}, INVALID, ("Use a later time",)),
)

STATES = (
    Bad("evicting a regular VM", OPERATIONS, {"cause": "eviction", "vms": ["web-0"]}, INVALID, ("not a Spot VM",)),
    Bad("advising a regular VM", OPERATIONS, {"cause": "rebalance", "vms": ["web-0"]}, INVALID, ("not a Spot VM",)),
    Bad(
        "evicting twice",
        OPERATIONS,
        {"cause": "eviction", "vms": ["batch_1"]},
        CONFLICT,
        ("batch_1 already has a pending eviction",),
    ),
    Bad("restarting twice", OPERATIONS, restart(vms=["web-2"]), CONFLICT, ("pending restart (operation {pending})",)),
    Bad("one of two restarted twice", OPERATIONS, restart(vms=["web-0", "web-2"]), CONFLICT, ("operation {pending}",)),
    Bad("updating twice", OPERATIONS, update(host="rack-3"), CONFLICT, ("rack-3 already has a pending host-update",)),
    Bad("one of two evicted twice", OPERATIONS, {"cause": "eviction", "vms": ["batch_3", "batch_1"]}, CONFLICT, ()),
    Bad(
        "deleting twice",
        OPERATIONS,
        {"cause": "scale-in", "vms": ["pool_2"]},
        CONFLICT,
        ("pool_2 already has a pending delete",),
    ),
    Bad("evicting the evicted", OPERATIONS, {"cause": "eviction", "vms": ["batch_0"]}, CONFLICT, ("vm start batch_0",)),
    Bad("restarting the evicted", OPERATIONS, restart(vms=["batch_0"]), CONFLICT, ("forewarn vm start batch_0",)),
    Bad("starting a running VM", OPERATIONS, {"cause": "start", "vms": ["web-0"]}, CONFLICT, ("web-0 is running",)),
    Bad("postponing a user's", "/v1/events/{user}/postpone", {"by": "1h"}, CONFLICT, ("its cause is restart",)),
    Bad(
        "postponing too far", "/v1/events/{platform}/postpone", {"by": "8d"}, CONFLICT, ("after the postpone deadline",)
    ),
    Bad(
        "postponing beyond time",
        "/v1/events/{platform}/postpone",
        {"until": "9999-12-31"},
        INVALID,
        ("/until", "too far away"),
    ),
    Bad("postponing the started", "/v1/events/{started}/postpone", {"by": "1h"}, CONFLICT, ("has started",)),
    Bad("cancelling the started", "/v1/events/{started}/cancel", None, CONFLICT, ("has started",)),
    Bad("done too early", "/v1/operations/{pending}/done", None, CONFLICT, ("is pending",)),
)

POLICIES = (
    Bad("unknown group", "/v1/groups/wib/policy", {"windows": []}, NOT_FOUND, ("Unknown group 'wib'", "mean 'web'?")),
    Bad("VM of a group", "/v1/groups/web-0/policy", {"windows": []}, NOT_FOUND, ("'web-0'", "Its group is 'web'.")),
    Bad("no window", "/v1/groups/web/policy", {"windows": ["sat 25:00 4h"]}, INVALID, ("/windows/0", "like 02:00")),
    Bad("notice too long", "/v1/groups/batch/policy", {"terminate_notice": "PT16M"}, INVALID, ("PT5M to PT15M",)),
    Bad("notice too brief", "/v1/groups/batch/policy", {"terminate_notice": "PT4M59S"}, INVALID, ("PT5M to PT15M",)),
    Bad("notice of no scale set", "/v1/groups/web/policy", {"terminate_notice": "PT5M"}, INVALID, ("not a scale set",)),
    Bad(
        "notice of a Spot set",
        "/v1/groups/batch/policy",
        {"terminate_notice": "PT5M"},
        INVALID,
        ("is a Spot VM", "Azure"),
    ),
    *(
        Bad(f"image notice {word}", "/v1/groups/batch/policy", {"os_image_notice": word}, INVALID, ("Write PT15M.",))
        for word in ("PT10M", "PT16M", "on")
    ),
    Bad("image notice of no set", "/v1/groups/web/policy", {"os_image_notice": "PT15M"}, INVALID, ("an OS image n",)),
    Bad("unknown approval", "/v1/groups/web/policy", {"auto_approve": ["restart"]}, INVALID, ("reboot, redeploy",)),
)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(FLEET) as found:
        yield found


@pytest.fixture(scope="module")
def known(service: Service) -> dict[str, str]:
    """Some that wait, and one that has started."""

    def one(cause: str, *vms: str, **options: Any) -> str:
        (event_id,) = event_ids(request_one(service, cause, *vms, **options)).values()
        return event_id

    request(service, "eviction", "batch_0")
    service.advance("90s")
    under_way = one("restart", "web-3")
    act_on_event(service, under_way, "approve")
    request(service, "eviction", "batch_1", notice="1h")
    request(service, "delete", "pool_2")
    service.advance("0s")
    pending = request_one(service, "restart", "web-2")
    user = event_ids(pending)["web"]
    misspelt = user[:-1] + ("0" if user[-1] != "0" else "1")
    platform = one("host-update", host="rack-3")
    ids = {"user": user, "misspelt": misspelt, "platform": platform}
    return {**ids, "started": under_way, "pending": pending["id"]}


@pytest.mark.parametrize("bad", [*NAMES, *FORMS, *VALUES, *STATES, *POLICIES], ids=lambda bad: bad.what)
def test_invalid_input_is_explained_and_changes_nothing(service: Service, known: dict[str, str], bad: Bad) -> None:
    before = everything(service, WEB, BATCH)
    refused = service.control("POST", bad.path.format(**known), bad.body)
    assert (refused.status, refused.headers["content-type"]) == (bad.family[0], "application/problem+json")
    found = refused.json()
    assert (found["status"], found["title"]) == bad.family
    for words in bad.words:
        assert words.format(**known) in found["detail"]
    assert everything(service, WEB, BATCH) == before


@pytest.mark.forewarn(fleet='[[vm]]\nname = "vm-{n}"\ncount = 10000\n', enable_groups=False)
def test_ten_thousand_vms_are_too_many_for_one_request(forewarn: Service) -> None:
    names = [f"vm-{number}" for number in range(10_000)]
    before = everything(forewarn)
    refused = forewarn.control("POST", OPERATIONS, {"cause": "restart", "vms": names})
    assert (refused.status, refused.json()["title"]) == INVALID
    detail = refused.json()["detail"]
    assert "Too many VMs for one request: 10,000. The maximum is 1,000." in detail
    assert "rollout" in detail, "which is how so many are done"
    assert everything(forewarn) == before
    assert len(request(forewarn, "restart", *names[:1000])) == 1000
