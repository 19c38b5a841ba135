"""Every exception of Forewarn: one root, five families by what the caller can do about it.

`message` is filled in with the fields that an error is raised with. Families, not single errors, decide the HTTP status
and the exit code.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self


_MOST_COMPARED = 5000
"""Names that a word is compared with: in a fleet of 100,000 a hint is not worth a second of everybody's time."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The hint that follows an unknown name: the nearest known one, or nothing."""
    # Here, because an agent at rest has no use for it and would carry it.
    from difflib import get_close_matches

    # A slip of the finger changes the length little; without that bound 'vn' would be nearer to 'event' than to 'vm'.
    most = max(2, len(word) // 3)
    alike = (name for name in known if abs(len(name) - len(word)) <= most)
    lowered = {name.lower(): name for name in islice(alike, _MOST_COMPARED)}
    close = get_close_matches(word.lower(), lowered, n=1, cutoff=0.5)
    return f" Did you mean {lowered[close[0]]!r}?" if close else ""


class ForewarnError(Exception):
    """The root. An error is raised with the fields that its message names."""

    message = "Forewarn could not do that."
    member = ""
    """Which member of a request it is about, where it is always the same."""

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(self.message.format(**fields))

    def __reduce__(self) -> tuple[object, ...]:
        """For pickle and copy. Exceptions do not support keyword arguments by themselves."""
        return _restore, (type(self), str(self), self.__dict__)

    @classmethod
    def relayed(cls, text: str) -> Self:
        """An error that happened elsewhere, in the words it was reported with."""
        error = cls.__new__(cls)
        error.fields = {}
        Exception.__init__(error, text)
        return error


def _restore(kind: type[ForewarnError], text: str, attributes: dict[str, object]) -> ForewarnError:
    error = kind.relayed(text)
    error.__dict__.update(attributes)
    return error


class Invalid(ForewarnError):
    message = "The request is wrong: {problem}"


class NotFound(ForewarnError):
    message = "There is no such thing: {name}"


class Conflict(ForewarnError):
    message = "Not at this moment: {problem}"


class Forbidden(ForewarnError):
    message = "Not yours to do: {problem}"


class Unavailable(ForewarnError):
    message = "Try again later: {problem}"


EXIT_CODES: dict[type[ForewarnError], int] = {Invalid: 2, NotFound: 3, Conflict: 4, Forbidden: 5, Unavailable: 6}


def exit_code(error: ForewarnError) -> int:
    """What a command that has failed so ends with."""
    return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))


# --- Invalid: fix the request ---------------------------------------------------------------------


class BadDuration(Invalid):
    message = "{text!r} is not a length of time. Write it like 90s, 14m50s, 2h or 7d."


class BadSetting(Invalid):
    message = "{name} = {value!r} (from {origin}) is not valid: {problem}"


class UnknownSetting(Invalid):
    message = "{name!r} (in {origin}) is not a setting.{hint}"


class BadConfigFile(Invalid):
    message = "The configuration file {path} cannot be read: {problem}"


class IncompleteFabric(Invalid):
    message = "The fabric {fabric} has no method for: {verbs}. A fabric needs one for each verb."


class BadFleet(Invalid):
    message = "{source}:{line}: {key}: {problem}"


class BadScenario(Invalid):
    message = "{source}:{line}: {key}: {problem}"

    member = "text"


class DoesNotFit(Invalid):
    message = (
        "{problem} Or play it from nothing: forewarn scenario show {name} --fleet > fleet.toml, then forewarn up "
        "--fleet fleet.toml --data :memory: --clock virtual"
    )


class BadChangeSet(Invalid):
    message = "This is not a change set of this version of Forewarn: {problem}"


class UnreadableFile(Invalid):
    message = "Cannot read {path}: {problem}"


class BadStartRequests(Invalid):
    message = 'Bad request. {problem} Expected {{"StartRequests": [{{"EventId": "<id>"}}]}}.'


class UnknownStartRequest(Invalid):
    message = "Bad request. No scheduled event with EventId {event_id} is known here; nothing was approved."


