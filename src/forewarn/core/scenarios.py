"""Scenarios: steps with expectations, runs, and the selection of VMs for a run."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import format_duration
from forewarn.core.operations import CAUSES
from forewarn.core.requests import has_terminate_notice
from forewarn.errors import BadOption, ScenarioDoesNotFit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from forewarn.core.faults import FaultSpec
    from forewarn.core.fleet import Fleet


ROLLOUT, APPROVE, CANCEL, POSTPONE, RETURN_HOST = "rollout", "approve", "cancel", "postpone", "return-host"

_OF_CAUSES = ("type", "duration", "notice", "overrides")
ACTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CAUSES, _OF_CAUSES),
    ROLLOUT: (*_OF_CAUSES, "budget", "pause"),
    APPROVE: (),
    CANCEL: (),
    POSTPONE: ("by",),
    RETURN_HOST: (),
}
"""Actions of a step, each with its options besides `vms`."""

EVENT_ACTIONS = (APPROVE, CANCEL, POSTPONE)
"""Actions on existing events. They are skipped once the events have started."""


class WaitCondition(StrEnum):
    """Conditions that a step can wait for."""

    STARTED = "Started"
    GONE = "gone"


class ExpectedVMState(StrEnum):
    """Expected states of a VM."""

    RUNNING = "running"
    MOVED = "moved"
    DEALLOCATED = "deallocated"
    DELETED = "deleted"


class Needs(NamedTuple):
    """Requirements for the VMs of a run."""

    vms: int = 1
    """Minimum number of VMs."""
    group: str = ""
    """The kind of their common group; empty: any groups."""
    priority: str = ""
    update_domains: int = 0
    """The number of update domains of their common group; 0: any."""
    terminate_notice: bool = False
    """Whether their group needs a terminate notice."""

    @property
    def one_group(self) -> bool:
        return bool(self.group or self.update_domains)

    def text(self) -> str:
        spot = " Spot" if self.priority == "spot" else ""
        words = f"{self.vms}{spot} VM{'s' if self.vms > 1 else ''}"
        if self.one_group:
            words += f" in one {self.group or 'group'}"
        if self.update_domains:
            words += f" in {self.update_domains} update domains"
        return words + (" with a terminate notice" if self.terminate_notice else "")


class StepOptions(NamedTuple):
    """Options of an action. Unset options use the defaults of the cause."""

    vms: tuple[int, ...] = ()
    """The affected VMs of the run, counted from 1; none: all."""
    type: str = ""
    duration: timedelta | None = None
    notice: timedelta | None = None
    overrides: tuple[str, ...] = ()
    budget: int | None = None
    pause: timedelta | None = None
    by: timedelta | None = None


class Expectation(NamedTuple):
    """Expected event and state of each VM of a step. Unset fields are not checked."""

    type: str | None = None
    status: str | None = None
    source: str | None = None
    description: str | None = None
    duration: int | None = None
    notice: timedelta | None = None
    """Minimum notice."""
    vms: int | None = None
    """Number of VMs in the event."""
    told: bool | None = None
    """Whether the document contains an event."""
    vm: ExpectedVMState | None = None
    domains_at_once: int | None = None
    """Maximum number of update domains of a group that were down at the same time."""

    @property
    def about_event(self) -> bool:
        """Whether it expects something of the document."""
        return any(value is not None for value in self[:7])


class ScenarioStep(NamedTuple):
    """One action or wait, with the expected result."""

    do: str = ""
    options: StepOptions = StepOptions()
    until: WaitCondition | None = None
    within: timedelta = timedelta(0)
    wait: timedelta | None = None
    fault: FaultSpec | None = None
    expect: Expectation | None = None
    title: str = ""

    def in_words(self) -> str:
        """The title, or a description of the step."""
        if self.title:
            return self.title
        if self.do:
            return self.do
        if self.until is not None:
            return f"until {self.until}, within {format_duration(self.within)}"
        if self.wait is not None:
            return f"wait {format_duration(self.wait)}"
        if self.fault is not None:
            return f"fault {self.fault.kind}"
        return "look"


class Scenario(NamedTuple):
    """A scenario: a sequence of steps."""

    name: str
    title: str
    description: str
    source: str
    """Source of its timings."""
    needs: Needs
    fleet: str
    """Text of a fleet file for the scenario; empty: none."""
    steps: tuple[ScenarioStep, ...]

    @property
    def max_duration(self) -> timedelta:
        """The maximum duration of a run that passes."""
        return sum((step.within + (step.wait or timedelta(0)) for step in self.steps), timedelta(0))


# --- Runs -----------------------------------------------------------------------------------------


class RunStatus(StrEnum):
    """The status of a run."""

    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    STOPPED = "stopped"


class StepStatus(StrEnum):
    """The status of a step."""

    WAITING = "waiting"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """The application approved early, so the step came too late; or the run ended before it."""


class RunOptions(NamedTuple):
    """Which VMs a run uses, and how it runs."""

    vms: tuple[str, ...] = ()
    """None: selected automatically, if only one choice is possible."""
    group: str = ""
    speed: float | None = None
    """None: as fast as possible with a virtual clock, real time with the system clock."""
    enable: bool = False
    """Whether to enable groups that are not enabled."""
    seen_by: tuple[str, ...] = ()
    """VMs that must have seen each change before the virtual clock moves."""


class StepResult(NamedTuple):
    """A step of a run."""

    title: str
    status: StepStatus = StepStatus.WAITING
    started_at: datetime | None = None
    """When it started, by the service's clock."""
    ended_at: datetime | None = None
    error: str = ""
    """Expected and actual result; or why it was skipped."""


