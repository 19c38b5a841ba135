"""Which VMs play a scenario: those that are named, or those that fit where it is clear which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.core.requests import tells_of_deletion
from forewarn.errors import BadOption, DoesNotFit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forewarn.core.fleet import Fleet
    from forewarn.core.scenario import Needs, Scenario
    from forewarn.core.scenario_run import Casting

_MOST_NAMED = 5


def cast(fleet: Fleet, scenario: Scenario, asked: Casting) -> tuple[str, ...]:
    """The VMs of a run, or an error that says what is needed."""
    needs = scenario.needs
    if asked.vms and asked.group:
        raise BadOption(name="group", value=asked.group, problem="VMs are named already. Give one of the two.")
    if asked.vms:
        names = tuple(dict.fromkeys(fleet.vm(name).name for name in asked.vms))
        if problem := _problem(fleet, needs, names):
            raise DoesNotFit(problem=_needed(scenario, problem), name=scenario.name)
        return names
    if asked.group:
        group = fleet.known_group(asked.group).name
        names = _from(fleet, needs, group)
        if problem := _problem(fleet, needs, names or fleet.members(group)):
            raise DoesNotFit(problem=_needed(scenario, f"in {group} {problem}"), name=scenario.name)
        return names
    return _only(fleet, scenario)


def _only(fleet: Fleet, scenario: Scenario) -> tuple[str, ...]:
    """Where nobody is named: those that fit, if there are no others that would."""
    needs = scenario.needs
    groups = dict.fromkeys(vm.group for vm in fleet.vms.values())
    fitting = [group for group in groups if not _problem(fleet, needs, _from(fleet, needs, group))]
    if not fitting:
        raise DoesNotFit(problem=_needed(scenario, "the fleet has none that fit"), name=scenario.name)
    able = [name for name in fleet.members(fitting[0]) if _fits(fleet, needs, name)]
    chosen = _from(fleet, needs, fitting[0])
    if len(fitting) == 1 and len(able) == len(chosen):
        return chosen
    option = f"--group: {_listed(fitting)}"
    if needs.vms == 1 and not needs.update_domains:
        fit = [name for group in fitting for name in fleet.members(group) if _fits(fleet, needs, name)]
        option = f"--vm: {_listed(fit)}"
    raise DoesNotFit(
        problem=_needed(scenario, f"several in the fleet would do. Choose with {option}"), name=scenario.name
    )


def _from(fleet: Fleet, needs: Needs, group: str) -> tuple[str, ...]:
    """The VMs of a group that are taken: as many as are needed, or all where its domains matter."""
    able = tuple(name for name in fleet.members(group) if _fits(fleet, needs, name))
    return able if needs.update_domains else able[: needs.vms]


def _fits(fleet: Fleet, needs: Needs, name: str) -> bool:
    return not _problem_of_one(fleet, needs, name)


def _problem(fleet: Fleet, needs: Needs, names: Sequence[str]) -> str:
    """Why these VMs cannot play it; empty: they can."""
    for name in names:
        if problem := _problem_of_one(fleet, needs, name):
            return problem
    if len(names) < needs.vms:
        return f"only {len(names)} fit" if names else "none fits"
    groups = dict.fromkeys(fleet.vm(name).group for name in names)
    if needs.one_group and len(groups) > 1:
        return f"they are of {len(groups)} groups: {_listed(groups)}"
    domains = {fleet.vm(name).update_domain for name in names}
    if needs.update_domains and len(domains) != needs.update_domains:
        return f"they are in {len(domains)}"
    return ""


def _problem_of_one(fleet: Fleet, needs: Needs, name: str) -> str:
    vm = fleet.vm(name)
    group = fleet.group(vm.group)
    if vm.deallocated:
        return f"{name} is deallocated"
    if needs.priority and vm.priority != needs.priority:
        return f"{name} is {vm.priority}"
    if needs.group and group.kind != needs.group:
        return f"{name} is of a {group.kind}"
    if needs.terminate_notice and not tells_of_deletion(group):
        return f"{vm.group} has no terminate notices"
    return ""


def _needed(scenario: Scenario, problem: str) -> str:
    return f"{scenario.name} needs {scenario.needs.in_words()}, and {problem}."


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return ", ".join(found[:_MOST_NAMED]) + more