class BadRequestBody(Invalid):
    message = "{pointer}: {problem}"

    pointer: str
    allowed: object
    """What would be right there: a list of values, or words; None: the problem says it."""

    def __init__(self, *, pointer: str, problem: str, allowed: object = None) -> None:
        self.pointer = pointer
        self.allowed = allowed
        super().__init__(pointer=pointer or "the body", problem=problem)


class BadParameter(Invalid):
    message = "{parameter}: {problem}"

    parameter: str
    allowed: object

    def __init__(self, *, parameter: str, problem: str, allowed: object) -> None:
        self.parameter = parameter
        self.allowed = allowed
        super().__init__(parameter=parameter, problem=problem)


class UnknownCause(Invalid):
    message = "{name!r} is not a cause. Known are: {known}.{hint}"

    member = "cause"


class UnknownFault(Invalid):
    message = "{name!r} is not a fault. Known are: {known}.{hint}"

    member = "kind"


class NothingToDo(Invalid):
    message = "The operation names no VM. Name at least one."

    member = "vms"


class TooMany(Invalid):
    message = "{count:,} {things} are too many for one {what}: at most {most:,}. {remedy}"


class BadOption(Invalid):
    message = "{name} {value!r} does not fit: {problem}"


class BadVerifyURL(Invalid):
    message = (
        "{url!r} is not the address of a metadata endpoint. Write it like http://127.0.0.1:8169, with or without the "
        "path /metadata/scheduledevents behind it."
    )


class NoSuchCheck(Invalid):
    message = "No check is called {pattern!r}.{hint} See them with: forewarn verify --list"


class NoCheckLeft(Invalid):
    message = (
        "No check called {patterns} is marked {marks}: such checks are marked {found}. Give --marks {found}, or "
        "another name in --only."
    )


class NoSuchHosts(Invalid):
    message = "No host matches {pattern!r}.{hint} See them with: forewarn host list"

    member = "hosts"


class NotSpot(Invalid):
    message = (
        "{vm} is not a Spot VM (its priority is {priority}): only Spot VMs are evicted, or advised to move on. Give "
        'it priority = "spot" in the fleet file.'
    )

    member = "vms"


class NoTerminateNotice(Invalid):
    message = "{group} is no scale set ({kind}): only scale sets are told of deletions."


class BadCertificate(Invalid):
    message = (
        "The certificate of the control API cannot be used: {path}: {problem}. Give PEM files with --tls-certificate "
        "and --tls-key (or one file with both), which this user can read, without a password."
    )


class CannotListen(Invalid):
    message = "Cannot listen on {address}: {problem}"


class NotYetHistory(Invalid):
    message = (
        "History has no row {after}: the newest is {newest}. Give the number of a row that this service has told, 0 "
        "for all that is kept, or none for what comes from now on."
    )


class BadWebhookTarget(Invalid):
    message = "{url!r} cannot be the target of a webhook: {problem}."

    member = "url"


class UnreadableDocument(Invalid):
    message = "This is no document of scheduled events: {problem}."


# --- NotFound -------------------------------------------------------------------------------------


class UnknownVM(NotFound):
    message = "There is no VM {name!r}.{hint}"

    member = "vms"


class UnknownHost(NotFound):
    message = "There is no host {name!r}.{hint}"

    member = "host"


class Unknown(NotFound):
    message = "There is no {what} {name!r}.{hint}"


class UnknownEvent(NotFound):
    message = "There is no event {event_id!r}.{hint}"


class UnknownVersion(NotFound):
    message = "Scheduled Events has no api-version {version!r} here. Known are: {known}."


class UnknownPath(NotFound):
    message = "There is nothing at {path}.{hint}"


class NoService(NotFound):
    message = "No Forewarn service found: {problem} Start one with: forewarn up"


class HistoryGone(NotFound):
    message = (
        "What followed row {after} of history is not kept any more: the oldest row is {oldest}. Go on after 0, which "
        "is all that is kept, or from now on by naming no row."
    )


class NameNotFound(NotFound):
    message = "The name {name} has no address ({problem})."


# --- Conflict: the request is right, but not now --------------------------------------------------


