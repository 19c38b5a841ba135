"""The agent's main loop: reads documents, runs handlers and approves events.

Polls and approvals run in their own threads, so a slow endpoint delays nothing else.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.changes import ChangeTracker, has_started
from forewarn.agent.client import Client
from forewarn.agent.clock import real_seconds
from forewarn.agent.decisions import DecisionContext, RunHandler, next_instructions, waits_for_time, withheld_for
from forewarn.agent.document_decisions import (
    FOLLOWED,
    LATER,
    MISSED,
    NEW,
    RENAMED,
    RESTARTED,
    RESUMED,
    RETURNED,
    STARTED,
    DocumentContext,
    apply_document,
    assume_restarts,
)
from forewarn.agent.identity import GIVEN
from forewarn.agent.machine import boot_id, uptime_seconds
from forewarn.agent.peers.participation import Participation
from forewarn.agent.retry import LONG_POLL_SECONDS
from forewarn.agent.runner import Runner, about, retry_pause
from forewarn.agent.state import CANCELLED, DiscardedState, StateFile, WorkStore
from forewarn.agent.status import describe_ignored, describe_work, ready_reason
from forewarn.core.durations import to_text, to_text_if_any
from forewarn.errors import EndpointError, ForewarnError, PolicyNeedsRestart
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.agent.document_decisions import EventNews
    from forewarn.agent.policy import Config
    from forewarn.agent.runner import HandlerOutcome
    from forewarn.agent.state import EventWork
    from forewarn.wire.document_reader import ScheduledEvent

_log = get_logger(__name__)


# --- Polls ----------------------------------------------------------------------------------------


_MAX_NAME_REQUESTS = 3


class Poller:
    """Polls the endpoint in a thread and delivers the events. No error ends it."""

    def __init__(
        self, client: Client, deliver: Callable[[tuple[ScheduledEvent, ...]], None], may_long_poll: Callable[[], bool]
    ) -> None:
        self._client = client
        self._deliver = deliver
        self._may_long_poll = may_long_poll
        self._tracker = ChangeTracker()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)
        self._responses = 0
        self._errors: Counter[str] = Counter()
        self._error: EndpointError | None = None
        self._failing_since = 0.0
        self._last_response_at: float | None = None
        self._logged: tuple[str, str, str | None] = ("", "", None)
        self._name_requests_left = _MAX_NAME_REQUESTS

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Close the client first: that ends a running poll."""
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                pause = self._poll()
            except Exception:  # noqa: BLE001 - the thread must never end
                _log.exception("poll_crashed", "Unexpected error while polling; retrying.")
                pause = 1.0
            self._stop.wait(pause)

    def _poll(self) -> float:
        result = self._client.poll(
            LONG_POLL_SECONDS if self._may_long_poll() and not self._tracker.has_old_document() else 0
        )
        if self._stop.is_set():
            return 0
        if result.error is not None:
            self._errors[result.error.kind] += 1
            if self._error is None:
                self._failing_since = real_seconds()
            self._error = result.error
        elif result.document is not None:  # otherwise another api-version is tried next
            self._responses += 1
            self._error = None
            self._last_response_at = real_seconds()
            self._log_identity()
            self._tracker.update(result.document, real_seconds())
            self._deliver(self._tracker.events)
            self._compare_name(result.document.events)
        return result.pause_seconds

    def _log_identity(self) -> None:
        """Log what the agent uses, again only if it changes: the first thing to check when nothing happens."""
        endpoint, me = self._client.known
        version = self._client.api_version
        known = ("" if endpoint is None else endpoint.url, "" if me is None else me.name, version)
        if known != self._logged:
            self._logged = known
            vm = known[1] or "not known yet"
            _log.info("endpoint_connected", "The endpoint responds.", endpoint=known[0], vm=vm, api_version=version)

    def _compare_name(self, events: tuple[ScheduledEvent, ...]) -> None:
        """Compare a given VM name with the endpoint's, and log a warning once. Events need not wait for this."""
        _, me = self._client.known
        if me is None or me.origin != GIVEN or not self._name_requests_left:
            return
        self._name_requests_left -= 1
        try:
            name = self._client.request_name()
        except EndpointError:
            return
        self._name_requests_left = 0
        if name and not any(me.listed_as(names) for names in [(name,), *(event.resources for event in events)]):
            _log.warning(
                "vm_name_unknown",
                "The endpoint has another name for this VM. The agent acts only on events that list the configured "
                "name. Correct the name, or remove it: the agent then uses the endpoint's name.",
                vm=me.name,
                endpoint_vm=name,
            )

    def status(self) -> dict[str, Any]:
        """Return the state of polling for the status."""
        seconds, error = real_seconds(), self._error
        return {
            "responses": self._responses,
            "request_errors": dict(self._errors),
            "error": None if error is None else str(error),
            "failing_seconds": None if error is None else round(seconds - self._failing_since, 1),
            "seconds_since_last_response": None
            if self._last_response_at is None
            else round(seconds - self._last_response_at, 1),
            "incarnation": self._tracker.incarnation,
            "api_version": self._client.api_version,
            "long_poll": bool(self._client.offers_long_poll),
        }


