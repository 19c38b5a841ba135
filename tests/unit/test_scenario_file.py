"""The scenario file: its keys, and errors with line and key."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forewarn.core.faults import FaultSpec
from forewarn.core.operations import UNKNOWN_DURATION
from forewarn.core.scenarios import Expectation, ExpectedVMState, Needs, ScenarioStep, StepOptions, WaitCondition
from forewarn.errors import BadScenario
from forewarn.files.scenario_file import parse_scenario
from forewarn.scenarios import library

MINUTE = timedelta(minutes=1)
WHOLE = '''title = "All at once"
description = "Everything that a file can say."
source = "Nowhere."
fleet = """
[[vm]]
name = "app-0"
"""

[needs]
vms = 3
group = "availability-set"
priority = "spot"
update_domains = 2
terminate_notice = true

[[step]]
title = "begin"
do = "host-update"
vms = [1, 3]
type = "freeze"
duration = "9s"
notice = "20m"
overrides = ["windows"]

[[step]]
do = "rollout"
max_unavailable = 7
pause = "1m"

[[step]]
do = "postpone"
by = "30m"

[[step]]
wait = "8m"

[[step]]
fault = { kind = "500", method = "any", count = 3, duration = "1m" }

[[step]]
fault = { kind = "slow", delay = "1s" }

[[step]]
until = "Started"
within = "15m"

[[step]]
until = "gone"
within = "10m"

[step.expect]
type = "Freeze"
status = "Scheduled"
source = "Platform"
description = ""
duration = -1
notice = "15m"
vms = 2
notified = true
vm = "moved"
domains_at_once = 1
'''


@pytest.mark.parametrize(
    ("written", "duration"), [("0s", timedelta(0)), ("unknown", UNKNOWN_DURATION), (" Unknown", UNKNOWN_DURATION)]
)
def test_a_freeze_of_no_or_unknown_length_and_its_description(written: str, duration: timedelta) -> None:
    text = HEAD + f'[[step]]\ndo = "host-update"\nduration = "{written}"\ndescription = ""\n'
    (step,) = parse_scenario(text, "mine", "mine.toml").steps
    assert step.options == StepOptions(duration=duration, description="")


def test_every_key_of_a_file() -> None:
    scenario = parse_scenario(WHOLE, "all", "all.toml")
    assert (scenario.name, scenario.title, scenario.source) == ("all", "All at once", "Nowhere.")
    assert scenario.description == "Everything that a file can say."
    assert scenario.fleet == '[[vm]]\nname = "app-0"\n'
    assert scenario.needs == Needs(3, "availability-set", "spot", 2, terminate_notice=True)
    assert scenario.needs.text() == "3 Spot VMs in one availability-set in 2 update domains with a terminate notice"
    assert scenario.max_duration == 33 * MINUTE
    assert scenario.steps == (
        ScenarioStep(
            do="host-update",
            title="begin",
            options=StepOptions((1, 3), "Freeze", timedelta(seconds=9), 20 * MINUTE, ("windows",)),
        ),
        ScenarioStep(do="rollout", options=StepOptions(max_unavailable=7, pause=MINUTE)),
        ScenarioStep(do="postpone", options=StepOptions(by=30 * MINUTE)),
        ScenarioStep(wait=8 * MINUTE),
        ScenarioStep(fault=FaultSpec("500", method="any", count=3, duration=MINUTE)),
        ScenarioStep(fault=FaultSpec("slow", count=1, delay=timedelta(seconds=1))),
        ScenarioStep(until=WaitCondition.STARTED, within=15 * MINUTE),
        ScenarioStep(
            until=WaitCondition.GONE,
            within=10 * MINUTE,
            expect=Expectation(
                "Freeze",
                "Scheduled",
                "Platform",
                "",
                -1,
                15 * MINUTE,
                2,
                notified=True,
                vm=ExpectedVMState.MOVED,
                domains_at_once=1,
            ),
        ),
    )
    assert [step.describe() for step in scenario.steps] == [
        "begin",
        "rollout",
        "postpone",
        "wait 8m",
        "fault 500",
        "fault slow",
        "until Started, within 15m",
        "until gone, within 10m",
    ]


def test_every_built_in_scenario_has_a_source_and_a_fleet() -> None:
    assert library.names()
    for name in library.names():
        scenario = parse_scenario(library.text(name), name, name)
        assert scenario.title, name
        assert scenario.description, name
        assert scenario.source.startswith("Microsoft's documentation of Scheduled Events"), name
        assert scenario.fleet, name
        assert any(step.expect is not None and step.expect.type for step in scenario.steps), name


def test_the_library_has_all_documented_scenarios() -> None:
    assert library.names() == [
        "cancelled-maintenance",
        "correlated-eviction",
        "degraded-hardware",
        "hardware-failure",
        "host-maintenance",
        "live-migration",
        "quick-eviction",
        "rolling-update",
        "scale-in",
        "spot-eviction",
        "user-reboot",
        "user-redeploy",
    ]


HEAD = 'title = "t"\n'
DO = '[[step]]\ndo = "restart"\n'
BROKEN = {
    "not TOML": ("title = ", 1, "TOML", "Invalid value at the end of the file."),
    "no title": (DO, 1, "title", "It is missing. Write it like title ="),
    "an unknown key": ('titel = "t"\n' + DO, 1, "titel", "The file has no such key. Did you mean 'title'?"),
    "a title that is no text": ("title = 7\n" + DO, 1, "title", "Must be a string in quotes, not a number."),
    "no steps": (HEAD, 1, "step", "A scenario needs at least one [[step]], like do ="),
    "one pair of brackets": (
        HEAD + '[step]\ndo = "restart"',
        2,
        "step",
        "Must be written [[step]] with double brackets",
    ),
    "too many steps": (HEAD + DO * 1001, 2, "step", "Too many steps: 1001. The maximum is 1000."),
    "a wrong fleet": (
        HEAD + 'fleet = """\n[[vm]]\nnmae = "a"\n"""\n' + DO,
        2,
        "fleet",
        "In its line 2: vm[0].nmae: [[vm]] has no such key. Did you mean 'name'?",
    ),
    "needs that are no table": (HEAD + "needs = 3\n" + DO, 2, "needs", "Must be a table like [needs], not a number."),
    "an unknown need": (HEAD + "[needs]\nvm = 1\n" + DO, 3, "needs.vm", "needs has no such key. Did you mean 'vms'?"),
    "no VM needed": (HEAD + "[needs]\nvms = 0\n" + DO, 3, "needs.vms", "Must be a whole number from 1 to 1000."),
    "a group of no kind": (
        HEAD + '[needs]\ngroup = "scaleset"\n' + DO,
        3,
        "needs.group",
        "'scaleset' is not one of standalone, cloud-service, availability-set, scale-set. Did you mean 'scale-set'?",
    ),
    "a priority of no kind": (
        HEAD + '[needs]\npriority = "low"\n' + DO,
        3,
        "needs.priority",
        "'low' is not one of regular, spot.",
    ),
    "a need that is no flag": (
        HEAD + "[needs]\nterminate_notice = 1\n" + DO,
        3,
        "needs.terminate_notice",
        "Must be true or false, not a number.",
    ),
    "an unknown key of a step": (
        HEAD + DO + 'form = "x"\n',
        4,
        "step[0].form",
        "[[step]] has no such key.",
    ),
    "a step with nothing in it": (
        HEAD + DO + "[[step]]\n",
        4,
        "step[1].do",
        "The step is empty. Write one of do, until",
    ),
    "a step that is two": (
        HEAD + DO + 'wait = "1m"\n',
        4,
        "step[0].wait",
        "A step has only one of do, until, wait, fault. This step also has do.",
    ),
    "an unknown thing to do": (
        HEAD + '[[step]]\ndo = "reboot"\n',
        3,
        "step[0].do",
        "'reboot' is not one of restart, redeploy,",
    ),
    "an option of something else": (
        HEAD + DO + "max_unavailable = 3\n",
        4,
        "step[0].max_unavailable",
        "Is not allowed here. Options of do = 'restart': vms, type, duration, notice, overrides.",
    ),
    "a description of a user's operation": (
        HEAD + DO + 'description = "x"\n',
        4,
        "step[0].description",
        "Is not allowed here. A user requests a restart, and Azure describes such operations itself.",
    ),
    "a description of several lines": (
        HEAD + DO.replace("restart", "host-update") + 'description = "a\\nb"\n',
        4,
        "step[0].description",
        "It contains control characters. Write plain text in one line.",
    ),
    "an option of nothing": (
        HEAD + DO + '[[step]]\nwait = "1m"\nvms = [1]\n',
        6,
        "step[1].vms",
        "Is not allowed here. It is only for steps with do.",
    ),
    "a VM beyond those needed": (
        HEAD + DO + "vms = [1, 2]\n",
        4,
        "step[0].vms[1]",
        "Must be 1, because needs.vms is 1.",
    ),
    "no VM at all": (
        HEAD + DO + "vms = []\n",
        4,
        "step[0].vms",
        "Name at least one VM, like [1], or omit it for all VMs.",
    ),
    "VMs by name": (
        HEAD + DO + 'vms = "a"\n',
        4,
        "step[0].vms",
        "Must be an array of numbers in brackets, not a string.",
    ),
    "a type of no event": (
        HEAD + DO + 'type = "Frozen"\n',
        4,
        "step[0].type",
        "'Frozen' is not one of Freeze, Reboot,",
    ),
    "a notice that is no length": (
        HEAD + DO + 'notice = "soon"\n',
        4,
        "step[0].notice",
        "'soon' is not a duration. Write it like 90s",
    ),
    "an unknown override": (
        HEAD + DO + 'overrides = ["window"]\n',
        4,
        "step[0].overrides[0]",
        "'window' is not one of notice, windows. Did you mean 'windows'?",
    ),
    "a postponement by nothing": (
        HEAD + DO + '[[step]]\ndo = "postpone"\n',
        4,
        "step[1].by",
        'It is missing. Write by how much to postpone, like by = "30m".',
    ),
    "an unknown thing to wait for": (
        HEAD + DO + '[[step]]\nuntil = "over"\nwithin = "1m"\n',
        5,
        "step[1].until",
        "'over' is not one of Started, gone.",
    ),
    "no bound": (
        HEAD + DO + '[[step]]\nuntil = "gone"\n',
        4,
        "step[1].within",
        'It is missing. Write the maximum time to wait, like within = "15m".',
    ),
    "a bound of nothing": (
        HEAD + DO + '[[step]]\nuntil = "gone"\nwithin = "0s"\n',
        6,
        "step[1].within",
        "Must be longer than 0s, like 15m.",
    ),
    "a bound without until": (
        HEAD + DO + 'within = "1m"\n',
        4,
        "step[0].within",
        "Is only for steps with until. Omit it, or add until.",
    ),
    "a wait of nothing": (
        HEAD + DO + '[[step]]\nwait = "0s"\n',
        5,
        "step[1].wait",
        "Must be longer than 0s, like 15m.",
    ),
    "until before anything is done": (
        HEAD + '[[step]]\nuntil = "gone"\nwithin = "1m"\n' + DO,
        3,
        "step[0].until",
        "No earlier step does anything.",
    ),
    "an answer before anything is done": (
        HEAD + '[[step]]\ndo = "approve"\n' + DO,
        3,
        "step[0].do",
        "No earlier step does anything.",
    ),
    "an expectation before anything is done": (
        HEAD + '[[step]]\nwait = "1m"\nexpect = { type = "Freeze" }\n' + DO,
        4,
        "step[0].expect",
        "No earlier step does anything.",
    ),
    "a fault that is no table": (
        HEAD + DO + '[[step]]\nfault = "500"\n',
        5,
        "step[1].fault",
        'Must be a table like { kind = "500", count = 3 }, not a string.',
    ),
    "a fault of no kind": (HEAD + DO + "[[step]]\nfault = { count = 3 }\n", 5, "step[1].fault.kind", "It is missing."),
    "an unknown fault": (
        HEAD + DO + '[[step]]\nfault = { kind = "501" }\n',
        5,
        "step[1].fault.kind",
        "Unknown fault '501'.",
    ),
    "an unknown key of a fault": (
        HEAD + DO + '[[step]]\nfault = { kind = "500", vm = "a" }\n',
        5,
        "step[1].fault.vm",
        "fault has no such key.",
    ),
    "a fault that does not affect the method": (
        HEAD + DO + '[[step]]\nfault = { kind = "empty", method = "POST" }\n',
        5,
        "step[1].fault.method",
        "Invalid method 'POST': empty affects only GET.",
    ),
    "a fault that waits for nobody": (
        HEAD + DO + '[[step]]\nfault = { kind = "500", delay = "1s" }\n',
        5,
        "step[1].fault.delay",
        "Invalid delay '1s': 500 has no delay.",
    ),
    "an unknown expectation": (
        HEAD + DO + 'expect = { kind = "Freeze" }\n',
        4,
        "step[0].expect.kind",
        "expect has no such key.",
    ),
    "an expectation of nothing": (
        HEAD + DO + "expect = {}\n",
        4,
        "step[0].expect",
        "Is empty. Write one of type,",
    ),
    "a status of no event": (
        HEAD + DO + 'expect = { status = "Completed" }\n',
        4,
        "step[0].expect.status",
        "'Completed' is not one of Scheduled, Started, Advisory.",
    ),
    "a source of no event": (
        HEAD + DO + 'expect = { source = "user" }\n',
        4,
        "step[0].expect.source",
        "'user' is not one of Platform, User. Did you mean 'User'?",
    ),
    "a duration that is none": (
        HEAD + DO + "expect = { duration = -2 }\n",
        4,
        "step[0].expect.duration",
        "Must be a whole number from -1 to 3600.",
    ),
    "a VM that is nothing": (
        HEAD + DO + 'expect = { vm = "gone" }\n',
        4,
        "step[0].expect.vm",
        "'gone' is not one of running, moved, deallocated, deleted, evicted.",
    ),
    "nothing notified, and what": (
        HEAD + DO + 'expect = { notified = false, type = "Reboot" }\n',
        4,
        "step[0].expect.notified",
        "With notified = false there is no event. Omit type, status, notice and the like.",
    ),
    "a notice of what has started": (
        HEAD + DO + 'expect = { status = "Started", notice = "1m" }\n',
        4,
        "step[0].expect.notice",
        "An event that is Started has no NotBefore.",
    ),
    "a notice of advice": (
        HEAD + DO + 'expect = { status = "Advisory", notice = "1m" }\n',
        4,
        "step[0].expect.notice",
        "An event that is Advisory has no NotBefore.",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_error_has_line_and_key(what: str) -> None:
    text, line, key, problem = BROKEN[what]
    with pytest.raises(BadScenario) as caught:
        parse_scenario(text, "mine", "mine.toml")
    assert str(caught.value).startswith(f"mine.toml:{line}: {key}: {problem}")


def test_control_characters_are_rejected() -> None:
    for text in (
        'title = "\\u001b[2J"\n[[step]]\nwait = "1s"\n',
        'title = "a"\n[[step]]\ntitle = "\\u0007"\nwait = "1s"\n',
    ):
        with pytest.raises(BadScenario, match="control characters"):
            parse_scenario(text, "mine", "mine.toml")
