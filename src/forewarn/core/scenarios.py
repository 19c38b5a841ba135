"""Scenarios: steps with expectations, runs, and the selection of VMs for a run."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import format_duration
from forewarn.core.events import Source
from forewarn.core.fleet import GroupKind
from forewarn.core.operations import CAUSES
from forewarn.core.requests import has_terminate_notice, minimum_notice
from forewarn.core.waits import first_names
from forewarn.errors import BadOption, ScenarioDoesNotFit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from forewarn.core.faults import FaultSpec
    from forewarn.core.fleet import Fleet


ROLLOUT, APPROVE, CANCEL, POSTPONE, RETURN_HOST = "rollout", "approve", "cancel", "postpone", "return-host"

_CAUSE_OPTIONS = ("type", "duration", "notice", "overrides")
_PLATFORM_OPTIONS = (*_CAUSE_OPTIONS, "description")
ACTIONS: dict[str, tuple[str, ...]] = {
    **{name: _CAUSE_OPTIONS if cause.source is Source.USER else _PLATFORM_OPTIONS for name, cause in CAUSES.items()},
    ROLLOUT: (*_PLATFORM_OPTIONS, "max_unavailable", "pause"),
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
    EVICTED = "evicted"
    """Deallocated or deleted, depending on its eviction policy."""


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
    """The affected VMs of the run, counted from 1; empty: all."""
    type: str = ""
    duration: timedelta | None = None
    notice: timedelta | None = None
    overrides: tuple[str, ...] = ()
    max_unavailable: int | None = None
    pause: timedelta | None = None
    by: timedelta | None = None
    description: str | None = None


class Expectation(NamedTuple):
    """Expected event and state of each VM of a step. Only fields that are set are checked."""

    type: str | None = None
    status: str | None = None
    source: str | None = None
    description: str | None = None
    duration: int | None = None
    notice: timedelta | None = None
    """Minimum notice."""
    vms: int | None = None
    """Number of VMs in the event."""
    notified: bool | None = None
    """Whether the document contains an event of the run."""
    vm: ExpectedVMState | None = None
    domains_at_once: int | None = None
    """Maximum number of update domains of a group with Started events at the same time."""

    @property
    def about_event(self) -> bool:
        """Whether it checks the fields of an event."""
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

    def describe(self) -> str:
        """Return the title, or a description of the step."""
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
        return "check"


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

    @property
    def notices(self) -> dict[str, timedelta]:
        """The shortest notice of each event type that it causes."""
        found: dict[str, timedelta] = {}
        for step in self.steps:
            cause = CAUSES.get("host-update" if step.do == ROLLOUT else step.do)
            if cause is None or not cause.types:
                continue
            event_type = step.options.type or cause.types[0]
            notice = step.options.notice if step.options.notice is not None else cause.notice
            notice = minimum_notice(event_type) if notice is None else notice
            found[event_type] = min(found.get(event_type, notice), notice)
        return found


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
    """Empty: selected automatically, if only one choice is possible."""
    group: str = ""
    speed: float | None = None
    """None: as fast as possible with a virtual clock, real time with the system clock."""
    enable: bool = False
    """Enable groups that have not polled yet."""
    seen_by: tuple[str, ...] = ()
    """VMs that poll on their own. The virtual clock waits for them after each step."""


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


def select_vms(fleet: Fleet, scenario: Scenario, options: RunOptions) -> tuple[str, ...]:
    """Select the VMs of a run. The error says what the scenario needs."""
    needs = scenario.needs
    if options.vms and options.group:
        raise BadOption(name="group", value=options.group, problem="it cannot be combined with VMs. Use one of them.")
    if options.vms:
        names = tuple(dict.fromkeys(fleet.vm(name).name for name in options.vms))
        if problem := _problem(fleet, needs, names):
            raise _mismatch(scenario, problem)
        return names
    if options.group:
        group = fleet.known_group(options.group).name
        names = _select_from(fleet, needs, group)
        if problem := _problem(fleet, needs, names or fleet.members(group)):
            raise _mismatch(scenario, f"in {group}, {problem}")
        return names
    return _only_choice(fleet, scenario)


def _only_choice(fleet: Fleet, scenario: Scenario) -> tuple[str, ...]:
    """Select VMs automatically, if only one choice is possible. The VMs of a scale set are interchangeable."""
    needs = scenario.needs
    groups = dict.fromkeys(vm.group for vm in fleet.vms.values())
    groups_that_fit = [group for group in groups if not _problem(fleet, needs, _select_from(fleet, needs, group))]
    if not groups_that_fit:
        raise _mismatch(scenario, "the fleet has no such VMs")
    suitable = [name for name in fleet.members(groups_that_fit[0]) if _fits(fleet, needs, name)]
    chosen = _select_from(fleet, needs, groups_that_fit[0])
    if len(groups_that_fit) == 1 and (needs.group == GroupKind.SCALE_SET or len(suitable) == len(chosen)):
        return chosen
    option = f"--group: {first_names(groups_that_fit)}"
    if needs.vms == 1 and not needs.update_domains:
        fit = [name for group in groups_that_fit for name in fleet.members(group) if _fits(fleet, needs, name)]
        option = f"--vm: {first_names(fit)}"
    raise _mismatch(scenario, f"the fleet has more than one choice. Choose with {option}")


def _select_from(fleet: Fleet, needs: Needs, group: str) -> tuple[str, ...]:
    """Select VMs of a group: as many as needed, or all if update domains matter."""
    suitable = tuple(name for name in fleet.members(group) if _fits(fleet, needs, name))
    return suitable if needs.update_domains else suitable[: needs.vms]


def _fits(fleet: Fleet, needs: Needs, name: str) -> bool:
    return not _vm_problem(fleet, needs, name)


def _problem(fleet: Fleet, needs: Needs, names: Sequence[str]) -> str:
    """Return why these VMs do not meet the requirements, or an empty string."""
    for name in names:
        if problem := _vm_problem(fleet, needs, name):
            return problem
    if len(names) < needs.vms:
        return f"only {len(names)} {'matches' if len(names) == 1 else 'match'}" if names else "no VM matches"
    groups = dict.fromkeys(fleet.vm(name).group for name in names)
    if needs.one_group and len(groups) > 1:
        return f"these VMs are in {len(groups)} groups: {first_names(list(groups))}"
    domains = {fleet.vm(name).update_domain for name in names}
    if needs.update_domains and len(domains) != needs.update_domains:
        return f"these VMs are in {len(domains)}"
    return ""


def _vm_problem(fleet: Fleet, needs: Needs, name: str) -> str:
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


def _mismatch(scenario: Scenario, problem: str) -> ScenarioDoesNotFit:
    name = quote(scenario.name)
    hint = (
        " To run the scenario with its own fleet, stop the service and run these commands: "
        f"forewarn scenario show {name} --fleet > fleet.toml, then "
        "forewarn up --fleet fleet.toml --data :memory: --clock virtual, then, in another terminal, "
        f"forewarn scenario run {name} --enable"
    )
    return ScenarioDoesNotFit(
        problem=f"{scenario.name} needs {scenario.needs.text()}, but {problem}.", hint=hint if scenario.fleet else ""
    )