# --- Approvals ------------------------------------------------------------------------------------


APPROVAL_SECONDS = 1.0
"""No further approval is sent after this time: the loop then decides again. No handler starts during approvals."""
MAX_APPROVALS = 400
"""Maximum number of events that one request approves."""


class Approver:
    """Sends approvals: one request for several events, because the endpoint limits the rate of requests. The loop
    decides about retries. Used under the agent's lock."""

    def __init__(
        self,
        client: Client,
        store: WorkStore,
        done: Callable[[dict[str, str | None]], None],
        *,
        dry_run: bool,
    ) -> None:
        """A thread calls `done` with the results, which are for `record`."""
        self._client = client
        self._store = store
        self._done = done
        self._dry_run = dry_run
        self._tries: Counter[str] = Counter()
        self.in_progress: set[str] = set()
        self.retry_at: dict[str, float] = {}
        """When an approval may be retried, in real seconds."""

    def send(self, works: list[EventWork]) -> None:
        """Send the approvals in a thread; return at once."""
        if self._dry_run:
            for work in works:
                if not work.approved_at:
                    _log.info("approval_skipped", "Dry run: the event would be approved now.", **about(work.event))
                self._record(work)
            return
        events = {work.id: work.event for work in works[:MAX_APPROVALS]}
        self.in_progress.update(events)
        threading.Thread(target=self._send, args=(events,), name="approver", daemon=True).start()

    def record(self, event_id: str, problem: str | None) -> str:
        """Record the result of an approval: why it failed, or None if it was not sent. Return the name of its counter,
        if it has one. The next write saves the result: a repeated approval changes nothing."""
        self.in_progress.discard(event_id)
        if problem is None:
            return ""
        work = self._store.works.get(event_id)
        if problem:
            self._tries[event_id] += 1
            self.retry_at[event_id] = real_seconds() + retry_pause(self._tries[event_id])
            if work is not None and self._tries[event_id] == 1:
                _log.warning("approval_failed", "Approval failed; retrying.", **about(work.event), error=problem)
            return "approve failed"
        if work is not None:
            self._record(work)
            if work.approved_at:
                _log.info(
                    "approval_repeated",
                    "The approved event has not started. The agent approved it again. This is normal on shared hosts.",
                    **about(work.event),
                )
            else:
                _log.info("event_approved", "Event approved.", **about(work.event))
        return "approved"

    def forget(self, event_id: str) -> None:
        self._tries.pop(event_id, None)
        self.retry_at.pop(event_id, None)

    def _record(self, work: EventWork) -> None:
        self._store.keep_for_later(work._replace(approved_at=to_text(self._client.clock.now())))

    def _send(self, events: dict[str, ScheduledEvent]) -> None:
        """Approve the events with one request. If the endpoint rejects it, one of them may be unknown there: approve
        one after another, until the time is over."""
        results: dict[str, str | None] = dict.fromkeys(events)
        problem, is_rejected = self._approve(*events.values())
        if len(events) == 1 or not is_rejected:
            results = dict.fromkeys(events, problem)
        else:
            until = real_seconds() + APPROVAL_SECONDS
            for work_id, event in events.items():
                results[work_id], _ = self._approve(event)
                if real_seconds() > until:
                    break
        self._done(results)

    def _approve(self, *events: ScheduledEvent) -> tuple[str, bool]:
        """Send a request. Return why it failed, if it did, and whether the endpoint rejected it."""
        try:
            self._client.approve(*events)
        except ForewarnError as error:
            return str(error), getattr(error, "kind", "") == "rejected"
        except Exception as error:  # noqa: BLE001 - it is retried
            return f"{type(error).__name__}: {error}", False
        return "", False


