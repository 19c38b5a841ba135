"""Whether what came is what was expected; pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.core.durations import format_duration
from forewarn.core.events import Status
from forewarn.core.scenarios import After

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forewarn.core.fleet import VM
    from forewarn.core.scenarios import Expectation
    from forewarn.play.record import Telling

_FORMS = (Status.STARTED.value, Status.SCHEDULED.value)


def judge_telling(
    expected: Expectation, vm: str, events: Sequence[dict[str, Telling]], quicken: Callable[[timedelta], timedelta]
) -> str:
    """What is wrong with what a VM was told; empty: nothing. One event that fits is enough."""
    problems = [_judge_event(expected, forms, quicken) for forms in events]
    if not problems:
        return f"{vm}: expected {_wanted(expected)}, and nothing was told"
    return "" if "" in problems else f"{vm}: {problems[-1]}"


def _judge_event(expected: Expectation, forms: dict[str, Telling], quicken: Callable[[timedelta], timedelta]) -> str:
    newest = next(forms[form] for form in _FORMS if form in forms)
    telling = forms.get(expected.status) if expected.status else newest
    if telling is None:
        return f"expected status {expected.status}, and it came as {newest.told.status}"
    told = telling.told
    for what, wanted, came in (
        ("type", expected.type, told.type),
        ("source", expected.source, told.source),
        ("description", expected.description, told.description),
        ("duration", expected.duration, told.duration_seconds),
        ("vms", expected.vms, len(told.resources)),
    ):
        if wanted is not None and wanted != came:
            return f"expected {what} {wanted!r}, and it is {came!r}"
    if expected.notice is not None:
        scheduled = forms.get(Status.SCHEDULED.value)
        notice = scheduled.notice if scheduled is not None and scheduled.notice is not None else timedelta(0)
        least = quicken(expected.notice)
        if notice < least:
            return f"expected a notice of at least {format_duration(least)}, and it is {format_duration(notice)}"
    return ""


def _wanted(expected: Expectation) -> str:
    """An event in words."""
    words = [word for word in (expected.type, expected.status) if word]
    return " ".join(["an event", *words]) if not words else " ".join(words)


def judge_vm(expected: After, name: str, vm: VM | None, home: str) -> str:
    """What is wrong with what became of a VM; `home` is the host on which it was before."""
    if vm is None:
        came = After.DELETED.value
    elif vm.deallocated:
        came = After.DEALLOCATED.value
    else:
        came = After.MOVED.value if vm.host != home else After.RUNNING.value
    fits = expected == came or (expected is After.RUNNING and came == After.MOVED)
    where = f" on {vm.host}" if vm is not None and not vm.deallocated else ""
    return "" if fits else f"{name}: expected to be {expected.value}, and it is {_still(came)}{where}"


def _still(came: str) -> str:
    return "still running" if came == After.RUNNING else came
