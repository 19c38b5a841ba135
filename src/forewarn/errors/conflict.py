"""What is right in itself, at the wrong moment."""

from __future__ import annotations

from forewarn.errors.families import Conflict


class AlreadyStarted(Conflict):
    """Event {event_id} has started: it can no longer be cancelled or postponed."""


class AlreadyOver(Conflict):
    """Event {event_id} is over ({status}): nothing more can be done to it."""


class TooEarly(Conflict):
    """Event {event_id} is not approved and may not start before {not_before}."""


class NotStarted(Conflict):
    """Event {event_id} has not started yet, so it cannot be over."""


class ClockBusy(Conflict):
    """Somebody else is moving the clock, and waits for {vms} to take in each step. Wait for that, or have it ended."""


class NeverStarted(Conflict):
    """Event {event_id} has not started at its NotBefore: it is {status}. An operation waits for all groups on its host,
    and for maintenance windows; a cancelled one never starts."""


class NobodyTold(Conflict):
    """{vm} would not be told of this {cause}: {problem}. Nothing was done. If it is to happen without
    notice, use ask()."""


class VMHasLiveEvent(Conflict):
    """{vms} would leave or change group with a live event ({events}). Wait, cancel the events, or apply
    with --force, which ends them."""


class TokenExists(Conflict):
    """There is a token {name!r} already. Choose another name, or revoke that one first."""


class LastAdmin(Conflict):
    """{name!r} is the last admin token that does not expire: without it nobody could manage the service. Create
    another first."""


class KeyReused(Conflict):
    """The Idempotency-Key {key!r} was used for another request within the last day. Choose a new key for a new
    request."""


class CannotPostpone(Conflict):
    """Event {event_id} cannot be postponed: {problem}"""


class OperationNotSo(Conflict):
    """Operation {operation_id} is {progress}: {problem}"""


class VMDeallocated(Conflict):
    """{vm} is deallocated. Start it first: forewarn vm start {vm}"""


class VMRunning(Conflict):
    """{vm} is running: only a deallocated VM can be started."""


class AlreadyComing(Conflict):
    """This is about to happen to {vm} already: {cause}, operation {operation_id}. Wait for it, or cancel it."""


class TooManyPending(Conflict):
    """{group} has {most} operations of users pending, and more are not allowed. Wait for one, approve or cancel it."""


class NoHostFits(Conflict):
    """No host fits {vm}: none is in use, without work on it, and holds only the same domains of its group. Add a
    host to the fleet file, or return one with: forewarn host return NAME"""


class NoCommonWindow(Conflict):
    """The maintenance windows of {groups} have no moment in common in the next weeks{host}. Change one of them, or
    insist with --override-windows."""

    def __init__(self, *, groups: str, host: str) -> None:
        super().__init__(groups=groups, host=f" (they share {host})" if host else "")


class RolloutOverlaps(Conflict):
    """{hosts} is already being walked by rollout {rollout_id}. Wait for it, or cancel it."""


class NothingToWalk(Conflict):
    """Every host that matches {patterns!r} is out of use. Return one first: forewarn host return NAME"""


class RolloutNotSo(Conflict):
    """Rollout {rollout_id} is {stage}: it cannot be {what}."""


class WorkFailed(Conflict):
    """The work could not be done: {problem}"""


class OnItsWay(Conflict):
    """{vm} is on its way to {host} (operation {operation_id}), where the file now has {tenant} of another domain or
    zone. Wait until it has arrived, or put {tenant} elsewhere."""


class ClockNotVirtual(Conflict):
    """This service runs on the system clock, which cannot be moved. Start it with: forewarn up --clock virtual"""


class AlreadyRunning(Conflict):
    """This service runs already. Stop it before it is started again, or make another one for a second service."""


class DataInUse(Conflict):
    """The data folder {path} is in use by another Forewarn service (process {pid}). Stop that one, or give
    this one a folder of its own with --data."""


class WebhookExists(Conflict):
    """There is a webhook {name!r} already. Remove it first, or choose another name."""

    member = "name"


class NotListening(Conflict):
    """{why}, so a run would tell it nothing. Start the application in one of its VMs first, or count the group as
    listening with --enable."""


class RunUnderWay(Conflict):
    """Run {run_id} of {scenario} moves the virtual clock, and only one at a time can. Wait for it, or stop it with:
    forewarn scenario stop {run_id}"""


class RunOver(Conflict):
    """Run {run_id} is over ({state}): there is nothing to stop."""