# --- The agent ------------------------------------------------------------------------------------


BUSY_LOOP_SECONDS, IDLE_LOOP_SECONDS = 1.0, 20.0
"""How often the loop runs by itself: with active work, and without."""


NO_RESPONSE_SECONDS = 180.0
"""After a start, wait this long for the endpoint's first response; it can take two minutes."""


ANSWER_SECONDS = 2.0
"""If the loop does not answer a request for the status within this time, the machine is not ready."""


class LoopStatus:
    """Requests for the status, and the loop's answers. A request never gets a status from before it was sent."""

    def __init__(self) -> None:
        self._lock = threading.Condition()  # not the agent's lock, which a hanging loop holds
        self._asked = self._answered = 0
        self._answer: dict[str, Any] = {}

    def ask(self, wake: Callable[[float], bool]) -> dict[str, Any] | None:
        """Return the loop's answer; None: there was none in time. `wake` wakes the loop within some seconds."""
        until = real_seconds() + ANSWER_SECONDS
        with self._lock:
            self._asked += 1
            number = self._asked
        is_awake = wake(ANSWER_SECONDS)
        with self._lock:
            left = until - real_seconds() if is_awake else 0
            return self._answer if self._lock.wait_for(lambda: self._answered >= number, left) else None

    def answer(self, make: Callable[[], dict[str, Any]]) -> None:
        """Answer all requests. Called by the loop after each run."""
        with self._lock:
            number = self._asked
        if number > self._answered:
            made = make()
            with self._lock:
                self._answered, self._answer = number, made
                self._lock.notify_all()


class AgentOptions(NamedTuple):
    """The agent's options from the command line."""

    endpoint: str
    vm_name: str
    state: Path
    dry_run: bool = False
    preview_versions: bool = True


NEEDS_RESTART = ("endpoint", "vm_name", "state", "listen", "preview_versions", "peers")
"""Parts of the config that the agent reads only at its start."""


