"""The scenario file: TOML in, a Scenario out, or an error with the line and the key that are wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.core import faults
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.events import EventStatus, Source
from forewarn.core.faults import FaultOrder
from forewarn.core.fleet import GroupKind
from forewarn.core.operations import OVERRIDES
from forewarn.core.scenarios import ACTS, After, Expectation, Needs, Options, Scenario, Step, Until
from forewarn.errors import BadFleet, BadOption, BadScenario, Invalid, nearest
from forewarn.files.fleet_file import parse_fleet
from forewarn.files.toml_reader import Entry, TomlFile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta


FILE_KEYS = ("title", "about", "source", "fleet", "needs", "step")
NEEDS_KEYS = ("vms", "group", "priority", "update_domains", "terminate_notice")
KINDS_OF_STEP = ("do", "until", "wait", "fault")
OPTION_KEYS = ("vms", "type", "duration", "notice", "overrides", "budget", "pause", "by")
STEP_KEYS = ("title", *KINDS_OF_STEP, "expect", "within", *OPTION_KEYS)
EXPECT_KEYS = (
    *("type", "status", "source", "description", "duration", "notice", "vms"),
    *("told", "vm", "domains_at_once"),
)
FAULT_KEYS = ("kind", "on", "count", "for", "delay")
_FAULT_KEY_OF = {"method": "on", "duration": "for"}
"""Keys that are named otherwise than the fields of a fault."""

_EXPECT_LIKE = '{ type = "Reboot", status = "Scheduled" }'
_FAULT_LIKE = '{ kind = "500", count = 3 }'
_MOST_STEPS = 1000
_MOST_VMS = 1000
_MOST_DOMAINS = 100
_LONGEST_DURATION = 3600
_NO_DURATION = -2
_STATUSES = (EventStatus.SCHEDULED.value, EventStatus.STARTED.value)


def parse_scenario(text: str, name: str, source: str) -> Scenario:
    """The scenario that a file tells. `source` is what messages call the file."""
    file = TomlFile(text, source, BadScenario)
    document = file.load()
    whole = Entry(file, "", None, document)
    whole.refuse_unknown(FILE_KEYS)
    rows = document.get("step", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise whole.wrong("Must be written [[step]], in two pairs of brackets, once for each step.", "step")
    if not rows:
        raise whole.wrong('A scenario needs at least one [[step]], like do = "restart".', "step")
    if len(rows) > _MOST_STEPS:
        raise whole.wrong(f"{len(rows)} steps are too many: at most {_MOST_STEPS}.", "step")
    needs = _read_needs(whole.inner("needs", "[needs]"))
    steps = [_read_step(Entry(file, "step", index, row), needs) for index, row in enumerate(rows)]
    _refuse_early(file, rows, steps)
    return Scenario(
        name=name,
        title=_shown(whole, "title", whole.required_text("title", 'Write it like title = "A user restarts the VM".')),
        description=_shown(whole, "about", whole.text("about")),
        source=_shown(whole, "source", whole.text("source")),
        needs=needs,
        fleet=_fleet(whole),
        steps=tuple(steps),
    )


def _shown(entry: Entry, key: str, text: str) -> str:
    """A text that is shown on terminals: codes in it would be theirs to obey."""
    if not text.replace("\n", "").isprintable():
        raise entry.wrong("Has characters that cannot be shown. Write plain text.", key)
    return text


def _fleet(whole: Entry) -> str:
    """The text of the fleet, which must itself be right."""
    text = whole.text("fleet")
    if text:
        try:
            parse_fleet(text, "")
        except BadFleet as error:
            problem = f"line {error.fields['line']} of it: {error.fields['key']}: {error.fields['problem']}"
            raise whole.wrong(problem, "fleet") from None
    return text


def _read_needs(entry: Entry) -> Needs:
    entry.refuse_unknown(NEEDS_KEYS)
    return Needs(
        vms=entry.whole_number("vms", 1, 1, _MOST_VMS),
        group=_word(entry, "group", GroupKind) or "",
        priority=_word(entry, "priority", ("regular", "spot")) or "",
        update_domains=entry.whole_number("update_domains", 0, 1, _MOST_DOMAINS),
        terminate_notice=bool(entry.flag("terminate_notice")),
    )


def _word(entry: Entry, key: str, words: Iterable[str]) -> str | None:
    """One of some words, or None where it is not said."""
    return entry.word(key, [str(word) for word in words], "") if key in entry else None


def _read_step(entry: Entry, needs: Needs) -> Step:
    entry.refuse_unknown(STEP_KEYS)
    kinds = [key for key in KINDS_OF_STEP if key in entry]
    if len(kinds) > 1:
        raise entry.wrong(f"A step is one of {', '.join(KINDS_OF_STEP)}, and this has {kinds[0]} too.", kinds[1])
    if not kinds and "expect" not in entry:
        raise entry.wrong(f"Has nothing to do. Write one of {', '.join(KINDS_OF_STEP)}, or expect.", "do")
    kind = kinds[0] if kinds else ""
    do = _word(entry, "do", ACTS) or ""
    until = _word(entry, "until", Until)
    return Step(
        do=do,
        options=_read_options(entry, do, needs),
        until=Until(until) if until else None,
        within=_read_within(entry, kind),
        wait=_positive(entry, "wait"),
        fault=_read_fault(entry.inner("fault", _FAULT_LIKE)) if kind == "fault" else None,
        expect=_read_expectation(entry.inner("expect", _EXPECT_LIKE)) if "expect" in entry else None,
        title=_shown(entry, "title", entry.text("title")),
    )


def _read_within(entry: Entry, kind: str) -> timedelta:
    if "within" in entry and kind != "until":
        raise entry.wrong("Goes with until alone. Leave it out, or write until.", "within")
    if kind == "until" and "within" not in entry:
        raise entry.wrong('Is missing. Say how long it may take, like within = "15m".', "within")
    return _positive(entry, "within") or Step().within


def _positive(entry: Entry, key: str) -> timedelta | None:
    length = entry.length(key)
    if length is not None and not length:
        raise entry.wrong("Must be longer than nothing, like 15m.", key)
    return length


def _read_options(entry: Entry, do: str, needs: Needs) -> Options:
    allowed = ("vms", *ACTS[do]) if do else ()
    for key in OPTION_KEYS:
        if key in entry and key not in allowed:
            takes = f"do = {do!r} takes {', '.join(allowed)}." if do else "It goes with do alone."
            raise entry.wrong(f"Does not fit here. {takes}", key)
    if do == "postpone" and "by" not in entry:
        raise entry.wrong('Is missing. Say by how much, like by = "30m".', "by")
    types = {name.lower(): name for name in EVENT_TYPES}
    asked = entry.text("type")
    if asked and asked.lower() not in types:
        raise entry.wrong(f"{asked!r} is not one of {', '.join(EVENT_TYPES)}.{nearest(asked, EVENT_TYPES)}", "type")
    return Options(
        vms=_read_places(entry, needs),
        type=types.get(asked.lower(), ""),
        duration=entry.length("duration"),
        notice=entry.length("notice"),
        overrides=entry.words("overrides", OVERRIDES),
        budget=entry.whole_number("budget", 1, 1, 1000) if "budget" in entry else None,
        pause=entry.length("pause"),
        by=_positive(entry, "by"),
    )


def _read_places(entry: Entry, needs: Needs) -> tuple[int, ...]:
    """Which of the run's VMs: they are counted from 1."""
    places = entry.whole_numbers("vms", 1, needs.vms, f": the scenario needs {needs.vms}")
    if "vms" in entry and not places:
        raise entry.wrong("Name at least one, like [1], or leave it out for all.", "vms")
    return tuple(dict.fromkeys(places))


