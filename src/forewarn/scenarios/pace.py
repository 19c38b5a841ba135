"""Passes the time of a run: moves a virtual clock, at full speed or at a given one, or waits for the system clock."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING

from forewarn.clock import real_seconds
from forewarn.core.durations import format_duration, from_text, parse_duration
from forewarn.core.limits import OperatorLimits
from forewarn.errors import EventsNotEnabled, NotFound
from forewarn.scenarios.service import members

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forewarn.core.scenarios import RunOptions
    from forewarn.scenarios.service import ControlAPI


POLL_SECONDS = 0.2
"""Interval between requests while the run waits for the system clock."""
MOVE_INTERVAL_SECONDS = 0.1
"""Interval between moves of a virtual clock, if the run has a speed."""
GRACE = timedelta(seconds=10)
"""Additional time for the service's own work, if the clock does not wait for it."""
ROUNDING = timedelta(seconds=1)
"""NotBefore is rounded up to whole seconds."""
NO_TIME = timedelta(0)


class RunStopped(Exception):
    """The run was stopped."""


class Pace:
    """The time of the service, and how it passes for one run. The run's groups stay enabled meanwhile."""

    def __init__(self, client: ControlAPI, options: RunOptions, scopes: Mapping[str, str]) -> None:
        """`scopes` has the scope of each VM. Raise an error for a VM that gets no notices."""
        self._client = client
        self._options = options
        self._scopes = scopes
        self._stopping = Event()
        self.is_moving_clock = False
        """Whether a request is in progress that can wait for VMs. It can be interrupted."""
        self.read()
        self.virtual = self._clock["clock"] == "virtual"
        self.request_speed = 1.0 if self.virtual or options.speed is None else options.speed
        """Divisor of all requested durations. It is 1 with a virtual clock, which moves faster instead."""
        settings = {setting["name"]: setting["value"] for setting in client.get("settings")["settings"]}
        limits = OperatorLimits(speed=self._clock["speed"])
        self.quicken = limits.at(self.request_speed).quicken
        self._inactivity_timeout = limits.quicken(parse_duration(settings["inactivity_timeout"]))
        self._enabled_at: datetime | None = None
        self._last_moved = real_seconds()
        self.idle_at: datetime | None = None
        """The time at which nothing was due."""
        if options.seen_by:  # wait until they poll
            self._move(NO_TIME)
        self._enable_vms()

    @property
    def now(self) -> datetime:
        return from_text(self._clock["now"])

    def read(self) -> None:
        """Read the clock."""
        self._clock = self._client.get("clock")

    def stop(self) -> None:
        """Let the run end soon. Can be called from another thread, or from a signal handler."""
        self._stopping.set()

    def raise_if_stopped(self) -> None:
        """Raise RunStopped if the run must stop."""
        if self._stopping.is_set():
            raise RunStopped

    def deadline(self, duration: timedelta) -> datetime:
        """Return the time by which something with this maximum duration must have happened."""
        return self.now + self.quicken(duration) + (ROUNDING if self.virtual else ROUNDING + GRACE)

    def pass_time(self, left: timedelta) -> None:
        """Let some time pass, at most this."""
        if not self.virtual:
            if self._options.enable:
                self._keep_enabled()
            self._stopping.wait(min(left.total_seconds(), POLL_SECONDS))
        elif self._options.speed is None:
            self._move_to_next(left)
        else:
            self._move_at_speed(self._options.speed, left)

    def _move_to_next(self, left: timedelta) -> None:
        """Move to the time at which something is due."""
        due = self._clock["next_due"]
        if due is None and self.idle_at != self.now:
            # Work has just started. Its end is known when the fabric has done it.
            self.idle_at = self.now
            self._move(NO_TIME)
        else:
            self._move(min(left, self._inactivity_timeout / 2, from_text(due["time"]) - self.now if due else left))

    def _move_at_speed(self, speed: float, left: timedelta) -> None:
        """Move by whole seconds only: with fractions, NotBefore would be rounded up each time."""
        due_seconds = int((real_seconds() - self._last_moved) * speed)
        if due_seconds < 1:
            self._stopping.wait(max(1 / speed, MOVE_INTERVAL_SECONDS) if speed < 1 else MOVE_INTERVAL_SECONDS)
            return
        self._last_moved += due_seconds / speed
        self._move(min(left, timedelta(seconds=due_seconds)))
        # Do not catch up on the time spent waiting for VMs: they would miss the steps in between.
        if self._options.seen_by:
            self._last_moved = real_seconds()

    def _move(self, duration: timedelta) -> None:
        if self._enabled_at is not None:
            self._keep_enabled()
        self.is_moving_clock = True
        try:
            body = members(by=duration, seen_by=self._options.seen_by)
            self._clock = self._client.post("clock", "advance", body=body)
        except KeyboardInterrupt:
            raise RunStopped from None
        finally:
            self.is_moving_clock = False

    # --- Enabled groups -----------------------------------------------------------------------------

    def _enable_vms(self) -> None:
        """Enable the VMs if requested. Raise an error for a VM that gets no notices."""
        if self._options.enable:
            self._enable()
        for name in {scope: name for name, scope in self._scopes.items()}.values():
            found = self._client.get("vms", name)
            if not found["events_enabled"]:
                raise EventsNotEnabled(reason=self._reason_not_enabled(found["scope"], found["last_seen_at"]))
        if self.virtual:
            self._enable()

    def _reason_not_enabled(self, scope: str, last_seen_at: str | None) -> str:
        if last_seen_at is None:
            return f"{scope} has never polled"
        silence = self.now - from_text(last_seen_at)
        if silence >= self._inactivity_timeout:
            return f"{scope} has not polled for {format_duration(silence)}"
        return f"{scope} was disabled by a fault and has not polled since"

    def _keep_enabled(self) -> None:
        """Count the VMs as polled before they are inactive: nobody can poll as fast as a run moves the clock."""
        if self._enabled_at is None or self.now - self._enabled_at >= self._inactivity_timeout / 2:
            self._enable()

    def _enable(self) -> None:
        done = set()
        for name, scope in self._scopes.items():
            if scope not in done:
                with suppress(NotFound):  # it has left the fleet
                    self._client.post("vms", name, "enable")
                    done.add(scope)
        self._enabled_at = self.now
