"""Section 4 of the contract, last part: a day of silence. It comes last, because nothing is the same afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.verify.check import Mark, Need, Rules, Skip
from forewarn.verify.exchange import TRUE
from forewarn.verify.sight import SCHEDULED, read
from forewarn.verify.stage import TYPES

if TYPE_CHECKING:
    from forewarn.verify.sight import Sight
    from forewarn.verify.stage import Stage

rules = Rules(4, "life")

_A_DAY_SECONDS = 86_400 + 3_600


def _silence(stage: Stage) -> None:
    """Let more than a day pass without a request; what was seen before counts no more."""
    stage.pass_time(_A_DAY_SECONDS)
    stage.sights.clear()


def _disabled(stage: Stage) -> tuple[Sight, Sight]:
    """The last document before a day of silence, and the first after it."""
    if stage.look().incarnation == 0:
        if not stage.has(Need.SCHEDULE):
            raise Skip(f"the incarnation is 0 already: give {Need.SCHEDULE}")
        stage.schedule_any(*TYPES)
    stage.clear()
    before = stage.look()
    _silence(stage)
    return before, stage.look()


@rules(
    "silence-restarts",
    Mark.OBSERVED,
    "After a day without a GET the service is disabled; the next GET enables it anew, and the incarnation begins at 0.",
    Need.ADVANCE,
    late=True,
)
def silence_restarts(stage: Stage) -> None:
    before, after = stage.once("silence", _disabled)
    came = f"DocumentIncarnation {after.incarnation}, which was {before.incarnation} before"
    after.reply.must(after.incarnation == 0 or bool(after.events), "DocumentIncarnation 0", came=came)


@rules(
    "silence-no-notice",
    Mark.DOCUMENTED,
    "While the service is disabled, nothing is told: an operation of that time is not in the document.",
    Need.SCHEDULE,
    Need.ADVANCE,
    late=True,
)
def silence_no_notice(stage: Stage) -> None:
    stage.once("silence", _disabled)
    _silence(stage)
    stage.hooks.run(stage.hooks.schedule, FOREWARN_EVENT_TYPE="Reboot", FOREWARN_VM=stage.vm)
    sight = stage.look()
    told = [event for event in sight.events if event.get("EventStatus") == SCHEDULED]
    sight.reply.must(not told, "no notice of what was asked for while nobody listened")


@rules(
    "tag-names-the-enabling",
    Mark.ASSUMED,
    "The ETag names the enabling too: one from before a silence does not match, though the incarnation is the same.",
    Need.ADVANCE,
    late=True,
)
def tag_names_the_enabling(stage: Stage) -> None:
    stage.once("silence", _disabled)
    tag = stage.look().reply.header("etag") or '"0"'
    _silence(stage)
    read(stage.here.ask(headers=(*TRUE, ("If-None-Match", tag))))
