"""What the checks of one run share: the server under test, the commands that change it, and what was seen."""

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
from forewarn.verify.check import Need, NotTold, Skip
from forewarn.verify.endpoint import INSTANCE, NEWEST, at, pause
from forewarn.verify.exchange import TRUE
from forewarn.verify.snapshot import SCHEDULED, Snapshot, moment, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from forewarn.verify.endpoint import Endpoint
    from forewarn.verify.exchange import Line, Reply

    T = TypeVar("T")


TYPES = ("Reboot", "Redeploy", "Freeze", "Terminate", "Preempt")
"""Every type that can be asked for; those that leave the least time come last."""
_LOOK_SECONDS = 0.25
_MOMENT_SECONDS = 3.0
_LONGEST_NAME = 256


class Session:
    """One run of the checks."""

    def __init__(
        self,
        here: Endpoint,
        hooks: Hooks,
        *,
        other: Endpoint | None = None,
        outside: Endpoint | None = None,
        vm: str = "",
        patience_seconds: float = 0.0,
        prompt_seconds: float = 10.0,
        slow_seconds: float = 60.0,
    ) -> None:
        self.here = here
        self.other = other
        self.outside = outside
        self.hooks = hooks
        self.patience_seconds = patience_seconds
        self.prompt_seconds = prompt_seconds
        """What needs no time to pass on the server's clock is seen within this."""
        self.slow_seconds = slow_seconds
        """A client that does not finish its request is given up by then."""
        self.snapshots: list[tuple[str, Snapshot]] = []
        """Every document that was seen here since the service was enabled, with its version."""
        self.made: dict[str, str] = {}
        """The types of the events that were made, by id."""
        self.approved: set[str] = set()
        self.slow: tuple[Line, float] | None = None
        """A connection with half of a request, and since when it is there."""
        self._vm = vm
        self._telling_seconds = max(prompt_seconds, patience_seconds)
        """How long an event that was made is looked for; once one was not found, there is little use in waiting."""
        self._once: dict[str, Any] = {}
        self._values: dict[bytes, dict[str, Any]] = {}
        self._seen: tuple[Snapshot, float] | None = None

    # --- The server -------------------------------------------------------------------------------

    @property
    def vm(self) -> str:
        """The name of the VM that asks here."""
        if not self._vm:
            reply = self.here.ask(target=at("2021-02-01", f"{INSTANCE}/compute/name") + "&format=text")
            named = reply.status == 200 and len(reply.body) <= _LONGEST_NAME
            name = reply.body.decode("utf-8", "replace").strip() if named else ""
            self._vm = name if name.isprintable() else ""
        if not self._vm:
            raise Skip("the VM's name is not known: /metadata/instance/compute/name does not tell it; give --vm-name")
        return self._vm

    @property
    def places(self) -> list[Endpoint]:
        """All endpoints that serve documents."""
        return [place for place in (self.here, self.other, self.outside) if place is not None]

    def has(self, need: Need) -> bool:
        """Whether a check that needs this can be made."""
        return {
            Need.SCHEDULE: bool(self.hooks.schedule),
            Need.CANCEL: bool(self.hooks.cancel),
            Need.TIME: bool(self.hooks.advance) or self.patience_seconds > 0,
            Need.ADVANCE: bool(self.hooks.advance),
            Need.OTHER: self.other is not None,
            Need.OUTSIDE: self.outside is not None,
        }[need]

    def once(self, name: str, course: Callable[[Session], T]) -> T:
        """The result of a course of events, which runs once, however it ends."""
        if name not in self._once:
            try:
                self._once[name] = course(self)
            except Exception as end:
                self._once[name] = end
                raise
        found = self._once[name]
        if isinstance(found, Exception):
            raise found
        result: T = found
        return result

    def close(self) -> None:
        """The run is over."""
        if self.slow is not None:
            self.slow[0].socket.close()

    # --- Looking and approving --------------------------------------------------------------------

    def look(self, version: str = NEWEST, *, place: Endpoint | None = None) -> Snapshot:
        """The document as it is now."""
        asked = place or self.here
        reply = asked.ask(target=at(version))
        # Read once for all answers that are the same: there may be many, and large ones.
        snapshot = Snapshot(reply, self._values.setdefault(reply.body, read(reply).value))
        if asked is self.here:
            self.snapshots.append((version, snapshot))
            self._seen = (snapshot, real_seconds()) if version == NEWEST else self._seen
        return snapshot

    def seen(self) -> Snapshot:
        """The document as it was a moment ago, if nothing was done since: a server may limit requests."""
        if self._seen is not None and real_seconds() - self._seen[1] < _MOMENT_SECONDS:
            return self._seen[0]
        return self.look()

    def look_for(
        self, seen: Callable[[Snapshot], bool], seconds: float | None = None, place: Endpoint | None = None
    ) -> Snapshot:
        """The first document for which it holds, or the last one in that time."""
        end = real_seconds() + (self.prompt_seconds if seconds is None else seconds)
        while not seen(snapshot := self.look(place=place)) and real_seconds() < end:
            pause(_LOOK_SECONDS)
        return snapshot

    def approve(self, *ids: str, place: Endpoint | None = None, version: str = NEWEST) -> Reply:
        """The answer to a plain approval."""
        self._seen = None
        reply = (place or self.here).ask("POST", at(version), TRUE, approval(*ids))
        self.approved |= set(ids)
        return reply

    # --- Making things happen ---------------------------------------------------------------------

    def schedule(self, event_type: str) -> tuple[Snapshot, Snapshot, str]:
        """Have such an event made: the document before it, the first with it, and its id."""
        before = self.look()
        self.hooks.run(self.hooks.schedule, FOREWARN_EVENT_TYPE=event_type, FOREWARN_VM=self.vm)

        def new(snapshot: Snapshot) -> list[str]:
            return [
                str(event.get("EventId"))
                for event in snapshot.events
                if event.get("EventType") == event_type and event.get("EventId") not in before.ids
            ]

        told = self.look_for(lambda snapshot: bool(new(snapshot)), self._telling_seconds)
        if not new(told):
            self._telling_seconds = min(self._telling_seconds, self.prompt_seconds / 10)
            raise NotTold(f"the command made a {event_type}, but no new one is in the document; see life/told")
        event_id = new(told)[0]
        self.made[event_id] = event_type
        return before, told, event_id

    def schedule_any(self, *types: str) -> tuple[Snapshot, Snapshot, str]:
        """Have an event made of the first of these types that can be made."""
        reasons = []
        for event_type in types:
            try:
                return self.schedule(event_type)
            except NotTold:
                raise
            except Skip as skip:
                reasons.append(str(skip))
        raise Skip("; ".join(reasons))

    def sample(self, event_type: str) -> tuple[Snapshot, Snapshot, str]:
        """An event of this type, made once: the document before it, the first with it, and its id."""
        return self.once(f"sample {event_type}", lambda session: session.schedule(event_type))

    def told(self) -> Snapshot:
        """A document with an event in it: as it is now, or after one was made."""
        snapshot = self.seen()
        if snapshot.events:
            return snapshot
        if not self.hooks.schedule:
            raise Skip(f"the document has no events: give {Need.SCHEDULE}")
        try:
            _, snapshot, _ = self.schedule_any(*TYPES)
        except NotTold:
            snapshot = self.look()
            if not snapshot.events:  # what is there may be of a type that nobody asked for
                raise
        return snapshot

    def waiting(self, *unlike: str) -> str:
        """The id of an event of ours that is scheduled, and that nobody has approved."""
        snapshot = self.seen()
        gentlest = min(self.made.values(), key=TYPES.index, default="")  # others move the VM away, or end it
        for event_id, event_type in self.made.items():
            fresh = event_id not in self.approved and event_id not in unlike
            if fresh and event_type == gentlest and snapshot.status(event_id) == SCHEDULED:
                return event_id
        _, told, event_id = self.schedule_any(*TYPES)
        if told.status(event_id) != SCHEDULED:
            raise Skip("the event that was made is not Scheduled, so nothing of it can be approved")
        return event_id

    def taken(self) -> str:
        """The id of an event that is there and has been approved."""
        if known := self.approved & self.seen().ids:
            return min(known)
        event_id = self.waiting()
        reply = self.approve(event_id)
        reply.must(reply.status == 200, "200 to a plain approval of a scheduled event")
        return event_id

    def cancel(self, event_id: str) -> None:
        """Run the command that cancels an event."""
        self._seen = None
        self.hooks.run(self.hooks.cancel, FOREWARN_EVENT_ID=event_id)

    def clear(self) -> None:
        """Withdraw what is scheduled and nobody waits for, so that it does not start while time is moved."""
        if not self.hooks.cancel:
            return
        snapshot = self.look()
        for event_id in [known for known in self.made if snapshot.status(known) == SCHEDULED]:
            try:
                self.cancel(event_id)
            except Skip:
                continue  # it stays, and is told apart by its id

    def pass_time(self, seconds: float, seen: Callable[[Snapshot], bool] | None = None) -> None:
        """Let that much of the server's time pass; where it cannot be moved, wait until something is seen."""
        self._seen = None
        whole = max(int(seconds), 0)
        if self.hooks.advance:
            self.hooks.run(self.hooks.advance, FOREWARN_SECONDS=str(whole))
        elif seen is None:
            if seconds > self.patience_seconds:
                raise Skip(f"it takes {whole} s: give {Need.ADVANCE}, or --patience {whole}s or more")
            pause(seconds)
        else:
            self.look_for(seen, min(seconds + self.prompt_seconds, self.patience_seconds))

    def notice_left(self, snapshot: Snapshot, event_id: str, since: Snapshot | None = None) -> float:
        """How many seconds there are until NotBefore, from the server's now or from an earlier one."""
        event = snapshot.event(event_id) or {}
        not_before, now = moment(event.get("NotBefore")), (since or snapshot).now
        if not_before is None or now is None:
            raise Skip(
                "NotBefore or the header Date cannot be read; see document/not-before-form, requests/date-header"
            )
        return (not_before - now).total_seconds()