class Agent:
    """The agent of a machine. Threads only report to it; `run` makes all decisions, one loop at a time."""

    def __init__(self, config: Config, options: AgentOptions) -> None:
        self._config = config
        self._options = options
        self._lock = threading.Condition(threading.RLock())
        self._file = DiscardedState(options.state) if options.dry_run else StateFile(options.state)
        self._store = WorkStore(self._file)
        self._client = Client(options.endpoint, options.vm_name, preview_versions=options.preview_versions)
        self._client.rejected_version = self._store.rejected_version
        self._poller = Poller(self._client, self._receive_events, self._may_long_poll)
        self._runner = Runner(
            config, self._file.folder, self._store, self._lock, self._handler_ended, dry_run=options.dry_run
        )
        self._approver = Approver(self._client, self._store, self._approvals_ended, dry_run=options.dry_run)
        # A dry run prepares nothing. Peers must not count this machine as ready and approve.
        self._peers = Participation(None if options.dry_run else config.peers, self._wake)
        self._counts: Counter[str] = Counter()
        self._events: tuple[ScheduledEvent, ...] | None = None
        self._outcomes: list[HandlerOutcome] = []
        self._approved: dict[str, str | None] = {}
        self._ignored: dict[str, ScheduledEvent] = {}
        self._others: dict[str, ScheduledEvent] = {}
        self._has_document = self._is_applied = False
        self._woken = False
        self._stopping = False
        self._logged = ""
        self._known_ids: set[str] = set()
        self._withheld: set[str] = set()
        """Events that the agent does not approve because they affect other machines. Each is logged once."""
        self.should_restart = False
        """Set when the agent has ended and must be started again, because a handler's thread cannot be stopped."""
        self._boot = boot_id()
        self._started_at = self._last_loop_at = real_seconds()
        self._status = LoopStatus()

    # --- Start and stop ---------------------------------------------------------------------------

    def run(self) -> None:
        """Run until `stop` is called."""
        _log.info("agent_started", "Agent started.", dry_run=self._options.dry_run)
        for work in self._store.works.values():
            _log.info("work_resumed", "Resuming the work from the state file.", **about(work.event))
        self._poller.start()
        try:
            while True:
                with self._lock:
                    if self._stopping:
                        break
                    self._loop_once_safely()
                    self._lock.wait_for(lambda: self._woken or self._stopping, self._loop_seconds())
                    self._woken = False
        finally:
            self._end()

    def stop(self) -> None:
        """Stop soon. Running handlers get a few seconds; the next start continues their work."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()

    def replace_config(self, config: Config) -> None:
        """Use another policy from now on. Raises PolicyNeedsRestart, and changes nothing, if it needs a restart.

        An event that handlers have begun to prepare for, or that is approved or started, keeps its rule. For other
        events the agent chooses a rule again.
        """
        with self._lock:
            changed = [name for name in NEEDS_RESTART if getattr(config, name) != getattr(self._config, name)]
            if changed:
                raise PolicyNeedsRestart(keys=", ".join(changed))
            waiting = [work.id for work in self._store.works.values() if self._may_choose_again(work)]
            kept = {name: work for name, work in self._store.works.items() if name not in waiting}
            # Work that has begun may still need handlers that the new policy does not have.
            needed = {step.handler for work in kept.values() for step in work.steps}
            retired = {name: named for name, named in self._config.handlers.items() if name in needed}
            config = config._replace(handlers={**retired, **config.handlers})
            self._config = self._runner.config = config
            for event_id in waiting:
                self._forget(event_id)
            self._store.replace(kept)
            self._wake()

    def _may_choose_again(self, work: EventWork) -> bool:
        is_approved = work.approved_at or work.id in self._approver.in_progress
        return not (work.is_begun or is_approved or work.is_started or work.ending or work.done)

    def _end(self) -> None:
        self._client.close()
        self._poller.stop()
        self._peers.stop()
        self._runner.stop()
        with self._lock:
            self._record_results()
            self._store.close()
        _log.info("agent_stopped", "Agent stopped.")

    def _wake(self) -> None:
        with self._lock:
            self._woken = True
            self._lock.notify_all()

    def _loop_seconds(self) -> float:
        live = any(not work.done for work in self._store.works.values())
        return BUSY_LOOP_SECONDS if live else IDLE_LOOP_SECONDS

    def _may_long_poll(self) -> bool:
        """Whether the next poll may be a long poll.

        Not while the agent waits for a time: each response has the endpoint's time, and a test may have advanced it.
        """
        with self._lock:
            return not any(waits_for_time(work) for work in self._store.works.values())

    # --- Reports from the threads -----------------------------------------------------------------

    def _receive_events(self, events: tuple[ScheduledEvent, ...]) -> None:
        me = self._client.me  # here, in the poller's thread, because it may send a request
        if self._client.known[1] is None:
            return  # the host name could hide an event of this machine: the next poll requests the name again
        with self._lock:
            self._store.keep_rejected_version(self._client.rejected_version)
            self._peers.start(me.name)
            if events != self._events:
                self._events, self._is_applied = events, False
                self._wake()
                # The next poll depends on the work that these events start.
                self._lock.wait_for(lambda: self._is_applied or self._stopping, BUSY_LOOP_SECONDS)
            elif any(waits_for_time(work) for work in self._store.works.values()):
                self._wake()  # the endpoint's clock may have moved

    def _handler_ended(self, outcome: HandlerOutcome) -> None:
        with self._lock:
            self._outcomes.append(outcome)
            self._wake()

    def _approvals_ended(self, results: dict[str, str | None]) -> None:
        with self._lock:
            self._approved.update(results)
            self._wake()

    # --- One loop ---------------------------------------------------------------------------------

    def _loop_once_safely(self) -> None:
        """Run the loop once. An unexpected error must not stop the agent: other events still need it."""
        try:
            self._loop_once()
            self._last_loop_at = real_seconds()
            self._status.answer(self._make_snapshot)
        except Exception as error:  # noqa: BLE001 - one odd event must not stop the others
            # The error probably repeats every second: log it once.
            if self._logged != repr(error):
                _log.exception("loop_failed", "Unexpected error in the agent loop; retrying.")
            self._logged = repr(error)
        else:
            self._logged = ""

    def _loop_once(self) -> None:
        stuck = self._runner.fail_overdue()
        self._record_results()
        if stuck:
            _log.critical("agent_restarting", "A handler thread is stuck, so the agent restarts its process.")
            self.should_restart = self._stopping = True
        if self._events is not None:
            self._apply_document(self._events)
        elif real_seconds() - self._started_at > NO_RESPONSE_SECONDS:
            self._store.replace(assume_restarts(self._store.works, self._boot, self._client.clock.now()))
        if not self._store.save_pending():
            return  # start nothing that cannot be recorded
        while True:
            context = self._context()
            instructions = next_instructions(self._store.works, context)
            runs = any(isinstance(instruction, RunHandler) for instruction in instructions)
            self._peers.report(
                self._store.works.values(), self._client.clock.now(), busy=runs or bool(self._runner.busy)
            )
            if runs and not self._peers.may_run_handler():
                break
            if not self._runner.execute(instructions, self._approver.send):
                break
        self._log_withheld(context)
        self._forget_ended_work()

    def _apply_document(self, events: tuple[ScheduledEvent, ...]) -> None:
        me = self._client.known[1]  # no request under the lock
        if me is None:
            return
        context = DocumentContext(
            self._config.rules,
            me.listed_as,
            self._client.clock.now(),
            self._boot,
            uptime_seconds(),
            is_first=not self._has_document,
            timeouts={name: named.timeout for name, named in self._config.handlers.items()},
        )
        decision = apply_document(self._store.works, events, context)
        for news in decision.news:
            _log_news(news)
        for event in decision.ignored.values():
            if event.key not in self._ignored:
                _log.info("event_ignored", "No rule matches the event; ignoring it.", **about(event))
        self._ignored = decision.ignored
        own = {*decision.ignored, *(work.event.key for work in decision.works.values())}
        self._others = {event.key: event for event in events if event.key not in own}
        before = self._store.works
        ended = [work.id for work in decision.works.values() if work.ending and not before.get(work.id, work).ending]
        self._store.replace(decision.works)
        self._has_document = self._is_applied = True
        self._lock.notify_all()
        for event_id in ended:
            self._runner.end_early(event_id)

    def _log_withheld(self, context: DecisionContext) -> None:
        for work in self._store.works.values():
            if work.id not in self._withheld and (others := withheld_for(work, context)):
                self._withheld.add(work.id)
                _log.info(
                    "approval_withheld",
                    'The event affects other VMs too, so approve = "self" does not approve it.',
                    **about(work.event),
                    others=", ".join(others),
                )

    def _forget_ended_work(self) -> None:
        for event_id in self._known_ids - self._store.works.keys():
            self._forget(event_id)
        self._known_ids = set(self._store.works)

    def _forget(self, event_id: str) -> None:
        self._peers.forget(event_id)
        self._runner.forget(event_id)
        self._approver.forget(event_id)
        self._withheld.discard(event_id)

    def _record_results(self) -> None:
        """Record the results from the threads."""
        while self._outcomes:
            self._counts[self._runner.record(self._outcomes[0], stopping=self._stopping)] += 1
            del self._outcomes[0]  # after recording: if that fails, the next loop tries again
        while self._approved:
            event_id, problem = next(iter(self._approved.items()))
            self._counts[self._approver.record(event_id, problem)] += 1
            del self._approved[event_id]

    def _context(self) -> DecisionContext:
        return DecisionContext(
            now=self._client.clock.now(),
            seconds=real_seconds(),
            busy=self._runner.busy,
            approving=frozenset(self._approver.in_progress),
            leader_problems=self._peers.problems(),
            begun_at=self._runner.begun_at,
            undo_at=self._runner.undo_at,
            approve_at=self._approver.retry_at,
            has_document=self._has_document,
            stopping=self._stopping,
        )

    # --- Status -----------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the agent's complete status, from the loop itself.

        If the loop does not answer in time, return only what is known without it, with `loop_problem`.
        """
        return self._status.ask(self._wake_within) or self._make_snapshot_without_loop()

    def _wake_within(self, seconds: float) -> bool:
        """Wake the loop. Return False if something else has the lock for so long."""
        if not self._lock.acquire(timeout=seconds):
            return False
        try:
            self._wake()
        finally:
            self._lock.release()
        return True

    def _make_snapshot_without_loop(self) -> dict[str, Any]:
        """Return what other threads know for certain. Takes no lock."""
        problem = f"the agent's loop did not answer within {ANSWER_SECONDS:.0f} s"
        if self._logged:
            problem = f"the agent's loop fails: {self._logged}"
        elif self._stopping:
            problem = "the agent is stopping"
        return {**self._general_status(), "ready": False, "ready_reason": problem, "loop_problem": problem}

    def _make_snapshot(self) -> dict[str, Any]:
        context, works = self._context(), list(self._store.works.values())
        reason = ready_reason(works, list(self._ignored.values()), context.now, self._config)
        return {
            **self._general_status(),
            "now": to_text(context.now),
            "ready": not reason,
            "ready_reason": reason,
            "events": [
                *(describe_work(work, context) for work in works),
                *(describe_ignored(event, mine=True) for event in self._ignored.values()),
                *(describe_ignored(event, mine=False) for event in self._others.values()),
            ],
            "peers": self._peers.snapshot(),
        }

    def _general_status(self) -> dict[str, Any]:
        seconds, (endpoint, me) = real_seconds(), self._client.known
        return {
            "vm": None if me is None else me.name,
            "vm_from": None if me is None else me.origin,
            "endpoint": None if endpoint is None else endpoint.url,
            "endpoint_from": None if endpoint is None else endpoint.origin,
            "config": self._config.source,
            "dry_run": self._options.dry_run,
            "uptime_seconds": round(seconds - self._started_at, 1),
            "seconds_since_last_loop": round(seconds - self._last_loop_at, 1),
            "polling": self._poller.status(),
            "counts": {name: self._counts[name] for name in COUNTS},
        }


