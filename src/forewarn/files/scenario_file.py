"""Parse a scenario file. The error lists all mistakes, each with its line and key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.core import faults
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.events import EventStatus, Source
from forewarn.core.faults import FaultSpec
from forewarn.core.fleet import GroupKind
from forewarn.core.operations import CAUSES, OVERRIDES, UNKNOWN, UNKNOWN_DURATION
from forewarn.core.requests import description_problem
from forewarn.core.scenarios import (
    ACTIONS,
    Expectation,
    ExpectedVMState,
    Needs,
    Scenario,
    ScenarioStep,
    StepOptions,
    WaitCondition,
)
from forewarn.errors import BadFleet, BadOption, BadScenario, Invalid, nearest, shown
from forewarn.files.fleet_file import parse_fleet
from forewarn.files.toml_reader import TomlFile, TomlTable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta


FILE_KEYS = ("title", "description", "source", "fleet", "needs", "step")
NEEDS_KEYS = ("vms", "group", "priority", "update_domains", "terminate_notice")
KINDS_OF_STEP = ("do", "until", "wait", "fault")
OPTION_KEYS = ("vms", "type", "duration", "notice", "overrides", "description", "max_unavailable", "pause", "by")
STEP_KEYS = ("title", *KINDS_OF_STEP, "expect", "within", *OPTION_KEYS)
EXPECT_KEYS = (
    *("type", "status", "source", "description", "duration", "notice", "vms"),
    *("notified", "vm", "domains_at_once"),
)
FAULT_KEYS = ("kind", "method", "count", "duration", "delay")
"""Keys that are named otherwise than the fields of a fault."""

_EXPECT_LIKE = '{ type = "Reboot", status = "Scheduled" }'
_FAULT_LIKE = '{ kind = "500", count = 3 }'
_MAX_STEPS = 1000
_MAX_VMS = 1000
_MAX_DOMAINS = 100
_MAX_DURATION = 3600
_NO_DURATION = -2
_STATUSES = tuple(status.value for status in EventStatus if status.live)


def parse_scenario(text: str, name: str, source: str) -> Scenario:
    """Parse a scenario. `source` is the name of the file in error messages."""
    file = TomlFile(text, source, BadScenario)
    file_table = TomlTable(file, "", None, file.load())
    file_table.reject_unknown(FILE_KEYS)
    rows = file_table.rows("step", "Must be written [[step]] with double brackets, once for each step.")
    if not rows:
        file_table.report('A scenario needs at least one [[step]], like do = "restart".', "step")
    if len(rows) > _MAX_STEPS:
        file_table.report(f"Too many steps: {len(rows)}. The maximum is {_MAX_STEPS}.", "step")
    needs = _read_needs(file_table.inner("needs", "[needs]"))
    # If the number of VMs is not known, any position can be right.
    vms = needs.vms if file_table.is_right("needs") else _MAX_VMS
    steps = [_read_step(row, vms) for row in rows]
    if all(row.is_right() for row in rows):
        _check_order(rows, steps)
    scenario = Scenario(
        name=name,
        title=_shown(
            file_table, "title", file_table.required_text("title", 'Write it like title = "A user restarts the VM".')
        ),
        description=_shown(file_table, "description", file_table.text("description")),
        source=_shown(file_table, "source", file_table.text("source")),
        needs=needs,
        fleet=_fleet(file, file_table),
        steps=tuple(steps),
    )
    file.raise_mistakes()
    return scenario


def _shown(entry: TomlTable, key: str, text: str) -> str:
    """Return a text for terminals. Control characters are rejected."""
    if not text.replace("\n", "").isprintable():
        entry.report("Contains control characters. Write plain text.", key)
    return text


def _fleet(file: TomlFile, file_table: TomlTable) -> str:
    """Return the text of the fleet, after validation."""
    text = file_table.text("fleet")
    if text:
        try:
            parse_fleet(text, "")
        except BadFleet as error:
            for number, (line, key, problem) in enumerate(error.mistakes):
                file.report(f"In its line {line}: {key}: {problem}", "fleet", ("fleet", number))
    return text


def _read_needs(entry: TomlTable) -> Needs:
    entry.reject_unknown(NEEDS_KEYS)
    return Needs(
        vms=entry.integer("vms", 1, 1, _MAX_VMS),
        group=_choice(entry, "group", GroupKind) or "",
        priority=_choice(entry, "priority", ("regular", "spot")) or "",
        update_domains=entry.integer("update_domains", 0, 1, _MAX_DOMAINS),
        terminate_notice=bool(entry.flag("terminate_notice")),
    )


def _choice(entry: TomlTable, key: str, allowed: Iterable[str]) -> str | None:
    """Return one of these values, or None if the key is missing."""
    return entry.choice(key, [str(value) for value in allowed], "") if key in entry else None


def _read_step(entry: TomlTable, vms: int) -> ScenarioStep:
    entry.reject_unknown(STEP_KEYS)
    kinds = [key for key in KINDS_OF_STEP if key in entry]
    if len(kinds) > 1:
        entry.report(f"A step has only one of {', '.join(KINDS_OF_STEP)}. This step also has {kinds[0]}.", kinds[1])
    if not kinds and "expect" not in entry and entry.is_right(*KINDS_OF_STEP, "expect"):
        entry.report(f"The step is empty. Write one of {', '.join(KINDS_OF_STEP)}, or expect.", "do")
    kind = kinds[0] if kinds else ""
    do = _choice(entry, "do", ACTIONS) or ""
    until = _choice(entry, "until", WaitCondition)
    return ScenarioStep(
        do=do,
        options=_read_options(entry, do, vms),
        until=WaitCondition(until) if until else None,
        within=_read_within(entry, kind),
        wait=_positive(entry, "wait"),
        fault=_read_fault(entry.inner("fault", _FAULT_LIKE)) if kind == "fault" else None,
        expect=_read_expectation(entry.inner("expect", _EXPECT_LIKE)) if "expect" in entry else None,
        title=_shown(entry, "title", entry.text("title")),
    )


def _read_within(entry: TomlTable, kind: str) -> timedelta:
    if "within" in entry and kind != "until" and entry.is_right("until"):
        entry.report("Is only for steps with until. Omit it, or add until.", "within")
    if kind == "until" and "within" not in entry:
        entry.report('It is missing. Write the maximum time to wait, like within = "15m".', "within")
    return _positive(entry, "within") or ScenarioStep().within


def _positive(entry: TomlTable, key: str) -> timedelta | None:
    duration = entry.duration(key)
    if duration is not None and not duration:
        entry.report("Must be longer than 0s, like 15m.", key)
    return duration


def _read_options(entry: TomlTable, do: str, vms: int) -> StepOptions:
    allowed = ("vms", *ACTIONS[do]) if do else ()
    for key in OPTION_KEYS:
        if key in entry and key not in allowed and entry.is_right("do"):
            takes = f"Options of do = {shown(do)}: {', '.join(allowed)}." if do else "It is only for steps with do."
            if key == "description" and do in CAUSES:
                takes = f"A user requests a {do}, and Azure describes such operations itself. {takes}"
            entry.report(f"Is not allowed here. {takes}", key)
    if do == "postpone" and "by" not in entry:
        entry.report('It is missing. Write by how much to postpone, like by = "30m".', "by")
    types = {name.lower(): name for name in EVENT_TYPES}
    event_type = entry.text("type")
    if event_type and event_type.lower() not in types:
        entry.report(
            f"{shown(event_type)} is not one of {', '.join(EVENT_TYPES)}.{nearest(event_type, EVENT_TYPES)}", "type"
        )
    return StepOptions(
        vms=_read_places(entry, vms),
        type=types.get(event_type.lower(), ""),
        duration=UNKNOWN_DURATION if _is_unknown(entry, "duration") else entry.duration("duration"),
        notice=entry.duration("notice"),
        overrides=entry.choices("overrides", OVERRIDES),
        max_unavailable=entry.integer("max_unavailable", 1, 1, 1000) if "max_unavailable" in entry else None,
        pause=entry.duration("pause"),
        by=_positive(entry, "by"),
        description=_read_description(entry),
    )


def _is_unknown(entry: TomlTable, key: str) -> bool:
    return key in entry and entry.text(key).strip().lower() == UNKNOWN


def _read_description(entry: TomlTable) -> str | None:
    if "description" not in entry:
        return None
    text = entry.text("description")
    if problem := description_problem(text):
        entry.report(f"{problem[0].upper()}{problem[1:]}", "description")
    return text


def _read_places(entry: TomlTable, vms: int) -> tuple[int, ...]:
    """Return the positions of VMs, counted from 1."""
    places = entry.integers("vms", 1, vms, f", because needs.vms is {vms}")
    if "vms" in entry and not places:
        entry.report("Name at least one VM, like [1], or omit it for all VMs.", "vms")
    return tuple(dict.fromkeys(places))


def _read_fault(entry: TomlTable) -> FaultSpec | None:
    entry.reject_unknown(FAULT_KEYS)
    kind = entry.required_text("kind", f"Write one of {', '.join(faults.FAULTS)}.")
    order = FaultSpec(
        kind,
        method=entry.text("method", faults.GET),
        count=entry.integer("count", 1, 1, faults.MAX_COUNT) if "count" in entry else None,
        duration=entry.duration("duration"),
        delay=entry.duration("delay"),
    )
    for _ in FAULT_KEYS:
        try:
            return faults.fill_in(order)
        except BadOption as error:
            # To find the next mistake, continue without this option.
            key = str(error.fields["name"])
            entry.report(f"Invalid {key} {shown(error.fields['value'])}: {error.fields['problem']}", key)
            order = order._replace(**{key: FaultSpec._field_defaults[key]})
        except Invalid as error:
            entry.report(str(error), "kind")
            break
    return None


def _read_expectation(entry: TomlTable) -> Expectation:
    entry.reject_unknown(EXPECT_KEYS)
    duration = entry.integer("duration", _NO_DURATION, -1, _MAX_DURATION)
    after = _choice(entry, "vm", ExpectedVMState)
    expectation = Expectation(
        type=_choice(entry, "type", EVENT_TYPES),
        status=_choice(entry, "status", _STATUSES),
        source=_choice(entry, "source", Source),
        description=entry.text("description") if "description" in entry else None,
        duration=None if duration == _NO_DURATION else duration,
        notice=entry.duration("notice"),
        vms=entry.integer("vms", 1, 1, _MAX_VMS) if "vms" in entry else None,
        notified=entry.flag("notified"),
        vm=ExpectedVMState(after) if after else None,
        domains_at_once=entry.integer("domains_at_once", 1, 1, _MAX_DOMAINS) if "domains_at_once" in entry else None,
    )
    if expectation == Expectation():
        entry.report(f"Is empty. Write one of {', '.join(EXPECT_KEYS)}.")
    if expectation.notified is False and expectation.about_event:
        entry.report("With notified = false there is no event. Omit type, status, notice and the like.", "notified")
    if expectation.notice is not None and expectation.status not in (None, EventStatus.SCHEDULED):
        only = 'Check the notice with status = "Scheduled".'
        entry.report(f"An event that is {expectation.status} has no NotBefore. {only}", "notice")
    return expectation


def _check_order(entries: list[TomlTable], steps: list[ScenarioStep]) -> None:
    """Reject steps that need events before the first step that causes one."""
    for entry, step in zip(entries, steps, strict=True):
        if step.do and step.do not in ("approve", "cancel", "postpone", "return-host"):
            return
        needs_event = step.expect is not None and (step.expect.about_event or step.expect.domains_at_once is not None)
        if step.until is not None or step.do or needs_event:
            key = "until" if step.until is not None else "do" if step.do else "expect"
            entry.report('No earlier step does anything. Add a step like do = "restart" first.', key)
            return