class AlreadyStarted(Conflict):
    message = "Event {event_id} has started: it can no longer be cancelled or postponed."


class AlreadyOver(Conflict):
    message = "Event {event_id} is over ({status}): nothing more can be done to it."


class TooEarly(Conflict):
    message = "Event {event_id} is not approved and may not start before {not_before}."


class NotStarted(Conflict):
    message = "Event {event_id} has not started yet, so it cannot be over."


class ClockBusy(Conflict):
    message = (
        "Somebody else is moving the clock, and waits for {vms} to take in each step. Wait for that, or have it ended."
    )


class NeverStarted(Conflict):
    message = (
        "Event {event_id} has not started at its NotBefore: it is {status}. An operation waits for all groups on its "
        "host, and for maintenance windows; a cancelled one never starts."
    )


class NobodyTold(Conflict):
    message = (
        "{vm} would not be told of this {cause}: {problem}. Nothing was done. If it is to happen without notice, use "
        "ask()."
    )


class VMHasLiveEvent(Conflict):
    message = (
        "{vms} would leave or change group with a live event ({events}). Wait, cancel the events, or apply with "
        "--force, which ends them."
    )


class TokenExists(Conflict):
    message = "There is a token {name!r} already. Choose another name, or revoke that one first."


class LastAdmin(Conflict):
    message = (
        "{name!r} is the last admin token that does not expire: without it nobody could manage the service. Create "
        "another first."
    )


class KeyReused(Conflict):
    message = (
        "The Idempotency-Key {key!r} was used for another request within the last day. Choose a new key for a new "
        "request."
    )


class CannotPostpone(Conflict):
    message = "Event {event_id} cannot be postponed: {problem}"


class OperationNotSo(Conflict):
    message = "Operation {operation_id} is {status}: {problem}"


class VMDeallocated(Conflict):
    message = "{vm} is deallocated. Start it first: forewarn vm start {vm}"


class VMRunning(Conflict):
    message = "{vm} is running: only a deallocated VM can be started."


class AlreadyComing(Conflict):
    message = "This is about to happen to {vm} already: {cause}, operation {operation_id}. Wait for it, or cancel it."


class TooManyPending(Conflict):
    message = (
        "{group} has {most} operations of users pending, and more are not allowed. Wait for one, approve or cancel it."
    )


class NoHostFits(Conflict):
    message = (
        "No host fits {vm}: none is in use, without work on it, and holds only the same domains of its group. Add a "
        "host to the fleet file, or return one with: forewarn host return NAME"
    )


class NoCommonWindow(Conflict):
    message = (
        "The maintenance windows of {groups} have no moment in common in the next weeks{host}. Change one of them, or "
        "insist with --override-windows."
    )

    def __init__(self, *, groups: str, host: str) -> None:
        super().__init__(groups=groups, host=f" (they share {host})" if host else "")


class RolloutOverlaps(Conflict):
    message = "{hosts} is already being walked by rollout {rollout_id}. Wait for it, or cancel it."


class NothingToWalk(Conflict):
    message = "Every host that matches {patterns!r} is out of use. Return one first: forewarn host return NAME"


class RolloutNotSo(Conflict):
    message = "Rollout {rollout_id} is {status}: it cannot be {what}."


class WorkFailed(Conflict):
    message = "The work could not be done: {problem}"


class OnItsWay(Conflict):
    message = (
        "{vm} is on its way to {host} (operation {operation_id}), where the file now has {tenant} of another domain "
        "or zone. Wait until it has arrived, or put {tenant} elsewhere."
    )


class ClockNotVirtual(Conflict):
    message = "This service runs on the system clock, which cannot be moved. Start it with: forewarn up --clock virtual"


class AlreadyRunning(Conflict):
    message = "This service runs already. Stop it before it is started again, or make another one for a second service."


class DataInUse(Conflict):
    message = (
        "The data folder {path} is in use by another Forewarn service (process {pid}). Stop that one, or give this "
        "one a folder of its own with --data."
    )


class WebhookExists(Conflict):
    message = "There is a webhook {name!r} already. Remove it first, or choose another name."

    member = "name"