class Run(NamedTuple):
    """Snapshot of a run."""

    id: str
    scenario: Scenario
    vms: tuple[str, ...]
    speed: float | None
    started_by: str
    started_at: datetime
    steps: tuple[StepResult, ...]
    status: RunStatus = RunStatus.RUNNING
    ended_at: datetime | None = None
    operations: tuple[str, ...] = ()
    """The ids of the operations and rollouts that it started."""

    def with_step(self, index: int, step: StepResult) -> Run:
        return self._replace(steps=(*self.steps[:index], step, *self.steps[index + 1 :]))


# --- Which VMs a run uses -------------------------------------------------------------------------


_MOST_NAMED = 5


def select_vms(fleet: Fleet, scenario: Scenario, asked: RunOptions) -> tuple[str, ...]:
    """Select the VMs of a run. The error says what the scenario needs."""
    needs = scenario.needs
    if asked.vms and asked.group:
        raise BadOption(name="group", value=asked.group, problem="it cannot be combined with VMs. Use one of them.")
    if asked.vms:
        names = tuple(dict.fromkeys(fleet.vm(name).name for name in asked.vms))
        if problem := _problem(fleet, needs, names):
            raise ScenarioDoesNotFit(problem=_needed(scenario, problem), name=scenario.name)
        return names
    if asked.group:
        group = fleet.known_group(asked.group).name
        names = _from(fleet, needs, group)
        if problem := _problem(fleet, needs, names or fleet.members(group)):
            raise ScenarioDoesNotFit(problem=_needed(scenario, f"in {group}, {problem}"), name=scenario.name)
        return names
    return _only(fleet, scenario)


def _only(fleet: Fleet, scenario: Scenario) -> tuple[str, ...]:
    """Select VMs automatically, if only one choice is possible."""
    needs = scenario.needs
    groups = dict.fromkeys(vm.group for vm in fleet.vms.values())
    fitting = [group for group in groups if not _problem(fleet, needs, _from(fleet, needs, group))]
    if not fitting:
        raise ScenarioDoesNotFit(problem=_needed(scenario, "the fleet has no such VMs"), name=scenario.name)
    able = [name for name in fleet.members(fitting[0]) if _fits(fleet, needs, name)]
    chosen = _from(fleet, needs, fitting[0])
    if len(fitting) == 1 and len(able) == len(chosen):
        return chosen
    option = f"--group: {_listed(fitting)}"
    if needs.vms == 1 and not needs.update_domains:
        fit = [name for group in fitting for name in fleet.members(group) if _fits(fleet, needs, name)]
        option = f"--vm: {_listed(fit)}"
    raise ScenarioDoesNotFit(
        problem=_needed(scenario, f"the fleet has more than one choice. Choose with {option}"), name=scenario.name
    )


def _from(fleet: Fleet, needs: Needs, group: str) -> tuple[str, ...]:
    """Select VMs of a group: as many as needed, or all if update domains matter."""
    able = tuple(name for name in fleet.members(group) if _fits(fleet, needs, name))
    return able if needs.update_domains else able[: needs.vms]


def _fits(fleet: Fleet, needs: Needs, name: str) -> bool:
    return not _problem_of_one(fleet, needs, name)


def _problem(fleet: Fleet, needs: Needs, names: Sequence[str]) -> str:
    """Return why these VMs do not meet the requirements, or an empty string."""
    for name in names:
        if problem := _problem_of_one(fleet, needs, name):
            return problem
    if len(names) < needs.vms:
        return f"only {len(names)} {'matches' if len(names) == 1 else 'match'}" if names else "no VM matches"
    groups = dict.fromkeys(fleet.vm(name).group for name in names)
    if needs.one_group and len(groups) > 1:
        return f"these VMs are in {len(groups)} groups: {_listed(groups)}"
    domains = {fleet.vm(name).update_domain for name in names}
    if needs.update_domains and len(domains) != needs.update_domains:
        return f"these VMs are in {len(domains)}"
    return ""


def _problem_of_one(fleet: Fleet, needs: Needs, name: str) -> str:
    vm = fleet.vm(name)
    group = fleet.group(vm.group)
    if vm.deallocated:
        return f"{name} is deallocated"
    if needs.priority and vm.priority != needs.priority:
        return f"{name} is {vm.priority}"
    if needs.group and group.kind != needs.group:
        return f"{name} is in a {group.kind}"
    if needs.terminate_notice and not has_terminate_notice(group):
        return f"{vm.group} has no terminate notice"
    return ""


def _needed(scenario: Scenario, problem: str) -> str:
    return f"{scenario.name} needs {scenario.needs.text()}, but {problem}."


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return ", ".join(found[:_MOST_NAMED]) + more
