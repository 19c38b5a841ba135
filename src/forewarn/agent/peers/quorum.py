"""Who approves, and when. Pure: what was heard and the seconds are arguments.

Why two can never approve at once. Each machine supports one machine at a time: with its support it pledges that it
will support nobody else, not even itself, for `silence` seconds from then. Who was given support counts it for `fresh`
seconds from when it ASKED, which was before the pledge was given; and `fresh` is at most half of `silence`. To approve
takes the support of a majority, oneself included. Two majorities share a machine, and that one would have broken its
pledge. Of two machines the second may go on alone when the first is silent, and the first always needs the second: so
the second is in both. An agent that has just started may have pledged something before it died: it supports nobody
until `silence` has passed. No clocks are compared: each machine counts its own seconds, from its own doings.

Who is ready. A machine's word about itself counts until a later one is known: of the same run of its agent with a
higher version, or heard from itself, asked for after the old word had reached whoever passed it on. While two words
cannot be put in order both count, and the machine is ready only if both say so. So word may go round by others when
a link is cut, and never undoes what is newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.peers.messages import READY, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import timedelta

_LEAST_SILENCE = 1.0
_LONGEST_FRESH = 3.0
_LONGEST_TIMEOUT = 2.0
_NEVER = float("-inf")


class Patience(NamedTuple):
    """How long is waited for what, in seconds. All of it follows from `silence`."""

    silence: float
    fresh: float
    interval: float
    timeout: float

    @classmethod
    def of(cls, silence: timedelta) -> Patience:
        """The others, so that support is asked for three times before it is stale."""
        seconds = max(_LEAST_SILENCE, silence.total_seconds())
        fresh = min(_LONGEST_FRESH, seconds / 2)
        return cls(seconds, fresh, fresh / 3, min(_LONGEST_TIMEOUT, seconds))


class Statement(NamedTuple):
    """What a machine has said of itself about an event, as far as it is known here."""

    run: str
    version: int
    state: str
    latest: float
    """It was made at this moment or before."""
    earliest: float = _NEVER
    """It was made at this moment or after; known only of what was heard from the machine itself."""


class Answer(NamedTuple):
    """What else was in the last answer of a machine."""

    sent: float
    """When it was asked. The answer is younger, and nothing relies on how much."""
    pledge: float = 0.0
    """For how many seconds it supports this machine."""
    agrees: bool = True
    """Whether it sees the same machines in the event."""


class Pledge(NamedTuple):
    """Whom this machine supports, and until when nobody else."""

    whom: str
    until: float


class Standing(NamedTuple):
    """All that a machine knows about one event. Names that are keys are in lower case."""

    me: str
    state: str
    resources: tuple[str, ...]
    since: float
    """When it first heard of the event."""
    answers: Mapping[str, Answer]
    words: Mapping[str, tuple[Statement, ...]]
    pledge: Pledge | None
    quiet_until: float
    """Before that it supports nobody, for what its agent may have pledged in an earlier run."""


class Verdict(NamedTuple):
    """Whether this machine may approve, and why."""

    may: bool
    leader: str | None
    why: str
    waiting_for: tuple[str, ...] = ()


def key(name: str) -> str:
    """Names of machines are the same in any letter case."""
    return name.casefold()


def add_statement(known: tuple[Statement, ...], new: Statement) -> tuple[Statement, ...]:
    """What counts of a machine's words when one more has come."""
    others = []
    for old in known:
        if old.run != new.run:
            others.append(old)
            continue
        last = max(old, new, key=lambda statement: (statement.version, statement.state != READY))
        latest = max(old.latest, new.latest) if old.version == new.version else last.latest
        new = last._replace(latest=latest, earliest=max(old.earliest, new.earliest))
    all_known = (*others, new)
    return tuple(
        word for word in all_known if not any(other.earliest >= word.latest for other in all_known if other is not word)
    )


def is_silent(standing: Standing, name: str, now: float, patience: Patience) -> bool:
    """Whether a machine has not answered for too long. One is never silent to oneself."""
    if key(name) == key(standing.me):
        return False
    answer = standing.answers.get(key(name))
    last = standing.since if answer is None else max(answer.sent, standing.since)
    return now - last >= patience.silence


