"""State shared by the checks of one run: endpoints, hook commands, and what the server has returned."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from threading import current_thread, main_thread
from typing import IO, TYPE_CHECKING, Any, Self

from forewarn.clock import real_seconds
from forewarn.verify.check import CheckSkipped, EventMissing, Requirement
from forewarn.verify.endpoint import INSTANCE_PATH, NEWEST, pause, target_for
from forewarn.verify.exchange import METADATA_TRUE
from forewarn.verify.snapshot import SCHEDULED, Snapshot, parse_date, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from forewarn.verify.endpoint import TargetEndpoint
    from forewarn.verify.exchange import HttpConnection, HttpResponse

    T = TypeVar("T")


EVENT_TYPES = ("Reboot", "Redeploy", "Freeze", "Terminate", "Preempt")
"""Every type a schedule command can be run for. Types with a short notice come last."""
_POLL_INTERVAL_SECONDS = 0.25
_RECENT_SECONDS = 3.0
_MAX_NAME_LENGTH = 256


class Session:
    """One run of the checks."""

    def __init__(
        self,
        endpoint: TargetEndpoint,
        hooks: HookCommands,
        *,
        same_group: TargetEndpoint | None = None,
        other_group: TargetEndpoint | None = None,
        vm: str = "",
        max_wait_seconds: float = 0.0,
        reaction_seconds: float = 10.0,
        slow_client_seconds: float = 60.0,
    ) -> None:
        self.endpoint = endpoint
        self.same_group = same_group
        self.other_group = other_group
        self.hooks = hooks
        self.max_wait_seconds = max_wait_seconds
        self.reaction_seconds = reaction_seconds
        """How long to poll for a change that does not depend on the server's clock."""
        self.slow_client_seconds = slow_client_seconds
        """The server must close the connection of a client that does not finish its request within this time."""
        self.snapshots: list[tuple[str, Snapshot]] = []
        """Every document returned by `endpoint` since the service was enabled, with its api-version."""
        self.scheduled: dict[str, str] = {}
        """Events that the schedule command created, without recommendations: id to type."""
        self.approved: set[str] = set()
        self.slow_connection: tuple[HttpConnection, float] | None = None
        """A connection with an unfinished request, and its start time."""
        self._vm = vm
        self._schedule_timeout_seconds = max(reaction_seconds, max_wait_seconds)
        """How long to poll for a new event. Reduced after one did not appear."""
        self._cache: dict[str, Any] = {}
        self._values: dict[bytes, dict[str, Any]] = {}
        self._latest: tuple[Snapshot, float] | None = None

    # --- The server -------------------------------------------------------------------------------

    @property
    def vm(self) -> str:
        """The name of the VM that `endpoint` belongs to."""
        self._vm = self._vm or self.vm_name(self.endpoint)
        return self._vm

    def vm_name(self, endpoint: TargetEndpoint) -> str:
        """Return the name of the VM that this endpoint belongs to, as the server knows it."""
        target = target_for("2021-02-01", f"{INSTANCE_PATH}/compute/name") + "&format=text"
        response = endpoint.request(target=target)
        valid = response.status == 200 and len(response.body) <= _MAX_NAME_LENGTH
        name = response.body.decode("utf-8", "replace").strip() if valid else ""
        if not name or not name.isprintable():
            hint = "; give --vm-name" if endpoint is self.endpoint else f" at {endpoint.url}"
            raise CheckSkipped(f"/metadata/instance/compute/name does not return the VM's name{hint}")
        return name

    @property
    def endpoints(self) -> list[TargetEndpoint]:
        """All endpoints of this run."""
        return [each for each in (self.endpoint, self.same_group, self.other_group) if each is not None]

    def has(self, requirement: Requirement) -> bool:
        """Return whether the options provide this requirement."""
        return {
            Requirement.SCHEDULE: bool(self.hooks.schedule),
            Requirement.CANCEL: bool(self.hooks.cancel),
            Requirement.TIME: bool(self.hooks.advance) or self.max_wait_seconds > 0,
            Requirement.ADVANCE: bool(self.hooks.advance),
            Requirement.SAME_GROUP: self.same_group is not None,
            Requirement.OTHER_GROUP: self.other_group is not None,
        }[requirement]

    def cached(self, name: str, function: Callable[[Session], T]) -> T:
        """Call the function once per run. Return its result, or raise its exception, on every call."""
        if name not in self._cache:
            try:
                self._cache[name] = function(self)
            except Exception as error:
                self._cache[name] = error
                raise
        found = self._cache[name]
        if isinstance(found, Exception):
            raise found
        result: T = found
        return result

    def close(self) -> None:
        """Close what the checks left open."""
        if self.slow_connection is not None:
            self.slow_connection[0].socket.close()

    # --- Poll and approve -------------------------------------------------------------------------

    def poll(self, version: str = NEWEST, *, endpoint: TargetEndpoint | None = None) -> Snapshot:
        """Return the current document."""
        polled = endpoint or self.endpoint
        response = polled.request(target=target_for(version))
        # Parse equal bodies once: there may be many large ones.
        snapshot = Snapshot(response, self._values.setdefault(response.body, read(response).value))
        if polled is self.endpoint:
            self.snapshots.append((version, snapshot))
            self._latest = (snapshot, real_seconds()) if version == NEWEST else self._latest
        return snapshot

    def recent(self) -> Snapshot:
        """Return the last document if it is fresh and nothing was changed since; otherwise poll.

        This saves requests, because the server may limit their rate.
        """
        if self._latest is not None and real_seconds() - self._latest[1] < _RECENT_SECONDS:
            return self._latest[0]
        return self.poll()

    def poll_until(
        self,
        condition: Callable[[Snapshot], bool],
        seconds: float | None = None,
        endpoint: TargetEndpoint | None = None,
        version: str = NEWEST,
    ) -> Snapshot:
        """Poll until the condition holds or the time is over. Return the last document."""
        deadline = real_seconds() + (self.reaction_seconds if seconds is None else seconds)
        while not condition(snapshot := self.poll(version, endpoint=endpoint)) and real_seconds() < deadline:
            pause(_POLL_INTERVAL_SECONDS)
        return snapshot

    def approve(self, *ids: str, endpoint: TargetEndpoint | None = None, version: str = NEWEST) -> HttpResponse:
        """Approve events and return the response."""
        self._latest = None
        response = (endpoint or self.endpoint).request("POST", target_for(version), METADATA_TRUE, approval(*ids))
        self.approved |= set(ids)
        return response

    # --- Hook commands ----------------------------------------------------------------------------

    def schedule(self, event_type: str, version: str = NEWEST) -> tuple[Snapshot, Snapshot, str]:
        """Schedule an event. Return the document before it, the first document with it, and the event's id."""
        before = self.poll(version)
        self._latest = None
        self.hooks.run(self.hooks.schedule, FOREWARN_EVENT_TYPE=event_type, FOREWARN_VM=self.vm)

        def new_ids(snapshot: Snapshot) -> list[str]:
            return [
                str(event.get("EventId"))
                for event in snapshot.events
                if event.get("EventType") == event_type and event.get("EventId") not in before.ids
            ]

        first = self.poll_until(
            lambda snapshot: bool(new_ids(snapshot)), self._schedule_timeout_seconds, version=version
        )
        if not new_ids(first):
            self._schedule_timeout_seconds = min(self._schedule_timeout_seconds, self.reaction_seconds / 10)
            raise EventMissing(
                f"the command succeeded for {event_type}, but the document shows no new {event_type}; "
                "see life/event-appears"
            )
        event_id = new_ids(first)[0]
        if event_type in EVENT_TYPES:
            self.scheduled[event_id] = event_type
        return before, first, event_id

    def schedule_first_of(self, *types: str) -> tuple[Snapshot, Snapshot, str]:
        """Schedule an event of the first of these types that the command supports."""
        reasons = []
        for event_type in types:
            try:
                return self.schedule(event_type)
            except EventMissing:
                raise
            except CheckSkipped as skipped:
                reasons.append(str(skipped))
        raise CheckSkipped("; ".join(reasons))

    def sample(self, event_type: str) -> tuple[Snapshot, Snapshot, str]:
        """Return the result of `schedule` for this type. It is called once per run; later calls return the same."""
        return self.cached(f"sample {event_type}", lambda session: session.schedule(event_type))

    def document_with_events(self) -> Snapshot:
        """Return a document with at least one event. Schedule one if necessary."""
        snapshot = self.recent()
        if snapshot.events:
            return snapshot
        if not self.hooks.schedule:
            raise CheckSkipped(f"the document has no events: give {Requirement.SCHEDULE}")
        try:
            _, snapshot, _ = self.schedule_first_of(*EVENT_TYPES)
        except EventMissing:
            snapshot = self.poll()
            if not snapshot.events:  # the server may show an event of another type
                raise
        return snapshot

    def unapproved_event(self) -> str:
        """Return the id of an event of this run that is Scheduled and not approved. Schedule one if necessary."""
        snapshot = self.recent()
        # Other types may move or delete the VM.
        mildest = min(self.scheduled.values(), key=EVENT_TYPES.index, default="")
        for event_id, event_type in self.scheduled.items():
            if event_id not in self.approved and event_type == mildest and snapshot.status(event_id) == SCHEDULED:
                return event_id
        _, first, event_id = self.schedule_first_of(*EVENT_TYPES)
        if first.status(event_id) != SCHEDULED:
            raise CheckSkipped("the new event is not Scheduled, so it cannot be approved")
        return event_id

    def approved_event(self) -> str:
        """Return the id of an event in the document that was approved. Approve one if necessary."""
        if known := self.approved & self.recent().ids:
            return min(known)
        event_id = self.unapproved_event()
        response = self.approve(event_id)
        response.expect(response.status == 200, "200 for the approval of a scheduled event")
        return event_id

    def cancel(self, event_id: str) -> None:
        """Run the command that cancels an event."""
        self._latest = None
        self.hooks.run(self.hooks.cancel, FOREWARN_EVENT_ID=event_id)

    def cancel_scheduled(self) -> None:
        """Cancel leftover events of this run, so that they do not start while time advances."""
        if not self.hooks.cancel:
            return
        snapshot = self.poll()
        for event_id in [known for known in self.scheduled if snapshot.status(known) == SCHEDULED]:
            # An event that cannot be cancelled does no harm: checks look at ids.
            with suppress(CheckSkipped):
                self.cancel(event_id)

    def advance(self, seconds: float, condition: Callable[[Snapshot], bool] | None = None) -> None:
        """Advance the server's time. Without an advance command, wait: for the condition, if there is one."""
        self._latest = None
        whole = max(int(seconds), 0)
        if self.hooks.advance:
            self.hooks.run(self.hooks.advance, FOREWARN_SECONDS=str(whole))
        elif condition is None:
            if seconds > self.max_wait_seconds:
                raise CheckSkipped(f"this takes {whole} s: give {Requirement.ADVANCE}, or --max-wait {whole}s or more")
            pause(seconds)
        else:
            self.poll_until(condition, min(seconds + self.reaction_seconds, self.max_wait_seconds))

    def remaining_notice(self, snapshot: Snapshot, event_id: str, since: Snapshot | None = None) -> float:
        """Return the seconds from the server's time in `since` (default: `snapshot`) to the event's NotBefore."""
        event = snapshot.event(event_id) or {}
        not_before, now = parse_date(event.get("NotBefore")), (since or snapshot).now
        if not_before is None or now is None:
            raise CheckSkipped(
                "NotBefore or the header Date is not a date; see document/not-before-format, requests/date-header"
            )
        return (not_before - now).total_seconds()