def approval(*ids: str, **members: Any) -> bytes:
    """The body of an approval, with more members if wanted."""
    return json.dumps({**members, "StartRequests": [{"EventId": event_id} for event_id in ids]}).encode()


# --- Commands -------------------------------------------------------------------------------------


_TAIL = 4096
"""How many bytes of what a command has printed are looked at, the last ones."""
_SHELL_ADDS = 128
"""A shell whose command was ended by a signal exits with this and the signal's number."""


@dataclass(frozen=True)
class Hooks:
    """Commands for the shell that the user gives; an empty one is not given."""

    schedule: str = ""
    cancel: str = ""
    advance: str = ""
    longest_seconds: float = 120.0
    stuck: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Why a command is not run again: it did not end in time. By what it is for, and the type of event."""

    def run(self, command: str, **variables: str) -> None:
        """Run a command in the shell. If it does not exit with 0, its last output is the reason for a skip."""
        what = " ".join(f"{name}={value}" for name, value in variables.items())
        use = (*variables, variables.get("FOREWARN_EVENT_TYPE", ""))
        if use in self.stuck:
            raise Skip(self.stuck[use])
        # A file, not a pipe: what the command leaves running in the background may keep it open.
        with TemporaryFile() as output, _Deferred() as deferred:
            # The user gives the command, for the shell. A session of its own, so that all of it can be ended.
            process = subprocess.Popen(  # noqa: S602
                command,
                shell=True,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                deferred.take()
                code = process.wait(self.longest_seconds)
            except subprocess.TimeoutExpired:
                _end(process)
                reason = f"the command did not end within {self.longest_seconds:g} s ({what}), and is not run again"
                self.stuck[use] = reason
                raise Skip(reason) from None
            except BaseException:
                _end(process)
                raise
            if code:
                raise Skip(f"the command cannot ({what}): {_reason(code, output)}")


class _Deferred:
    """Signals that come while a command is being started are taken once it is known: else nobody could end it."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if current_thread() is main_thread():  # no other may, and no other is interrupted
            for number in (signal.SIGINT, signal.SIGTERM):
                if callable(handler := signal.getsignal(number)):
                    self._before[number] = handler
                    signal.signal(number, lambda came, _: self._came.append(came))
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def take(self) -> None:
        """From now on they are taken at once."""
        self._restore()
        if self._came:
            raise KeyboardInterrupt

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _reason(code: int, output: IO[bytes]) -> str:
    """Why a command has failed: what it said last, and which signal ended it."""
    output.seek(max(output.seek(0, os.SEEK_END) - _TAIL, 0))
    said = output.read(_TAIL).decode("utf-8", "backslashreplace")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = "".join(filter(str.isprintable, lines[-1])) if lines else ""
    names = {known.value: known.name for known in signal.Signals}
    ended = ""
    if -code in names:
        ended = f"ended by {names[-code]}"
    elif code - _SHELL_ADDS in names:
        ended = f"exit code {code}, as after {names[code - _SHELL_ADDS]}"
    return ": ".join(filter(None, (ended, last))) or f"exit code {code}"
