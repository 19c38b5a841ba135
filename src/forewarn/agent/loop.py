"""The agent: takes in what the endpoint says, has handlers prepare and undo, and approves.

Polls and approvals are sent in threads of their own. An endpoint that stalls delays nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.changes import Account
from forewarn.agent.client import Client
from forewarn.agent.clock import real_seconds
from forewarn.agent.decisions import (
    DecisionContext,
    DocumentContext,
    Run,
    next_instructions,
    presume,
    take_in,
    waits_for_time,
)
from forewarn.agent.machine import boot_id, up_seconds
from forewarn.agent.peers.participation import Participation
from forewarn.agent.runner import Runner, pause_after
from forewarn.agent.state import NoFile, StateFile, WorkStore
from forewarn.agent.status import describe_alone, describe_work, ready_reason
from forewarn.core.durations import to_text
from forewarn.errors import ForewarnError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.agent.policy import Config
    from forewarn.agent.runner import HandlerOutcome
    from forewarn.agent.state import Work
    from forewarn.errors import EndpointTrouble
    from forewarn.wire.document_reader import ToldEvent

logger = logging.getLogger("forewarn.agent")


# --- Polls ----------------------------------------------------------------------------------------


HOLD_SECONDS = 20
"""How long an answer may be held back. A connection that died in silence is noticed in time for a Preempt."""


class Poller:
    """Polls, and hands on what is told. Whatever happens, it goes on."""

    def __init__(
        self, client: Client, tell: Callable[[tuple[ToldEvent, ...]], None], may_hold: Callable[[], bool]
    ) -> None:
        self._client = client
        self._tell = tell
        self._may_hold = may_hold
        self._account = Account()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)
        self._answers = 0
        self._troubles: Counter[str] = Counter()
        self._trouble: EndpointTrouble | None = None
        self._trouble_since = 0.0
        self._answered_at: float | None = None
        self._said = ("", "")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The client must have been closed: an answer that is waited for is given up with it."""
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                pause = self._poll()
            except Exception:  # nothing may end the watch
                logger.exception("A poll went wrong in a way that nobody has thought of; it goes on.")
                pause = 1.0
            self._stop.wait(pause)

    def _poll(self) -> float:
        polled = self._client.poll(HOLD_SECONDS if self._may_hold() and not self._account.in_doubt() else 0)
        if self._stop.is_set():
            return 0
        if polled.trouble is not None:
            self._troubles[polled.trouble.kind] += 1
            if self._trouble is None:
                self._trouble_since = real_seconds()
            self._trouble = polled.trouble
        else:
            self._answers += 1
            self._trouble = None
            self._answered_at = real_seconds()
            self._say_where()
            if polled.document is not None:
                self._account.take(polled.document, real_seconds())
                self._tell(self._account.events)
        return polled.pause_seconds

    def _say_where(self) -> None:
        """Which endpoint has answered and who this is, once: it is the first question when nothing happens."""
        endpoint, me = self._client.known
        known = ("" if endpoint is None else endpoint.url, "" if me is None else me.name)
        if known != self._said:
            self._said = known
            logger.info("The endpoint is %s, and this machine is %s.", known[0], known[1] or "not named yet")

    def standing(self) -> dict[str, Any]:
        """How it goes."""
        seconds, trouble = real_seconds(), self._trouble
        return {
            "answers": self._answers,
            "troubles": dict(self._troubles),
            "trouble": None if trouble is None else str(trouble),
            "trouble_seconds": None if trouble is None else round(seconds - self._trouble_since, 1),
            "answered_seconds_ago": None if self._answered_at is None else round(seconds - self._answered_at, 1),
            "incarnation": self._account.incarnation,
            "long_poll": bool(self._client.offers_long_poll),
        }


# --- Approvals ------------------------------------------------------------------------------------


class Approver:
    """One request each; whether and when another is made is decided anew. Used under the agent's lock."""

    def __init__(
        self,
        client: Client,
        store: WorkStore,
        done: Callable[[str, str], None],
        *,
        dry_run: bool,
    ) -> None:
        """`done` is called from a thread, with the id and the problem; what it is given is for `settle`."""
        self._client = client
        self._store = store
        self._done = done
        self._dry_run = dry_run
        self._tries: Counter[str] = Counter()
        self.under_way: set[str] = set()
        self.again_at: dict[str, float] = {}
        """When another try may be made, in real seconds."""

    def send(self, work: Work) -> None:
        """Return at once."""
        if self._dry_run:
            logger.info("would be approved", extra={"event": work.event})
            self._note(work)
            return
        self.under_way.add(work.id)
        threading.Thread(target=self._send, args=(work.id,), name="approver", daemon=True).start()

    def settle(self, event_id: str, problem: str) -> str:
        """Note what came of it, and return the word by which it is counted."""
        self.under_way.discard(event_id)
        work = self._store.works.get(event_id)
        if problem:
            self._tries[event_id] += 1
            self.again_at[event_id] = real_seconds() + pause_after(self._tries[event_id])
            if work is not None and self._tries[event_id] == 1:
                logger.warning("is not approved, and tried again: %s", problem, extra={"event": work.event})
            return "approve failed"
        if work is not None:
            self._note(work)
            logger.info("is approved", extra={"event": work.event})
        return "approved"

    def forget(self, event_id: str) -> None:
        self._tries.pop(event_id, None)
        self.again_at.pop(event_id, None)

    def _note(self, work: Work) -> None:
        self._store.keep(work._replace(approved_at=to_text(self._client.clock.now())))

    def _send(self, event_id: str) -> None:
        problem = ""
        try:
            self._client.approve(event_id)
        except ForewarnError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            problem = f"{type(error).__name__}: {error}"
        self._done(event_id, problem)


