"""Which VMs a run of a scenario uses, and the errors if they do not meet its needs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forewarn.core.fleet import Fleet, FleetChange
from forewarn.core.scenarios import Needs, RunOptions, Scenario, select_vms
from forewarn.errors import BadOption, ScenarioDoesNotFit, UnknownResource, UnknownVM
from forewarn.files.fleet_file import parse_fleet

FLEET = parse_fleet(
    """
[[group]]
name = "web"
kind = "availability-set"
update_domains = 2
[[group]]
name = "pool"
kind = "scale-set"
[[vm]]
name = "web-{n}"
group = "web"
count = 4
[[vm]]
group = "pool"
count = 3
priority = "spot"
[[vm]]
name = "db"
""",
    "fleet.toml",
)
# A data folder of an earlier release can have a Spot set with a terminate notice. A file cannot.
FLEET = FLEET.changed_by(FleetChange(groups=(FLEET.groups["pool"]._replace(terminate_notice=timedelta(minutes=5)),)))


def select(needs: Needs, **options: object) -> tuple[str, ...]:
    scenario = Scenario("mine", "t", "", "", needs, "[[vm]]", ())
    return select_vms(FLEET, scenario, RunOptions(**options))  # type: ignore[arg-type]


def test_the_named_vms_are_selected() -> None:
    assert select(Needs(), vms=("web-1", "db", "web-1")) == ("web-1", "db")
    assert select(Needs(2, "scale-set"), vms=("pool_2", "pool_0")) == ("pool_2", "pool_0")


def test_as_many_of_a_group_as_are_needed() -> None:
    assert select(Needs(2, priority="spot"), group="pool") == ("pool_0", "pool_1")
    assert select(Needs(2, update_domains=2), group="web") == ("web-0", "web-1", "web-2", "web-3")
    assert select(Needs(), group="db") == ("db",)


def test_without_names_the_only_possible_choice_is_selected() -> None:
    assert select(Needs(3, priority="spot")) == ("pool_0", "pool_1", "pool_2")
    assert select(Needs(3, terminate_notice=True)) == ("pool_0", "pool_1", "pool_2")
    assert select(Needs(1, "standalone")) == ("db",)
    assert select(Needs(1, "scale-set", terminate_notice=True)) == ("pool_0",)
    assert select(Needs(2, update_domains=2)) == ("web-0", "web-1", "web-2", "web-3")


@pytest.mark.parametrize(
    ("needs", "options", "problem"),
    [
        (
            Needs(),
            {},
            "mine needs 1 VM, but the fleet has more than one choice. Choose with --vm: web-0, web-1, web-2, web-3,",
        ),
        (Needs(2), {}, "mine needs 2 VMs, but the fleet has more than one choice. Choose with --group: web, pool."),
        (
            Needs(2, priority="spot"),
            {},
            "mine needs 2 Spot VMs, but the fleet has more than one choice. Choose with --group: pool.",
        ),
        (Needs(9), {}, "mine needs 9 VMs, but the fleet has no such VMs."),
        (Needs(1, "cloud-service"), {}, "mine needs 1 VM in one cloud-service, but the fleet has no such VMs."),
        (Needs(2), {"vms": ("db",)}, "mine needs 2 VMs, but only 1 matches."),
        (Needs(priority="spot"), {"vms": ("db",)}, "mine needs 1 Spot VM, but db is regular."),
        (Needs(1, "scale-set"), {"vms": ("db",)}, "mine needs 1 VM in one scale-set, but db is in a standalone."),
        (Needs(terminate_notice=True), {"vms": ("db",)}, "mine needs 1 VM with a terminate notice, but db has no"),
        (
            Needs(2, update_domains=2),
            {"vms": ("web-0", "db")},
            "mine needs 2 VMs in one group in 2 update domains, but these VMs are in 2 groups: web, db.",
        ),
        (
            Needs(2, update_domains=2),
            {"vms": ("web-0", "web-2")},
            "mine needs 2 VMs in one group in 2 update domains, but these VMs are in 1.",
        ),
        (Needs(4, priority="spot"), {"group": "pool"}, "mine needs 4 Spot VMs, but in pool, only 3 match."),
        (Needs(priority="spot"), {"group": "web"}, "mine needs 1 Spot VM, but in web, web-0 is regular."),
    ],
)
def test_the_error_says_what_is_needed_and_how_to_run_it_with_its_own_fleet(
    needs: Needs, options: dict[str, object], problem: str
) -> None:
    with pytest.raises(ScenarioDoesNotFit) as caught:
        select(needs, **options)
    assert str(caught.value).startswith(problem)
    assert "forewarn scenario show mine --fleet > fleet.toml" in str(caught.value)


def test_a_deallocated_vm_is_not_selected() -> None:
    vms = [vm._replace(deallocated=vm.name == "pool_0") for vm in FLEET.vms.values()]
    fleet = Fleet(vms, FLEET.groups.values())
    scenario = Scenario("mine", "t", "", "", Needs(2, priority="spot"), "", ())
    assert select_vms(fleet, scenario, RunOptions()) == ("pool_1", "pool_2")
    with pytest.raises(ScenarioDoesNotFit, match="but pool_0 is deallocated"):
        select_vms(fleet, scenario, RunOptions(("pool_0", "pool_1")))


def test_an_unknown_vm_or_group_is_an_error() -> None:
    with pytest.raises(UnknownVM, match="Did you mean 'web-0'"):
        select(Needs(), vms=("wep-0",))
    with pytest.raises(UnknownResource, match="Did you mean 'pool'"):
        select(Needs(), group="pol")
    with pytest.raises(BadOption, match="Use one of them"):
        select(Needs(), vms=("db",), group="web")
