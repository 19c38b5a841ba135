"""Whether a machine can take new work while it has an event."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from agent.configs import config
from agent.events import ME, NOW, make_event
from forewarn.agent.explain import as_json, explain
from forewarn.agent.policy import Config, Rule
from forewarn.agent.state import PREPARED, UNDOING, new_work
from forewarn.agent.status import ready_reason

if TYPE_CHECKING:
    from forewarn.wire.document_reader import ScheduledEvent

NO_HANDLERS = Rule("r", approve="self")


def freeze(seconds: int | None, status: str = "Started") -> ScheduledEvent:
    """Return a Freeze; None: the api-version has no durations."""
    event = make_event("E1", "Freeze", status=status, DurationInSeconds=seconds)
    assert event.duration_seconds == seconds
    return event


@pytest.mark.parametrize("is_ignored", [False, True], ids=["rule without handlers", "no rule matches"])
@pytest.mark.parametrize(
    ("event", "limit", "ready"),
    [
        (freeze(5), 10, True),
        (freeze(10), 10, True),
        (freeze(11), 10, False),
        (freeze(11), 11, True),
        (freeze(1), 0, False),
        (freeze(0), 0, True),
        (freeze(-1), 3600, False),
        (freeze(None), 3600, False),
        (freeze(-1, "Scheduled"), 10, True),
        (freeze(30, "Scheduled"), 10, True),
        (make_event("E1", "Reboot", status="Started", DurationInSeconds=5), 10, False),
    ],
)
def test_a_long_freeze_blocks_new_work_while_it_is_started(
    event: ScheduledEvent, limit: int, ready: bool, is_ignored: bool
) -> None:
    settings = config(NO_HANDLERS)._replace(short_freeze=timedelta(seconds=limit))
    works = [] if is_ignored else [new_work(event, ME, NO_HANDLERS, "boot")]
    reason = ready_reason(works, [event] if is_ignored else [], NOW, settings)
    assert reason == ("" if ready else f"{event.type} e1: started")


def test_a_short_freeze_with_handlers_blocks_new_work() -> None:
    work = new_work(freeze(5, "Scheduled"), ME, Rule("r", prepare=("a",)), "boot")
    assert ready_reason([work.with_step(0, state=PREPARED)], [], NOW, config(work.rule))
    assert ready_reason([work.with_step(0, state=UNDOING)], [], NOW, config(work.rule))


def test_without_rules_every_event_blocks_new_work() -> None:
    assert ready_reason([], [freeze(5, "Scheduled")], NOW, Config())


def test_check_describes_another_limit() -> None:
    assert not any("/readyz" in line for line in explain(config(NO_HANDLERS)))
    other = config(NO_HANDLERS)._replace(short_freeze=timedelta(minutes=1))
    assert "/readyz returns 503 during a Freeze longer than 1m." in explain(other)
    assert as_json(other)["short_freeze_seconds"] == 60
