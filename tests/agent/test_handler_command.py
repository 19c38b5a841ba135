"""The handler `command`: the input of a program, and the effect of its output and exit code."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from agent.jobs import LoneJob, handler_of, sample_event, then, toml_list
from forewarn.errors import BadAgentConfig, HandlerFailed

if TYPE_CHECKING:
    from pathlib import Path

# Records its input and its environment.
TELLS = """
import json, os, sys
received = {name: value for name, value in os.environ.items() if name.startswith("FOREWARN_")}
received = {"variables": received, "input": json.load(sys.stdin), "folder": os.getcwd(), "a": os.environ.get("A")}
json.dump(received, open(%r, "w"))
"""


def command(*argv: str | Path, key: str = "prepare", more: str = "") -> str:
    return f'kind = "command"\n{key} = {toml_list(*argv)}\n{more}'


def python(code: str, key: str = "prepare", more: str = "") -> str:
    return command(sys.executable, "-S", "-c", code, key=key, more=more)


def shell(line: str, key: str = "prepare", more: str = "") -> str:
    return command("sh", "-c", line, key=key, more=more)


def received_by(tmp_path: Path, job: LoneJob, key: str = "prepare", more: str = "") -> dict[str, Any]:
    out = tmp_path / "received.json"
    handler = handler_of(python(TELLS % str(out), key, more))
    handler.prepare(job) if key == "prepare" else handler.undo(job)
    received: dict[str, Any] = json.loads(out.read_text())
    return received


def test_a_program_gets_the_event_in_its_environment_and_on_stdin(tmp_path: Path) -> None:
    job = LoneJob(tmp_path, handler="leave-pool")
    received = received_by(tmp_path, job)
    received["variables"].pop("FOREWARN_RUNTIME_DIR", None)  # of the test run
    assert int(received["variables"].pop("FOREWARN_TIMEOUT_SECONDS")) > 0
    assert received["variables"] == {
        "FOREWARN_ACTION": "prepare",
        "FOREWARN_HANDLER": "leave-pool",
        "FOREWARN_VM_NAME": "web-0",
        "FOREWARN_EVENT_ID": "4CAEA225-A741-474D-A72E-428C86FCD853",
        "FOREWARN_EVENT_TYPE": "Reboot",
        "FOREWARN_EVENT_STATUS": "Scheduled",
        "FOREWARN_EVENT_SOURCE": "User",
        "FOREWARN_EVENT_DESCRIPTION": "Virtual machine is going to be restarted.",
        "FOREWARN_EVENT_DURATION_SECONDS": "-1",
        "FOREWARN_EVENT_RESOURCES": "web-0,web-1",
        "FOREWARN_EVENT_NOT_BEFORE": "2021-07-22T04:50:17Z",
    }
    expected = {"action": "prepare", "vm": "web-0", "handler": "leave-pool", "memo": {}, "event": job.event.raw}
    assert received["input"] == expected
    assert received["folder"] == str(tmp_path)


def test_an_event_of_the_oldest_version_leaves_variables_empty(tmp_path: Path) -> None:
    whole = sample_event(NotBefore="", EventStatus="Started")
    event = whole._replace(description=None, source=None, duration_seconds=None)
    received = received_by(tmp_path, LoneJob(tmp_path, event=event))["variables"]
    for name in ("SOURCE", "DESCRIPTION", "DURATION_SECONDS", "NOT_BEFORE"):
        assert received[f"FOREWARN_EVENT_{name}"] == ""


def test_text_that_a_variable_cannot_hold_is_cut(tmp_path: Path) -> None:
    event = sample_event(Description="a\0b\ud800" + "x" * 500_000)
    received = received_by(tmp_path, LoneJob(tmp_path, event=event))
    assert received["variables"]["FOREWARN_EVENT_DESCRIPTION"].startswith("ab?xxx")
    assert received["input"]["event"]["Description"] == event.description


def test_environment_and_directory_are_the_configs(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    received = received_by(tmp_path, LoneJob(tmp_path), more=f'environment = {{A = "b c"}}\ndirectory = "{place}"')
    assert (received["a"], received["folder"]) == ("b c", str(place))


def test_undo_gets_what_prepare_remembers(tmp_path: Path) -> None:
    job = LoneJob(tmp_path)
    said = """echo before; echo 'FOREWARN_MEMO {"checkpoint": "c 17", "deep": [1], "step": 3}'; echo after"""
    handler_of(shell(said)).prepare(job)
    assert job.said == ["before", "after"]
    received = received_by(tmp_path, then(job), "undo")
    assert received["input"]["memo"] == {"checkpoint": "c 17", "deep": [1], "step": 3}
    memo = {name: value for name, value in received["variables"].items() if "MEMO" in name}
    assert memo == {"FOREWARN_MEMO_CHECKPOINT": "c 17", "FOREWARN_MEMO_STEP": "3"}


def test_a_remembered_value_is_stored_at_once(tmp_path: Path) -> None:
    job = LoneJob(tmp_path)
    handler = handler_of(shell("""echo 'FOREWARN_MEMO {"name": "a"}'; echo said; cat; sleep 60"""))

    def prepare() -> None:
        with pytest.raises(HandlerFailed, match="no longer needed"):
            handler.prepare(job)

    running = threading.Thread(target=prepare)
    running.start()
    job.until_said("said")
    assert job.memo == {"said": {"name": "a"}}
    job.stopped.set()
    running.join()


@pytest.mark.parametrize("said", ["[1]", "{", "nothing", "[" * 60_000])
def test_a_memo_that_is_no_object_is_a_failure(tmp_path: Path, said: str) -> None:
    code = (
        f"print('FOREWARN_MEMO ' + {said[:1]!r} * {len(said)})" if len(said) > 100 else f"print('FOREWARN_MEMO {said}')"
    )
    with pytest.raises(HandlerFailed, match="must be FOREWARN_MEMO followed by a JSON object"):
        handler_of(python(code)).prepare(LoneJob(tmp_path))


def test_output_of_undo_is_not_remembered(tmp_path: Path) -> None:
    job = LoneJob(tmp_path, "undo")
    handler_of(shell("""echo 'FOREWARN_MEMO {"a": 1}'""", "undo")).undo(job)
    assert job.memo == {}
    assert job.warned


def test_an_action_without_a_program_does_nothing(tmp_path: Path) -> None:
    handler = handler_of(shell("exit 1"))
    handler.undo(LoneJob(tmp_path, "undo"))
    assert handler.describe("undo") == ""
    assert handler.describe("prepare") == "run sh -c 'exit 1'"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('prepare = "systemctl stop web"', r'agent.toml:3: handler.it.prepare: Must be a list .*\["sh", "-c", "..."\]'),
        ("prepare = []", "Is empty. Write it like"),
        ('prepare = [""]', "Is empty. Write it like"),
        ('prepare = ["a", 1]', r"prepare\[1\]: Must be a string"),
        ('prepare = ["a\\u0000"]', "Contains a null character"),
        ('prepare = ["./a.sh"]', "Write the absolute path of the program, or give `directory`"),
        ('prepare = ["./a.sh"]\ndirectory = "here"', "directory: .*Must be an absolute path"),
        ("", "Give prepare, undo or both"),
        ('prepare = ["a"]\nenvironment = {A = 1}', "environment.A: Must be a string"),
        ('prepare = ["a"]\nenvironment = {"A-B" = "1"}', "not a valid environment variable"),
        ('prepare = ["a"]\nundu = ["b"]', "no such key. Did you mean 'undo'"),
    ],
)
def test_invalid_options_are_rejected_with_the_allowed_values(text: str, problem: str) -> None:
    with pytest.raises(BadAgentConfig, match=problem):
        handler_of(f'kind = "command"\n{text}')