# --- The agent ------------------------------------------------------------------------------------


LOOK_SECONDS, REST_SECONDS = 1.0, 20.0
"""How often the loop turns by itself: with work at hand, and at rest."""


SILENT_SECONDS = 180.0
"""For so long an endpoint may be silent after a start; its first answer can take two minutes."""


class Options(NamedTuple):
    """What the command line has settled."""

    endpoint: str
    vm_name: str
    state: Path
    dry_run: bool = False


class Agent:
    """One per machine. Threads only leave word; everything is decided in `run`, one turn at a time."""

    def __init__(self, config: Config, options: Options) -> None:
        self._config = config
        self._options = options
        self._lock = threading.Condition(threading.RLock())
        self._file = NoFile(options.state) if options.dry_run else StateFile(options.state)
        self._store = WorkStore(self._file)
        self._client = Client(options.endpoint, options.vm_name)
        self._poller = Poller(self._client, self._told, self._may_hold)
        self._runner = Runner(
            config, self._file.folder, self._store, self._lock, self._handler_ended, dry_run=options.dry_run
        )
        self._approver = Approver(self._client, self._store, self._approval_ended, dry_run=options.dry_run)
        # In a dry run nothing is prepared: the others must not hear that it is, and approve.
        self._peers = Participation(None if options.dry_run else config.peers, self._wake)
        self._counts: Counter[str] = Counter()
        self._events: tuple[ToldEvent, ...] | None = None
        self._outcomes: list[HandlerOutcome] = []
        self._approved: list[tuple[str, str]] = []
        self._alone: dict[str, ToldEvent] = {}
        self._others: dict[str, ToldEvent] = {}
        self._has_looked = self._taken = False
        self._news = False
        self._stopping = False
        self._said = ""
        self._looked_after: set[str] = set()
        self.starts_anew = False
        """Once it has ended: whether it wants to be started again, since it could not end something within itself."""
        self._boot = boot_id()
        self._begun_at = self._turned_at = real_seconds()
        self._shown = self._show()

    # --- Its life ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Until `stop` is called."""
        logger.info("The agent begins%s.", " (dry run: nothing is done)" if self._options.dry_run else "")
        for work in self._store.works.values():
            logger.info("still to be looked after", extra={"event": work.event})
        self._poller.start()
        try:
            while True:
                with self._lock:
                    if self._stopping:
                        break
                    self._turn_safely()
                    self._lock.wait_for(lambda: self._news or self._stopping, self._seconds_to_look())
                    self._news = False
        finally:
            self._end()

    def stop(self) -> None:
        """Soon: what runs is left to itself after a few seconds, and taken up at the next start."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()

    def _end(self) -> None:
        self._client.close()
        self._poller.stop()
        self._peers.stop()
        self._runner.stop()
        with self._lock:
            self._settle()
            self._store.close()
        logger.info("The agent ends.")

    def _wake(self) -> None:
        with self._lock:
            self._news = True
            self._lock.notify_all()

    def _seconds_to_look(self) -> float:
        live = any(not work.done for work in self._store.works.values())
        return LOOK_SECONDS if live else REST_SECONDS

    def _may_hold(self) -> bool:
        """Whether the endpoint may keep an answer back until something changes.

        Not while a moment is waited for: each answer says what time it is there, which a rehearsal may have moved.
        """
        with self._lock:
            return not any(waits_for_time(work) for work in self._store.works.values())

    # --- Word from the threads --------------------------------------------------------------------

    def _told(self, events: tuple[ToldEvent, ...]) -> None:
        me = self._client.me  # in the poller's thread: it may have to ask
        if self._client.known[1] is None:
            return  # to take the host name for it might hide what is coming: the next poll asks again
        with self._lock:
            self._peers.start(me.name)
            if events != self._events:
                self._events, self._taken = events, False
                self._wake()
                # What is to be waited for decides how the next poll is made.
                self._lock.wait_for(lambda: self._taken or self._stopping, LOOK_SECONDS)
            elif any(waits_for_time(work) for work in self._store.works.values()):
                self._wake()  # the endpoint's clock may have moved

    def _handler_ended(self, outcome: HandlerOutcome) -> None:
        with self._lock:
            self._outcomes.append(outcome)
            self._wake()

    def _approval_ended(self, event_id: str, problem: str) -> None:
        with self._lock:
            self._approved.append((event_id, problem))
            self._wake()

    # --- One turn ---------------------------------------------------------------------------------

    def _turn_safely(self) -> None:
        """Whatever goes wrong in a turn, the agent goes on: it may be one event that is odd, and another may come."""
        try:
            self._turn()
        except Exception as error:
            # It is likely to go wrong again a second later: said once, until it is another thing.
            if self._said != repr(error):
                logger.exception("Something went wrong that nobody has thought of; it is tried again.")
            self._said = repr(error)
        else:
            self._said = ""
            self._turned_at = real_seconds()

    def _turn(self) -> None:
        stuck = self._runner.give_up()
        self._settle()
        if stuck:
            logger.critical("A thread cannot be ended but with its process: the agent starts itself anew.")
            self.starts_anew = self._stopping = True
        if self._events is not None:
            self._take_in(self._events)
        elif real_seconds() - self._begun_at > SILENT_SECONDS:
            self._store.replace(presume(self._store.works, self._boot, self._client.clock.now()))
        if not self._store.settle():
            return  # nothing is begun that cannot be noted
        while True:
            instructions = next_instructions(self._store.works, self._context())
            runs = any(isinstance(instruction, Run) for instruction in instructions)
            self._peers.report(
                self._store.works.values(), self._client.clock.now(), busy=runs or bool(self._runner.busy)
            )
            if runs and not self._peers.may_run_handler():
                break
            again = [self._runner.carry_out(instruction, self._approver.send) for instruction in instructions]
            if not any(again):
                break
        self._forget_what_is_over()

    def _take_in(self, events: tuple[ToldEvent, ...]) -> None:
        me = self._client.known[1]  # nobody is asked under the lock
        if me is None:
            return
        around = DocumentContext(
            self._config.rules,
            me.listed_as,
            self._client.clock.now(),
            self._boot,
            up_seconds(),
            is_first=not self._has_looked,
        )
        taken = take_in(self._store.works, events, around)
        for event, text in taken.news:
            logger.info("%s", text, extra={"event": event})
        for event in taken.left_alone.values():
            if event.id not in self._alone:
                logger.info("no rule is for it: it is left alone", extra={"event": event})
        self._alone = taken.left_alone
        self._others = {
            event.id: event for event in events if event.id not in taken.works and event.id not in taken.left_alone
        }
        before = self._store.works
        ended = [work.id for work in taken.works.values() if work.ending and not before.get(work.id, work).ending]
        self._store.replace(taken.works)
        self._has_looked = self._taken = True
        self._lock.notify_all()
        for event_id in ended:
            self._runner.end_early(event_id)

    def _forget_what_is_over(self) -> None:
        for event_id in self._looked_after - self._store.works.keys():
            self._peers.forget(event_id)
            self._runner.forget(event_id)
            self._approver.forget(event_id)
        self._looked_after = set(self._store.works)

    def _settle(self) -> None:
        """Note what the threads have brought."""
        while self._outcomes:
            self._counts[self._runner.settle(self._outcomes[0], stopping=self._stopping)] += 1
            del self._outcomes[0]  # only now: what could not be noted is noted at the next turn
        while self._approved:
            self._counts[self._approver.settle(*self._approved[0])] += 1
            del self._approved[0]

    def _context(self) -> DecisionContext:
        return DecisionContext(
            now=self._client.clock.now(),
            seconds=real_seconds(),
            busy=self._runner.busy,
            approving=frozenset(self._approver.under_way),
            leading=self._peers.problems(),
            begun_at=self._runner.begun_at,
            undo_at=self._runner.undo_at,
            approve_at=self._approver.again_at,
            has_looked=self._has_looked,
            stopping=self._stopping,
        )

    # --- What it says of itself -------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Everything that is shown anywhere. If the loop hangs, what was last known, and for how long it has hung."""
        if not self._lock.acquire(timeout=LOOK_SECONDS):
            return {**self._shown, "turned_seconds_ago": round(real_seconds() - self._turned_at, 1)}
        try:
            self._shown = self._show()
        finally:
            self._lock.release()
        return self._shown

    def _show(self) -> dict[str, Any]:
        context, seconds, works = self._context(), real_seconds(), list(self._store.works.values())
        reason = ready_reason(works, list(self._alone.values()), context.now, has_rules=bool(self._config.rules))
        endpoint, me = self._client.known
        return {
            "vm": None if me is None else me.name,
            "vm_from": None if me is None else me.origin,
            "endpoint": None if endpoint is None else endpoint.url,
            "endpoint_from": None if endpoint is None else endpoint.origin,
            "config": self._config.source,
            "dry_run": self._options.dry_run,
            "run_seconds": round(seconds - self._begun_at, 1),
            "turned_seconds_ago": round(seconds - self._turned_at, 1),
            "now": to_text(context.now),
            "ready": not reason,
            "ready_reason": reason,
            "polling": self._poller.standing(),
            "events": [
                *(describe_work(work, context) for work in works),
                *(describe_alone(event, mine=True) for event in self._alone.values()),
                *(describe_alone(event, mine=False) for event in self._others.values()),
            ],
            "peers": self._peers.snapshot(),
            "counts": {name: self._counts[name] for name in COUNTS},
        }


COUNTS = ("prepared", "prepare failed", "undone", "undo failed", "approved", "approve failed")