def _read_fault(entry: Entry) -> FaultOrder:
    entry.refuse_unknown(FAULT_KEYS)
    kind = entry.required_text("kind", f"Write one of {', '.join(faults.FAULTS)}.")
    order = FaultOrder(
        kind,
        method=entry.text("on", faults.GET),
        count=entry.whole_number("count", 1, 1, faults.MAX_HITS) if "count" in entry else None,
        duration=entry.length("for"),
        delay=entry.length("delay"),
    )
    try:
        return faults.fill_in(order)
    except BadOption as error:
        field = str(error.fields["name"])
        key = _FAULT_KEY_OF.get(field, field)
        raise entry.wrong(f"{key} {error.fields['value']!r} does not fit: {error.fields['problem']}", key) from None
    except Invalid as error:
        raise entry.wrong(str(error), "kind") from None


def _read_expectation(entry: Entry) -> Expectation:
    entry.refuse_unknown(EXPECT_KEYS)
    duration = entry.whole_number("duration", _NO_DURATION, -1, _LONGEST_DURATION)
    after = _word(entry, "vm", After)
    expectation = Expectation(
        type=_word(entry, "type", EVENT_TYPES),
        status=_word(entry, "status", _STATUSES),
        source=_word(entry, "source", Source),
        description=entry.text("description") if "description" in entry else None,
        duration=None if duration == _NO_DURATION else duration,
        notice=entry.length("notice"),
        vms=entry.whole_number("vms", 1, 1, _MOST_VMS) if "vms" in entry else None,
        told=entry.flag("told"),
        vm=After(after) if after else None,
        domains_at_once=entry.whole_number("domains_at_once", 1, 1, _MOST_DOMAINS)
        if "domains_at_once" in entry
        else None,
    )
    if expectation == Expectation():
        raise entry.wrong(f"Expects nothing. Write one of {', '.join(EXPECT_KEYS)}.")
    if expectation.told is False and expectation.about_event:
        raise entry.wrong("What is not told has no type, status or notice. Leave those out.", "told")
    if expectation.notice is not None and expectation.status == EventStatus.STARTED:
        raise entry.wrong('Once Started there is no NotBefore. Look at the notice with status = "Scheduled".', "notice")
    return expectation


def _refuse_early(file: TomlFile, rows: list[dict[str, object]], steps: list[Step]) -> None:
    """Before anything is done there is nothing to wait for, to answer, or to be told."""
    for index, step in enumerate(steps):
        if step.do and step.do not in ("approve", "cancel", "postpone", "return-host"):
            return
        told = step.expect is not None and (step.expect.about_event or step.expect.domains_at_once is not None)
        if step.until is not None or step.do or told:
            key = "until" if step.until is not None else "do" if step.do else "expect"
            problem = 'Nothing has been done before it. Write a step like do = "restart" first.'
            raise Entry(file, "step", index, rows[index]).wrong(problem, key)