class NotListening(Conflict):
    message = (
        "{why}, so a run would tell it nothing. Start the application in one of its VMs first, or count the group as "
        "listening with --enable."
    )


class RunUnderWay(Conflict):
    message = (
        "Run {run_id} of {scenario} moves the virtual clock, and only one at a time can. Wait for it, or stop it "
        "with: forewarn scenario stop {run_id}"
    )


class RunOver(Conflict):
    message = "Run {run_id} is over ({state}): there is nothing to stop."


# --- Forbidden, and Unavailable: try again later --------------------------------------------------


class BadToken(Forbidden):
    message = (
        "This needs a valid token: send the header 'Authorization: Bearer <token>'. The first is in the file "
        "admin-token of the service's data folder; others are made with: forewarn token create"
    )


class NotForRole(Forbidden):
    message = "A token of role {role} is not enough here ({what}): that is for {needed}."


class NoToken(Forbidden):
    message = "There is no token for the service at {url}: {problem} Name a file that has one with --token-file."


class NotPermitted(Forbidden):
    message = "Cannot {action} {path}: {problem}. Make that possible, or choose another with {flag}."


class ForbiddenTarget(Forbidden):
    message = (
        "Webhooks may not go to {address}: it is not an address of the public Internet. Whoever runs the service can "
        'allow it with the setting {setting}, for example {setting} = "10.0.0.0/8".'
    )

    member = "url"


class FaultsNotAllowed(Forbidden):
    message = "This service does not fail on purpose. Start it with: forewarn up --allow-faults"


class StoreFailed(Unavailable):
    message = (
        "The change could not be written ({problem}). Nothing was changed; try again when the disk has room and can "
        "be written."
    )


class StoreDamaged(Unavailable):
    message = (
        "The database {path} is damaged ({problem}). Nothing was touched. Restore it from a copy, or move it away to "
        "start anew."
    )


class StoreNewer(Unavailable):
    message = (
        "The database {path} was written by a newer Forewarn (schema {found}, this one knows {known}). Upgrade "
        "Forewarn; nothing was touched."
    )


class StoreForeign(Unavailable):
    message = "{path} is not a Forewarn database. Choose another folder with --data; nothing was touched."


class Stopping(Unavailable):
    message = "The service is stopping. Try again when it is back."


class NotRunning(Unavailable):
    message = (
        "The service does not run. Ask it, its VMs and its events between start() and stop(): within the `with` that "
        "starts it, or in the test that has the fixture."
    )


class NotSeen(Unavailable):
    message = (
        "{vm} has not taken in its document within {limit:g} s of real time: {did}. The clock stands at {now}. {remedy}"
    )


class Abandoned(Unavailable):
    message = "Whoever waited for VMs to take in their documents has gone."


class ServiceUnreachable(Unavailable):
    message = "The service at {url} does not answer ({problem})."


class EndpointUnreachable(Unavailable):
    message = (
        "The endpoint at {url} does not answer ({problem}). Start the server under test, or give its right address."
    )


class TooManyReaders(Unavailable):
    message = "{most:,} clients follow the feed, and more are not taken. Have one of them pass on what it is told."


class WebhookFailed(Unavailable):
    message = "{name} has not taken it: {problem}. Put that right at the receiver, or where the webhook points to."


# --- Errors of the agent and of its client library ------------------------------------------------


class BadAgentConfig(Invalid):
    message = "{source}:{line}: {key}: {problem}"


class BadCommandLine(Invalid):
    message = "{problem} See: {program} --help"


class NoAgentRuns(Unavailable):
    message = (
        "No agent is running on {folder}. Start one with: forewarn agent run. If it keeps its state elsewhere, say "
        "where with --state."
    )


class AgentHung(Unavailable):
    message = "The agent on {folder} does not answer ({problem}). See its log, and start it again if it stays so."


class UnitDiffers(Conflict):
    message = (
        "{path} is there already and says something else. Compare it with what --print shows; --force writes over it."
    )