def _log_news(news: EventNews) -> None:
    event = about(news.event)
    if news.kind == NEW and not has_started(news.event):
        _log.info("event_scheduled", "Event scheduled.", **event, rule=news.rule)
    elif news.kind == NEW:
        _log.info("event_started", "Event started.", **event, rule=news.rule)
    elif news.kind == STARTED:
        _log.info("event_started", "Event started.", **event)
    elif news.kind == MISSED:
        _log.info("event_missed", "The event started before this machine booted; nothing to prepare.", **event)
    elif news.kind == RETURNED:
        _log.info("machine_returned", "This machine has restarted because of the event.", **event)
    elif news.kind == RESTARTED:
        _log.info("machine_restarted", "This machine has restarted before the event; preparing again.", **event)
    elif news.kind == LATER:
        not_before, restores = to_text_if_any(news.event.not_before, "seconds"), bool(news.reason)
        _log.info("event_postponed", "Event postponed.", **event, not_before=not_before, restores=restores)
    elif news.kind == RESUMED:
        _log.info("restore_stopped", "The postponed event is due before everything is undone; preparing.", **event)
    elif news.kind == RENAMED:
        _log.info("event_id_changed", "The endpoint has changed the id of the event.", **event, old_id=news.reason)
    elif news.kind == FOLLOWED:
        _log.info(
            "eviction_followed", "An eviction follows the recommendation; staying prepared.", **event, by=news.reason
        )
    elif news.reason == CANCELLED:
        _log.info("event_cancelled", "Event cancelled.", **event)
    else:
        _log.info("event_completed", "Event completed.", **event)


COUNTS = ("prepared", "prepare failed", "undone", "undo failed", "approved", "approve failed")
