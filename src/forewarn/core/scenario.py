"""Scenarios: a course of events to rehearse, as steps, each with what is expected of it."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.causes import CAUSES
from forewarn.core.durations import format_duration

if TYPE_CHECKING:
    from forewarn.core.faults import FaultOrder

ROLLOUT, APPROVE, CANCEL, POSTPONE, RETURN_HOST = "rollout", "approve", "cancel", "postpone", "return-host"

_OF_CAUSES = ("type", "duration", "notice", "overrides")
ACTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CAUSES, _OF_CAUSES),
    ROLLOUT: (*_OF_CAUSES, "budget", "pause"),
    APPROVE: (),
    CANCEL: (),
    POSTPONE: ("by",),
    RETURN_HOST: (),
}
"""What a step can `do`, each with the options that it takes besides `vms`."""

ANSWERS = (APPROVE, CANCEL, POSTPONE)
"""What is said to events that are there already; once they have started it is too late for it."""


class Until(StrEnum):
    """What a step can wait for."""

    STARTED = "Started"
    GONE = "gone"


class After(StrEnum):
    """What can be true of a VM afterwards."""

    RUNNING = "running"
    MOVED = "moved"
    DEALLOCATED = "deallocated"
    DELETED = "deleted"


class Needs(NamedTuple):
    """What the VMs of a run must be."""

    vms: int = 1
    """How many, at least."""
    group: str = ""
    """The kind of their one group; empty: any, and they may be of several."""
    priority: str = ""
    update_domains: int = 0
    """In how many update domains of their one group they are; 0: any."""
    terminate_notice: bool = False
    """Whether their group is told of deletions."""

    @property
    def one_group(self) -> bool:
        return bool(self.group or self.update_domains)

    def in_words(self) -> str:
        spot = " Spot" if self.priority == "spot" else ""
        words = f"{self.vms}{spot} VM{'s' if self.vms > 1 else ''}"
        if self.one_group:
            words += f" of one {self.group or 'group'}"
        if self.update_domains:
            words += f" in {self.update_domains} update domains"
        return words + (" with terminate notices" if self.terminate_notice else "")


class Options(NamedTuple):
    """How something is done; what is not said is left to the cause."""

    vms: tuple[int, ...] = ()
    """To which of the run's VMs, counted from 1; none: to all."""
    type: str = ""
    duration: timedelta | None = None
    notice: timedelta | None = None
    overrides: tuple[str, ...] = ()
    budget: int | None = None
    pause: timedelta | None = None
    by: timedelta | None = None


class Expectation(NamedTuple):
    """What each of the step's VMs must be told, and what must be true of it. What is not said is not looked at."""

    type: str | None = None
    status: str | None = None
    source: str | None = None
    description: str | None = None
    duration: int | None = None
    notice: timedelta | None = None
    """At least so long beforehand."""
    vms: int | None = None
    """How many VMs the event names."""
    told: bool | None = None
    """Whether anything of it is in the document."""
    vm: After | None = None
    domains_at_once: int | None = None
    """How many update domains of a group were out at one time, at most."""

    @property
    def about_event(self) -> bool:
        """Whether it is about what stands in a document."""
        return any(value is not None for value in self[:7])


class Step(NamedTuple):
    """One thing that is done or waited for, and what is expected then."""

    do: str = ""
    options: Options = Options()
    until: Until | None = None
    within: timedelta = timedelta(0)
    wait: timedelta | None = None
    fault: FaultOrder | None = None
    expect: Expectation | None = None
    title: str = ""

    def in_words(self) -> str:
        """What it is, where it has no title of its own."""
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
    """A whole course of events."""

    name: str
    title: str
    about: str
    source: str
    """Where its timings come from."""
    needs: Needs
    fleet: str
    """The text of a fleet file with which it can be played from nothing; empty: none is given."""
    steps: tuple[Step, ...]

    @property
    def longest(self) -> timedelta:
        """How long it takes at most, if it passes."""
        return sum((step.within + (step.wait or timedelta(0)) for step in self.steps), timedelta(0))