class UnitMasked(Conflict):
    message = (
        "{path} is masked: somebody has said that this unit must not start. If it may, write: systemctl unmask {unit}"
    )


class NoStateFolder(Invalid):
    message = (
        "Nobody has said where the agent keeps what it has done, and this user has no home. Say it with --state DIR "
        "or FOREWARN_AGENT_STATE."
    )


class BadEndpoint(Invalid):
    message = "{url!r} is no endpoint of Scheduled Events: {problem} Write it like http://127.0.0.1:8169"


class EndpointNotFound(NotFound):
    message = "No endpoint of Scheduled Events was found: {problem} Name one with --endpoint or FOREWARN_ENDPOINT."


class StateInUse(Conflict):
    message = (
        "Another agent works in {folder}. Two agents of one machine would undo each other's work: stop that one, or "
        "give this one a folder of its own with --state."
    )


class EndpointError(Unavailable):
    message = "The endpoint {problem}"

    kind = "trouble"
    """What it is, in a word that stays the same: for counts and for deciding how long to wait."""

    @property
    def retry_after(self) -> float | None:
        """How many seconds the endpoint itself asks for before the next try."""
        found = self.fields.get("retry_after")
        return found if isinstance(found, float) else None


class EndpointAway(EndpointError):
    message = "The endpoint {url} cannot be reached: {problem}."

    kind = "unreachable"


class EndpointUnknown(EndpointError):
    message = "{problem}"

    kind = "unreachable"


class EndpointReset(EndpointError):
    message = "The endpoint {url} has ended the connection without an answer ({problem})."

    kind = "reset"


class EndpointSilent(EndpointError):
    message = "The endpoint {url} has not answered within {seconds:g} s."

    kind = "timeout"


class EndpointStalled(EndpointError):
    message = "The endpoint {url} has sent a part of an answer, and not the rest of it within {seconds:g} s."

    kind = "stalled"


class EndpointEmpty(EndpointError):
    message = "The endpoint has answered 200 with an empty body."

    kind = "empty"


class EndpointCutOff(EndpointError):
    message = "The endpoint {url} has ended an answer before it was whole."

    kind = "cut-off"


class EndpointUnreadable(EndpointError):
    message = "The endpoint has answered what cannot be read: {problem}."

    kind = "unreadable"


class EndpointGone(EndpointError):
    message = "The endpoint has answered 410: it is being updated."

    kind = "gone"


class EndpointThrottled(EndpointError):
    message = "The endpoint has answered 429: it has had too many requests of this machine."

    kind = "throttled"


class EndpointFailing(EndpointError):
    message = "The endpoint has answered {status}: {problem}"

    kind = "failing"


class EndpointRefused(EndpointError):
    message = "The endpoint has refused that with {status}: {problem}"

    kind = "refused"


class EndpointNotHere(EndpointError):
    message = "The endpoint has no scheduled events for this machine. It has answered 404: {problem}"

    kind = "not-here"


class EndpointUnmodified(EndpointError):
    message = "The endpoint has answered 304, not modified, to a question for the whole document."

    kind = "not-modified"


class EndpointLeft(EndpointError):
    message = "The endpoint was not waited for any longer: the client was closed, or its task cancelled."

    kind = "closed"


class NothingToApprove(Invalid):
    message = "{given} is nothing to approve: give events, or their ids."


class ChangeWithoutClient(Conflict):
    message = "This change did not come from a client, so there is none to approve it with. Use approve() of a Client."


class BadPollSeconds(Invalid):
    message = "poll_seconds is {value!r}. Give a number of seconds from {least:g} to {most:g}; Azure advises 1."


class HandlerFailed(Unavailable):
    message = "{problem}"


class PagesNotListening(CannotListen):
    message = "Cannot listen on {address}: {problem} Choose another with --listen, or in [agent] listen."


class PeersNotListening(Unavailable):
    message = (
        "[peers] listen: {address} cannot be listened on: {problem} Name an address of this machine and a port that "
        "nobody else uses."
    )


class PeerTrouble(Unavailable):
    message = "{vm} {problem}"


class BadPeerMessage(Invalid):
    message = "{problem}"