def approval(*ids: str, **members: Any) -> bytes:
    """Return the body of an approval, with additional members."""
    return json.dumps({**members, "StartRequests": [{"EventId": event_id} for event_id in ids]}).encode()


# --- Commands -------------------------------------------------------------------------------------


_OUTPUT_TAIL_BYTES = 4096
_SHELL_SIGNAL_BASE = 128
"""A shell exits with this number plus the signal that ended its command."""


@dataclass(frozen=True)
class HookCommands:
    """Shell commands of the user. An empty command is not given."""

    schedule: str = ""
    cancel: str = ""
    advance: str = ""
    timeout_seconds: float = 120.0
    timed_out: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Commands that did not end in time and are not run again: (purpose, event type) to the reason."""

    def run(self, command: str, **variables: str) -> None:
        """Run a command in the shell. If it fails, skip the check; the reason is its last line of output."""
        shown = " ".join(f"{name}={value}" for name, value in variables.items())
        use = (*variables, variables.get("FOREWARN_EVENT_TYPE", ""))
        if use in self.timed_out:
            raise CheckSkipped(self.timed_out[use])
        # A file, not a pipe: a background process of the command could keep a pipe open.
        with TemporaryFile() as output, _DeferredSignals() as deferred:
            # Its own session, so that all of its processes can be killed.
            process = subprocess.Popen(  # noqa: S602 - the user gives the command for the shell
                command,
                shell=True,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                deferred.release()
                code = process.wait(self.timeout_seconds)
            except subprocess.TimeoutExpired:
                _kill(process)
                reason = f"the command did not end within {self.timeout_seconds:g} s and is not run again ({shown})"
                self.timed_out[use] = reason
                raise CheckSkipped(reason) from None
            except BaseException:
                _kill(process)
                raise
            if code:
                raise CheckSkipped(f"the command failed ({shown}): {_failure_reason(code, output)}")


class _DeferredSignals:
    """Holds SIGINT and SIGTERM back while a command starts, so that its process can always be killed."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if current_thread() is main_thread():  # only the main thread receives signals and may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if callable(handler := signal.getsignal(number)):
                    self._handlers[number] = handler
                    signal.signal(number, lambda received, _: self._received.append(received))
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def release(self) -> None:
        """Restore the handlers. Raise KeyboardInterrupt if a signal was held back."""
        self._restore()
        if self._received:
            raise KeyboardInterrupt

    def _restore(self) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failure_reason(code: int, output: IO[bytes]) -> str:
    """Return the signal that ended the command, if any, and its last line of output."""
    output.seek(max(output.seek(0, os.SEEK_END) - _OUTPUT_TAIL_BYTES, 0))
    text = output.read(_OUTPUT_TAIL_BYTES).decode("utf-8", "backslashreplace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = "".join(filter(str.isprintable, lines[-1])) if lines else ""
    names = {known.value: known.name for known in signal.Signals}
    ended = ""
    if -code in names:
        ended = f"killed by {names[-code]}"
    elif code - _SHELL_SIGNAL_BASE in names:
        ended = f"exit code {code}, as after {names[code - _SHELL_SIGNAL_BASE]}"
    return ": ".join(filter(None, (ended, last))) or f"exit code {code}"