def find_leader(standing: Standing, now: float, patience: Patience) -> str | None:
    """The first machine that is not silent."""
    return next((name for name in standing.resources if not is_silent(standing, name, now, patience)), None)


def may_pledge(standing: Standing, whom: str, now: float) -> bool:
    """Whether no earlier pledge is in the way."""
    pledge = standing.pledge
    return now >= standing.quiet_until and (pledge is None or pledge.whom == key(whom) or now >= pledge.until)


def verdict(standing: Standing, members: Collection[str], now: float, patience: Patience) -> Verdict:
    """Whether this machine may approve at this moment; `members` are the keys of those that can be asked."""
    me, resources = standing.me, standing.resources
    leader = find_leader(standing, now, patience)
    if key(me) not in {key(name) for name in resources}:
        return Verdict(False, leader, f"{me} is not one of the machines of the event")
    others = tuple(name for name in resources if key(name) != key(me))
    strangers = tuple(name for name in others if key(name) not in members)
    if strangers:
        verb = "is" if len(strangers) == 1 else "are"
        return Verdict(False, leader, f"{', '.join(strangers)} {verb} not among [peers] members", strangers)
    unready = {name: how for name in resources if (how := _how_unready(standing, name, now, patience))}
    if unready:
        told = ", ".join(f"{name} ({how})" for name, how in unready.items())
        return Verdict(False, leader, f"waits for {told}", tuple(unready))
    if not others:
        return Verdict(True, leader, "this machine is ready, and the only one")
    if leader is None or key(leader) != key(me):
        return Verdict(False, leader, f"all are ready; {leader} is to approve", (leader or "",))
    return _among_several(standing, leader, others, now, patience)


def _among_several(standing: Standing, me: str, others: tuple[str, ...], now: float, patience: Patience) -> Verdict:
    """All are ready, and this machine would approve: whether the others let it."""
    if not may_pledge(standing, me, now):
        if now < standing.quiet_until:
            why = "all are ready; this agent has just started, and may have supported another machine before"
            return Verdict(False, me, why, (me,))
        whom = standing.pledge.whom if standing.pledge else ""
        return Verdict(False, me, f"all are ready; this machine has just supported {whom}", (me,))
    at_odds = tuple(name for name in others if not _answer(standing, name).agrees)
    if at_odds:
        return Verdict(False, me, f"all are ready; {', '.join(at_odds)} told of other machines in the event", at_odds)
    silent = tuple(name for name in others if is_silent(standing, name, now, patience))
    if len(others) == 1 and silent and key(standing.resources[-1]) == key(me):
        return Verdict(True, me, f"all are ready, and {silent[0]}, which would approve, is silent")
    lacking = tuple(name for name in others if not _supports(_answer(standing, name), now, patience))
    needed = (len(others) + 1) // 2 + 1
    supporters = 1 + len(others) - len(lacking)
    if supporters >= needed:
        return Verdict(True, me, f"all are ready, and {supporters} of {len(others) + 1} support this machine")
    why = f"all are ready; {supporters} of {len(others) + 1} support this machine and {needed} are needed"
    return Verdict(False, me, f"{why}: waits for {', '.join(lacking)}", lacking)


def _answer(standing: Standing, name: str) -> Answer:
    return standing.answers.get(key(name), Answer(_NEVER))


def _supports(answer: Answer, now: float, patience: Patience) -> bool:
    # Should its agent have another `silence` in its config, its pledge may be shorter than what is fresh here.
    return now - answer.sent < min(patience.fresh, answer.pledge)


def _how_unready(standing: Standing, name: str, now: float, patience: Patience) -> str:
    """In words how far a machine is that is not ready; nothing if it is."""
    if key(name) == key(standing.me):
        return "" if standing.state == READY else standing.state
    words = standing.words.get(key(name), ())
    silent = ", silent" if is_silent(standing, name, now, patience) else ""
    if not words:
        return f"not heard{silent}"
    state = next((word.state for word in words if word.state != READY), READY)
    if state == READY:
        return ""
    return f"{'knows nothing of it' if state == UNKNOWN else state}{silent}"
