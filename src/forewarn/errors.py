"""All exceptions of Forewarn: one root class and five families, by what the caller can do.

An error is raised with keyword fields, which fill in its `message`. The family decides the HTTP status and the exit
code.
"""

from __future__ import annotations

from itertools import islice
from reprlib import Repr
from string import Formatter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self


MAX_SHOWN = 100
"""How many characters of a value an error repeats."""


def shortened(text: str) -> str:
    """Return at most MAX_SHOWN characters of a text."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def shown(value: object) -> str:
    """Return a value for a message, as Python writes it. The work is limited, too."""
    return shortened(_REPR.repr(value))


_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = MAX_SHOWN


class _Messages(Formatter):
    """Formats messages. A field with !r is shown shortened."""

    def convert_field(self, value: object, conversion: str | None) -> object:
        return shown(value) if conversion == "r" else super().convert_field(value, conversion)


_MESSAGES = _Messages()


# --- Hints ----------------------------------------------------------------------------------------


_SHORT_WORD = 4
_LONG_WORD = 100
"""A word with more characters gets no hint."""
_MAX_READ = 10_000
"""Maximum number of known names that a hint looks at."""
_MAX_CHARACTERS = 20_000
"""Maximum number of characters that a hint compares: 5 milliseconds."""


_SYNONYMS = (
    {"reboot", "restart"},
    {"delete", "remove", "terminate", "destroy", "revoke", "rm"},
    {"evict", "eviction", "preempt"},
    {"migrate", "move", "redeploy", "live-migration"},
    {"stop", "deallocate", "shutdown"},
    {"stopped", "deallocated"},
    {"done", "completed", "complete", "finished", "ended"},
    {"list", "ls"},
    {"show", "get", "describe", "inspect"},
    {"create", "add", "new"},
    {"approve", "ack", "acknowledge", "confirm"},
    {"postpone", "delay", "defer"},
    {"cancel", "abort"},
    {"explain", "why"},
    {"history", "log", "logs", "audit"},
    {"vm", "machine", "instance", "node"},
    {"host", "hypervisor"},
    {"group", "set", "scale-set"},
    {"server", "url"},
)
"""Words that users write for each other. A word can be near only in meaning."""


def _synonym(word: str, known: Iterable[str]) -> str:
    """Return a known name that means the same, or an empty string."""
    same = next((words for words in _SYNONYMS if word in words), None)
    return next((name for name in known if _comparable(name) in same), "") if same else ""


def _comparable(name: str) -> str:
    """Without the dashes, which would make all options similar."""
    return name.lower().lstrip("-")


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return " Did you mean '...'?" with the most similar known name, or an empty string if none is similar.

    `prefix` is put before the name.
    """
    name = nearest_name(word, known)
    return f" Did you mean {shown(prefix + name)}?" if name else ""


def nearest_name(word: str, known: Iterable[str]) -> str:
    """Return the most similar known name, or an empty string if none is similar.

    The work is limited, however many and however long the names are. So the hint can be missing in a large fleet.
    """
    if len(word) > _LONG_WORD:
        return ""
    word, known = _comparable(word), list(islice(known, _MAX_READ))
    if synonym := _synonym(word, known):
        return synonym
    # A typo changes the length little. Without this limit 'vn' would match 'event' rather than 'vm'.
    max_difference = max(2, len(word) // 3)
    # Of a short word, one wrong letter is a large part. 'reboot' and 'webhook' are 0.62 similar.
    best, found, left = 0.5 if len(word) <= _SHORT_WORD else 0.65, "", _MAX_CHARACTERS
    similarity = _similarity_to(word)
    for name in known:
        if abs(len(name.lstrip("-")) - len(word)) <= max_difference:
            left -= len(name)
            if left < 0:
                break
            if (similar := similarity(_comparable(name))) > best or (similar == best and not found):
                best, found = similar, name
    return found


def _similarity_to(word: str) -> Callable[[str], float]:
    """Return a function that returns how similar a name is to a word: 0 to 1, in one step per character.

    It finds the length of the longest common subsequence with one bit for each character of the word (Hyyrö, 2004).
    """
    places = dict.fromkeys(word, 0)
    for index, character in enumerate(word):
        places[character] |= 1 << index
    everything = (1 << len(word)) - 1

    def similarity(name: str) -> float:
        unmatched = everything
        for character in name:
            matched = unmatched & places.get(character, 0)
            unmatched = (unmatched + matched) | (unmatched - matched)
        common = len(word) - (unmatched & everything).bit_count()
        return 2 * common / ((len(word) + len(name)) or 1)

    return similarity


class ForewarnError(Exception):
    """Root of all errors. Raise an error with the fields that its message names."""

    message = "Forewarn could not do this."
    member = ""
    """The request member that causes this error, if it is always the same one."""

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(_MESSAGES.vformat(self.message, (), fields))

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickle and copy, which cannot restore an exception with keyword arguments by default."""
        return _restore, (type(self), str(self), self.__dict__)

    @classmethod
    def relayed(cls, text: str) -> Self:
        """Return an error that another process reported, with its message."""
        error = cls.__new__(cls)
        error.fields = {}
        Exception.__init__(error, text)
        return error


def _restore(kind: type[ForewarnError], text: str, attributes: dict[str, object]) -> ForewarnError:
    error = kind.relayed(text)
    error.__dict__.update(attributes)
    return error


class Invalid(ForewarnError):
    message = "The request is invalid: {problem}"


class NotFound(ForewarnError):
    message = "Not found: {name}"


class Conflict(ForewarnError):
    message = "Not possible in the current state: {problem}"


class Forbidden(ForewarnError):
    message = "Not allowed: {problem}"


class Unavailable(ForewarnError):
    message = "Temporarily unavailable: {problem}"


EXIT_CODES: dict[type[ForewarnError], int] = {Invalid: 2, NotFound: 3, Conflict: 4, Forbidden: 5, Unavailable: 6}


def exit_code(error: ForewarnError) -> int:
    """Return the exit code of a command that failed with this error."""
    return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))


# --- Invalid: fix the request ---------------------------------------------------------------------


class BadDuration(Invalid):
    message = "{text!r} is not a duration. Write it like 90s, 14m50s, 2h or 7d."


class DurationTooLong(BadDuration):
    message = "The duration {text!r} is too long. The maximum is {maximum}."


class BadSetting(Invalid):
    message = "Invalid setting {name} = {value!r} (from {origin}): {problem}"


class UnknownSetting(Invalid):
    message = "Unknown setting {name!r} (in {origin}).{hint}"


class UnknownHostName(Invalid):
    message = (
        "The request is for the host {host!r}, which is not a known name of this service. Use its IP address, or add "
        "the name to the setting control_names of the service."
    )


class BadConfigFile(Invalid):
    message = "Cannot read the configuration file {path}: {problem}"


class IncompleteFabric(Invalid):
    message = "The fabric {fabric} has no method for: {verbs}. A fabric needs a method for each verb."


class Mistake(NamedTuple):
    """A mistake in a file."""

    line: int
    """0: not known, because the file is too long for the search."""
    key: str
    problem: str


MAX_LISTED_MISTAKES = 20


class BadFile(Invalid):
    """The mistakes of a file. The fields are those of the first mistake, and the text has a line for each."""

    message = "{source}:{line}: {key}: {problem}"

    mistakes: tuple[Mistake, ...] = ()
    """At most MAX_LISTED_MISTAKES, in the order of the lines."""
    path: tuple[str | int, ...] = ()
    """Keys and indices from the top of the file to a single mistake, if a reader has raised the error."""

    @classmethod
    def listing(cls, source: str, mistakes: Sequence[Mistake], *, is_complete: bool = True) -> Self:
        """Return the error for these mistakes, in the order of the lines. The file may have more of them."""
        texts = [cls._text(source, mistake) for mistake in mistakes[:MAX_LISTED_MISTAKES]]
        error = cls(source=source, **mistakes[0]._asdict())
        error.args = (texts[0],)
        error.mistakes = tuple(mistakes[:MAX_LISTED_MISTAKES])
        if len(mistakes) > 1:
            at_least = "" if is_complete else "at least "
            if more := len(mistakes) - len(error.mistakes):
                texts.append(f"and {at_least}{more} more")
            error.args = ("\n".join([f"{source} has {at_least}{len(mistakes)} mistakes:", *texts]),)
        return error

    @classmethod
    def _text(cls, source: str, mistake: Mistake) -> str:
        if not mistake.line:
            return f"{source}: {mistake.key}: {mistake.problem}"
        return cls.message.format(source=source, **mistake._asdict())


class BadFleet(BadFile):
    message = "{source}:{line}: {key}: {problem}"


class BadSettings(BadFile):
    message = "{source}:{line}: {key}: {problem}"


class BadScenario(BadFile):
    message = "{source}:{line}: {key}: {problem}"

    member = "text"


class ScenarioDoesNotFit(Invalid):
    message = "{problem}{hint}"


class BadDatabaseUrl(Invalid):
    message = (
        "The setting database is not valid: {problem}. Write it like postgresql://USER@HOST:5432/DATABASE, or as "
        "key=value pairs of libpq."
    )


class BadChangeSet(Invalid):
    message = "The change set does not match this version of Forewarn: {problem}"


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
    """The allowed values: a list, or a description. None: the problem text says it."""

    def __init__(self, *, pointer: str, problem: str, allowed: object = None) -> None:
        self.pointer = pointer = shortened(str(pointer))
        self.allowed = allowed
        super().__init__(pointer=pointer or "the body", problem=problem)


class BodyTooLarge(Invalid):
    message = "The body is too large. The maximum is {maximum:,} bytes.{hint}"


class BadParameter(Invalid):
    message = "{parameter}: {problem}"

    parameter: str
    allowed: object

    def __init__(self, *, parameter: str, problem: str, allowed: object) -> None:
        self.parameter = parameter = shortened(str(parameter))
        self.allowed = allowed
        super().__init__(parameter=parameter, problem=problem)


class UnknownCause(Invalid):
    message = "Unknown cause {name!r}. Causes: {known}.{hint}"

    member = "cause"


class UnknownFault(Invalid):
    message = "Unknown fault {name!r}. Faults: {known}.{hint}"

    member = "kind"


class NoVMNamed(Invalid):
    message = "The request names no VM. Name at least one."

    member = "vms"


class NothingToRemove(Invalid):
    message = "The request names nothing to remove. Name at least one VM, group or host."


class LimitExceeded(Invalid):
    message = "Too many {things} for one {what}: {count:,}. The maximum is {maximum:,}. {remedy}"


class BadOption(Invalid):
    message = "Invalid {name} {value!r}: {problem}"


class GroupRequired(Invalid):
    message = "A tenant token needs --group NAME."

    member = "group"


class BadBackup(Invalid):
    message = "{path} is not a usable backup: {problem}. Nothing was restored."


class BadVerifyURL(Invalid):
    message = (
        "{url!r} is not the URL of a metadata endpoint. Write it like http://127.0.0.1:8169, with or without the path"
        " /metadata/scheduledevents."
    )


class UnknownCheck(Invalid):
    message = "No check matches {pattern!r}.{hint} List the checks with: forewarn verify --list"


class NoMatchingCheck(Invalid):
    message = (
        "The checks that match {patterns} are marked {found}, not {marks}. Use --marks {found}, or another name in "
        "--only."
    )


class NoMatchingHost(Invalid):
    message = "No host matches {pattern!r}.{hint} List the hosts with: forewarn host list"

    member = "hosts"


class NotSpot(Invalid):
    message = (
        "{vm} is not a Spot VM (its priority is {priority}). Only Spot VMs can be evicted or get a rebalance "
        'recommendation. Set priority = "spot" in the fleet file.'
    )

    member = "vms"


class NotScaleSet(Invalid):
    message = "{group} is not a scale set (its kind is {kind}). Only scale sets have an OS image notice."


class NoTerminateNotice(Invalid):
    message = "{group} is not a scale set or a standalone VM (its kind is {kind}). Only these have a terminate notice."


class SpotTerminateNotice(Invalid):
    message = (
        "{group} cannot have a terminate notice, because {vm} is a Spot VM. Azure does not offer this notice for Spot "
        "VMs; they get a Preempt before an eviction."
    )


class BadCertificate(Invalid):
    message = (
        "Cannot use the certificate of the control API: {path}: {problem}. Use PEM files with --tls-certificate and "
        "--tls-key, or one file with both. They must be readable by this user and have no password."
    )


class CannotListen(Invalid):
    message = "Cannot listen on {address}: {problem}"


class SameAddress(Invalid):
    message = "{first} and {second} need the same address. Give each its own port."


class SeveralServices(Invalid):
    message = (
        "Several Forewarn services run here: {services}. Choose one with --service NAME or the variable "
        "FOREWARN_SERVICE."
    )


class UnknownHistoryRow(Invalid):
    message = (
        "History has no row {after}: the newest is {newest}. Use the number of an existing row, or 0 for all stored "
        "rows. Omit it to get new rows only."
    )


class BadWebhookURL(Invalid):
    message = "Invalid webhook URL {url!r}: {problem}."

    member = "url"


class UnreadableDocument(Invalid):
    message = "Not a Scheduled Events document: {problem}."


# --- NotFound -------------------------------------------------------------------------------------


class UnknownVM(NotFound):
    message = "Unknown VM {name!r}.{hint}"

    member = "vms"

    def __init__(self, *, name: str, hint: str) -> None:
        super().__init__(name=name, hint=_NO_PATTERN if set("*?[").intersection(str(name)) else hint)


_NO_PATTERN = " It looks like a pattern, and patterns cannot be used here. Give the name of one VM."


class UnknownHost(NotFound):
    message = "Unknown host {name!r}.{hint}"

    member = "host"


class UnknownResource(NotFound):
    message = "Unknown {what} {name!r}.{hint}"


class UnknownEvent(NotFound):
    message = "Unknown event {event_id!r}.{hint}"


class UnknownVersion(NotFound):
    message = "Unknown api-version {version!r} of Scheduled Events. Versions: {known}."


class UnknownPath(NotFound):
    message = "Nothing is at {path}.{hint}"


class NoService(NotFound):
    message = (
        "Found no Forewarn service: {problem} Start one with: forewarn up. Or name one with --service, --data or "
        "--server."
    )


class UnknownService(NotFound):
    message = "No service named {name!r} runs here.{hint} List the services with: forewarn service list"


class NoDatabase(NotFound):
    message = "The data folder {path} has no database. Name the data folder of the service with --data."


class HistoryExpired(NotFound):
    message = (
        "The rows after {after} have expired: the oldest stored row is {oldest}. Use 0 to get all stored rows, or "
        "omit the number to get new rows only."
    )


class NameNotFound(NotFound):
    message = "Cannot resolve the host name {name} ({problem})."


# --- Conflict: the request is valid, but not in the current state -------------------------------


class EventAlreadyStarted(Conflict):
    message = "Event {event_id} has started. A started event cannot be cancelled or postponed."


class EventEnded(Conflict):
    message = "Event {event_id} has ended ({status}). It cannot be changed."


class EventIsAdvisory(Conflict):
    message = "Event {event_id} is an advisory. It never starts, and nobody approves it. You can cancel it."


class EventNotDue(Conflict):
    message = "Event {event_id} cannot start before {not_before}, because it is not approved."


class EventNotStarted(Conflict):
    message = "Event {event_id} has not started, so it cannot be completed."


class ClockBusy(Conflict):
    message = (
        "Another request is moving the clock and waits for {vms} to see each step. Wait for that request, or cancel it."
    )


class EventDidNotStart(Conflict):
    message = (
        "Event {event_id} did not start at its NotBefore: it is {status}. An operation waits for all groups on its "
        "host and for maintenance windows. A cancelled one never starts."
    )


class NoticeNotPossible(Conflict):
    message = (
        "{vm} would get no notice of this {cause}: {problem}. Nothing was done. To run the operation without notice, "
        "use request_operation()."
    )


class NoticeRequired(Conflict):
    message = "No notice is possible: {reasons}. Nothing was requested. {remedy}, or omit --require-notice."


class VMHasLiveEvent(Conflict):
    message = (
        "{vms} would leave the fleet or change group during an active event ({events}). Wait, cancel the events, or "
        "apply with --force, which ends them."
    )


class StillInUse(Conflict):
    message = "The {what} {name} cannot be removed, because {problem}. {remedy}."


class TokenExists(Conflict):
    message = "A token named {name!r} exists. Choose another name, or revoke that token first."


class LastAdmin(Conflict):
    message = (
        "{name!r} is the last admin token that does not expire. Nobody could manage the service without it. Create "
        "another admin token first."
    )


class NothingDue(Conflict):
    message = "Nothing is due at any time. Move the clock by a duration instead, for example 15m."


class NoSession(Conflict):
    message = (
        "This request has no session: it uses the token of {name!r}. To revoke a token, run: forewarn token revoke "
        "{name}"
    )


class IdempotencyKeyReused(Conflict):
    message = (
        "The Idempotency-Key {key!r} was used for a different request in the last 24 hours. Use a new key for a new "
        "request."
    )


class CannotPostpone(Conflict):
    message = "Event {event_id} cannot be postponed: {problem}"


class WrongOperationStatus(Conflict):
    message = "Operation {operation_id} is {status}. {problem}"


class VMDeallocated(Conflict):
    message = "{vm} is deallocated. Start it first: forewarn vm start {vm}"


class VMRunning(Conflict):
    message = "{vm} is running. Only a deallocated VM can be started."


class OperationAlreadyPending(Conflict):
    message = (
        "{name} already has a {status} {cause} (operation {operation_id}). Wait until its work is done, or cancel it "
        "while it is pending."
    )


class TooManyPendingOperations(Conflict):
    message = (
        "{group} has {maximum} pending user operations, the maximum. Wait for one to finish, approve it or cancel it."
    )


class NoHostAvailable(Conflict):
    message = (
        "No host can take {vm}. A host must be in service, have no pending work, and hold no other update or fault "
        "domain of its group. Add a host to the fleet file, or return one with: forewarn host return NAME"
    )


class NoCommonWindow(Conflict):
    message = (
        "The maintenance windows of {groups} do not overlap in the coming weeks{host}. Change a window, or use "
        "--override-windows."
    )

    def __init__(self, *, groups: str, host: str) -> None:
        super().__init__(groups=groups, host=f" (they share {host})" if host else "")


class RolloutOverlaps(Conflict):
    message = "Rollout {rollout_id} already includes {hosts}. Wait for it, or cancel it."


class NoHostInService(Conflict):
    message = "No host that matches {patterns!r} is in service. Return one first: forewarn host return NAME"


class WrongRolloutStatus(Conflict):
    message = "Rollout {rollout_id} is {status}. It cannot be {what}."


class WorkFailed(Conflict):
    message = "The fabric could not do the work: {problem}"


class DestinationConflict(Conflict):
    message = (
        "Operation {operation_id} is moving {vm} to {host}. The new file has {tenant} there, which is in another "
        "domain or zone. Wait until the move is done, or put {tenant} on another host."
    )


class HostOutOfService(Conflict):
    message = (
        "{vm} cannot be placed on {host}, because this host is {state}. Choose a host in service, or return this one "
        "with: forewarn host return {host}"
    )


class HostWorkStarted(Conflict):
    message = (
        "{vm} cannot be placed on {host}: operation {operation_id} ({cause}) has been working on this host since "
        "{started_at}. Retry when it is done, or choose another host."
    )


class PlacementGroupFixed(Conflict):
    message = (
        "{vm} is in placement group {known}, and a VM never changes its placement group. The file says {number}. "
        "Write {known}, or remove the VM with one file and add it with the next."
    )


class PlacementGroupFull(Conflict):
    message = (
        "Placement group {number} of {group} has no place for {vm}: it has at most {size} VMs. "
        "Omit placement_group, or write another number."
    )


class ClockNotVirtual(Conflict):
    message = "This service uses the system clock, which cannot be moved. Start it with: forewarn up --clock virtual"


class VirtualClockAccepted(Conflict):
    message = "This service uses a virtual clock. A virtual clock does not jump, so there is nothing to accept."


class ClockNotJumped(Conflict):
    message = "The system clock has not jumped, or its time is accepted already. There is nothing to accept."


class AlreadyRunning(Conflict):
    message = "This service is already running. Stop it before you start it again, or create another Service."


class ServiceNameTaken(Conflict):
    message = (
        "Another service (process {pid}, data {data}) is named {name!r}. Stop it, or choose another name with --name."
    )


class SettingsDiffer(Conflict):
    message = (
        "The setting {name} of this node is {own!r}. The other nodes of the service have {other!r}. Use the same "
        "value, or stop all other nodes first. Another service needs a schema of its own: --database-schema"
    )


class NodeNameTaken(Conflict):
    message = (
        "A node with the name {name} is running at {address}, with the same database and schema. Choose another "
        "--name. If that node belongs to another service, choose another --database-schema."
    )


class OtherService(Conflict):
    message = (
        "The data folder {folder} belongs to a node of another service than the schema {schema} in the database "
        "{place}. Use the database and the schema of that service, or another --data. Nothing was changed. If the "
        "other service is gone, remove the file {file}."
    )


class ServiceRunning(Conflict):
    message = (
        "Nodes use the database {place}: {nodes}. Stop them first, and wait for some seconds. Nothing was changed."
    )


class NoSuchSchema(NotFound):
    message = (
        "There is no data of Forewarn in the schema {schema} of the database {place}. Check the URL and --schema. "
        "Nothing was changed."
    )


class TargetNotEmpty(Conflict):
    message = "There is already data in {place} ({table}). Use an empty one. Nothing was changed."


class SamePlace(Conflict):
    message = "The data is already in {place}. Give two different places, one of them a data folder."


class OnlyNode(Conflict):
    message = "This service has one node, so no other node can lead. Several nodes share a database: --database"


class DataInUse(Conflict):
    message = (
        "Another Forewarn service (process {pid}) uses the data folder {path}. Stop it, or use another folder with "
        "--data."
    )


class BackupInProgress(Conflict):
    message = "Another command is working on {path}. Retry when it has ended."


class WebhookExists(Conflict):
    message = "A webhook named {name!r} exists. Choose another name, or remove that webhook first."

    member = "name"


class EventsNotEnabled(Conflict):
    message = (
        "{reason}. The run would send the group no events. Start the application in one of the group's VMs first, or "
        "enable the group with --enable."
    )


# --- Forbidden, and Unavailable: retry later -----------------------------------------------------


class BadToken(Forbidden):
    message = (
        "The request needs a valid token in the header 'Authorization: Bearer <token>'. The first token is in the "
        "file admin-token of the service's data folder. Create more with: forewarn token create"
    )


class UnknownToken(BadToken):
    message = (
        "The service does not know this token. It may belong to another service. Create one with: forewarn token create"
    )


class TokenNotKnownHere(UnknownToken):
    message = (
        "This node does not know this token. It has no connection to a leader, so the token may be newer than what it "
        "knows. Retry, or use another node. Which nodes run: forewarn node list"
    )


class TokenExpired(BadToken):
    message = "The token of {name!r} expired on {time}. Create a new one with: forewarn token create"


class TokenRevoked(BadToken):
    message = "The token of {name!r} was revoked on {time}. Ask the operator of the service for a new one."


class TokenWithoutGroup(BadToken):
    message = (
        "The token of {name!r} is not valid: its group {group!r} was removed. Ask the operator of the service for a "
        "new one."
    )


class UnknownCode(BadToken):
    message = (
        "This one-time link is not valid. It was used, or is older than a minute. Get a new one with: forewarn portal"
    )


class SessionEnded(BadToken):
    message = (
        "The session has ended. It expired, or somebody signed out or revoked it. Sign in again with a token or with: "
        "forewarn portal"
    )


class ForeignOrigin(Forbidden):
    message = (
        "A page of {own} must send this request. {problem} If there is a proxy in front of the service, it must pass "
        "on the Host header."
    )


class InsufficientRole(Forbidden):
    message = "The token's role is {role}. {what!r} needs the role {needed}."


class NoToken(Forbidden):
    message = "Found no token for the service at {url}: {problem} Use --token-file FILE."


class NotPermitted(Forbidden):
    message = "Cannot {action} {path}: {problem}. Change its permissions, or use another path with {flag}."


class DatabasePermission(Forbidden):
    message = (
        "The user {user!r} of the database {place} cannot create or use the schema {schema!r}: {problem}. Run as an "
        "administrator of the database: CREATE SCHEMA {schema} AUTHORIZATION {user}"
    )


class DataFolderWritable(Forbidden):
    message = (
        "Other users can write to the data folder {path} (mode {mode}), so they could replace the database. Run: "
        "chmod go-w {path}"
    )


class DataFolderOfOther(Forbidden):
    message = (
        "The data folder {path} belongs to another user (user id {owner}). Use another folder with --data, or run: "
        "chown {user} {path}"
    )


class NotARegularFile(Forbidden):
    message = "{path} is {kind}, not a regular file. Move it away, or use another folder with --data."


class ForbiddenWebhookAddress(Forbidden):
    message = (
        "Webhooks cannot be sent to {address}, which is not a public Internet address. The operator can allow it with"
        ' the setting {setting}, for example {setting} = "10.0.0.0/8".'
    )

    member = "url"


class FaultsNotAllowed(Forbidden):
    message = "Fault injection is disabled. Enable it with: forewarn up --allow-faults"


class StoreFailed(Unavailable):
    message = (
        "Cannot write the change to disk ({problem}). Nothing was changed. Retry when the disk has space and is "
        "writable."
    )


class StoreNotReadable(StoreFailed):
    message = "Cannot read from the store ({problem}). Retry when its disk or its database works."


class ChangeMade(Unavailable):
    message = (
        "The change was made, but its result cannot be read now ({problem}). Look at it later. Only a request with an "
        "Idempotency-Key can be repeated."
    )


class PartlyDone(Unavailable):
    message = "{done} {rest} ({problem}). Look before you repeat the request."


class StoreOutcomeUnknown(StoreFailed):
    message = (
        "Cannot write the change to disk ({problem}). It is not known whether the change was made. Look before you "
        "repeat it."
    )


class NotLeading(StoreFailed):
    message = "This node no longer leads. Nothing was changed. Retry."


class NoLeader(Unavailable):
    message = "No node leads at the moment, so nothing can be changed ({problem}). Nothing was changed. Retry."


class NodeBehind(Unavailable):
    message = "This node is behind the others: the newest row of history here is {newest}, not {after}. Retry."


class LeaderLost(Unavailable):
    message = (
        "The connection to the leading node was lost ({problem}). It is not known whether the change was made. Look "
        "before you repeat it."
    )


class DatabaseFailed(StoreFailed):
    message = "The database could not do it ({problem}). Nothing was changed. Retry."


class DatabaseUnreachable(StoreFailed):
    message = "Cannot use the database {place}: {problem}. Nothing was changed."

    @property
    def is_mistake(self) -> bool:
        """Whether the server responds, and will not accept this URL later: a wrong password, or an unknown database."""
        problem = str(self.fields["problem"])
        passes = (
            "starting up",
            "shutting down",
            "recovery mode",
            "not yet accepting",
            "too many",
            "remaining connection",
        )
        return "FATAL:" in problem and not any(text in problem for text in passes)


class ExtraMissing(Unavailable):
    message = "The setting database needs psycopg, which is not installed. Run: pip install 'forewarn[postgresql]'"


class TooFewConnections(Unavailable):
    message = (
        "The database {place} permits only {found} of the {needed} connections that each node needs: {problem}. Raise "
        "the limit of the server, of the user or of the pooler, or end other programs. Nothing was modified."
    )


class SessionsShared(Unavailable):
    message = (
        "A pooler in front of the database {place} shares sessions: a setting of one connection is gone, or another "
        "connection has it. Forewarn needs a session for each connection: pool_mode = session in PgBouncer. Nothing "
        "was modified."
    )


class DatabaseTooOld(Unavailable):
    message = (
        "The database {place} is PostgreSQL {found}. Forewarn needs PostgreSQL {oldest} or newer. Nothing was modified."
    )


class SchemaForeign(Unavailable):
    message = (
        "The schema {schema!r} of the database {place} belongs to another program: it has {example!r}, and was not "
        "created by Forewarn. Use another schema with --database-schema. Nothing was modified."
    )


class SchemaNewer(Unavailable):
    message = (
        "A newer Forewarn wrote the schema {schema!r} of the database {place} (version {found}; this one supports "
        "{known}). Upgrade Forewarn. Nothing was modified."
    )


class StoreDamaged(Unavailable):
    message = (
        "The database {path} is damaged ({problem}). Forewarn did not modify it. Restore it from a backup, or move it"
        " away to start with an empty one."
    )


class StoreNewer(Unavailable):
    message = (
        "A newer Forewarn wrote the database {path} (schema {found}; this version supports {known}). Upgrade "
        "Forewarn. The database was not modified."
    )


class StoreForeign(Unavailable):
    message = "{path} is not a Forewarn database. Use another folder with --data. The file was not modified."


class MoveFailed(Unavailable):
    message = "Row {row} of {table} differs after the copy. Nothing was changed at the target."


class BackupFailed(Unavailable):
    message = "Cannot back up to {path}: {problem}. An earlier backup was not changed."


class RestoreFailed(Unavailable):
    message = "Cannot restore {path}: {problem}. The data folder was not changed."


class ServiceStopping(Unavailable):
    message = "The service is stopping. Retry after it has restarted."


class ServiceBusy(Unavailable):
    message = "The service works on {maximum} {what} at a time, and there are that many now. Retry in some seconds."


class NotRunning(Unavailable):
    message = (
        "The service is not running. Use it, its VMs and its events between start() and stop(): inside the `with` "
        "block, or in a test that uses the fixture."
    )


class DocumentNotSeen(Unavailable):
    message = "{vm} has not seen its document within {limit:g} s of real time: {did}. The clock is at {now}. {remedy}"


class WaitAbandoned(Unavailable):
    message = "The client that waited for VMs to see their documents has disconnected."


class ServiceUnreachable(Unavailable):
    message = "No valid response from the service at {url}: {problem}. Check the address, and whether it is running."


class ServiceNotProven(Unavailable):
    message = (
        "The program at {url} did not prove that it is the service {name!r}. Another program may use this address. "
        "The token was not sent. List the services with: forewarn service list"
    )


class EndpointUnreachable(Unavailable):
    message = "The endpoint at {url} does not respond ({problem}). Start the server under test, or correct the URL."


class TooManyFeedClients(Unavailable):
    message = "The feed has {maximum:,} clients, the maximum. Let one client forward its events to others."


class TooManyFeedClientsOfToken(TooManyFeedClients):
    message = (
        "The token {token} has {maximum:,} clients of the feed, the maximum. Close one of them, or use another token."
    )


class TooManySignIns(Unavailable):
    message = (
        "{name} has signed in too often. Wait {seconds} s. A session lasts for hours: sign in once, and use the token "
        "itself in programs."
    )


class WebhookTestFailed(Unavailable):
    message = "The delivery to webhook {name} failed: {problem}. Check the receiver and the webhook's URL."


# --- Errors of the agent and of its client library ------------------------------------------------


class BadAgentConfig(BadFile):
    message = "{source}:{line}: {key}: {problem}"


class PolicyHasWarnings(Invalid):
    message = "{source} has {warnings}, and --strict allows none."


class BadCommandLine(Invalid):
    message = "{problem} See: {program} --help"


class AgentNotRunning(Unavailable):
    message = (
        "No agent uses the state folder {folder}. Start one with: forewarn agent run. If the agent uses another state "
        "folder, give that folder with --state."
    )


class AgentHung(Unavailable):
    message = (
        "The agent with the state folder {folder} does not respond ({problem}). Read its log, and restart it if this "
        "continues."
    )


class UnitDiffers(Conflict):
    message = (
        "{path} exists with different content. Compare it with the output of --print, or overwrite it with --force."
    )


class UnitMasked(Conflict):
    message = "The unit {path} is masked, so systemd will not start it. To allow it, run: systemctl unmask {unit}"


class PolicyNeedsRestart(Conflict):
    message = "The new policy file changes {keys}. Restart the agent to use it."


class NoStateFolder(Invalid):
    message = (
        "The agent has no state folder, because this user has no home directory. Set one with --state DIR or "
        "FOREWARN_AGENT_STATE."
    )


class NeedsUnix(Invalid):
    message = (
        "`forewarn agent {command}` needs Linux: this Python has no module fcntl. Here you can use `agent check`, "
        "`agent plan` and the library forewarn.agent."
    )


class BadEndpoint(Invalid):
    message = "{url!r} is not the URL of a Scheduled Events endpoint: {problem} Write it like http://127.0.0.1:8169"


class EndpointNotFound(NotFound):
    message = "Found no Scheduled Events endpoint: {problem} Set it with --endpoint or FOREWARN_ENDPOINT."


class StateInUse(Conflict):
    message = (
        "Another agent uses {folder}. Two agents must not share a state folder: stop that agent, or use another "
        "folder with --state."
    )


class EndpointError(Unavailable):
    message = "The endpoint {problem}"

    kind = "error"
    """Stable short name of the error, for metrics and for the retry policy."""

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait before the next attempt, from the Retry-After header; None without one."""
        found = self.fields.get("retry_after")
        return found if isinstance(found, float) else None


class EndpointConnectionFailed(EndpointError):
    message = "Cannot connect to the endpoint {url}: {problem}."

    kind = "unreachable"


class NoEndpointKnown(EndpointError):
    message = "{problem}"

    kind = "unreachable"


class EndpointReset(EndpointError):
    message = "The endpoint {url} closed the connection without a response ({problem})."

    kind = "reset"


class EndpointTimedOut(EndpointError):
    message = "The endpoint {url} did not respond within {seconds:g} s."

    kind = "timeout"


class EndpointStalled(EndpointError):
    message = "The endpoint {url} sent part of a response, but not the rest within {seconds:g} s."

    kind = "stalled"


class EndpointEmpty(EndpointError):
    message = "The endpoint returned 200 with an empty body."

    kind = "empty"


class EndpointIncomplete(EndpointError):
    message = "The endpoint {url} closed the connection before the response was complete."

    kind = "cut-off"


class EndpointUnreadable(EndpointError):
    message = "The endpoint returned an unreadable response: {problem}."

    kind = "unreadable"


class EndpointGone(EndpointError):
    message = "The endpoint returned 410: it is being updated."

    kind = "gone"


class EndpointThrottled(EndpointError):
    message = "The endpoint returned 429: this VM sent too many requests."

    kind = "throttled"


class EndpointFailing(EndpointError):
    message = "The endpoint returned {status}: {problem}"

    kind = "failing"


class EndpointRejected(EndpointError):
    message = "The endpoint rejected the request with {status}: {problem}"

    kind = "rejected"


class EndpointWithoutEvents(EndpointError):
    message = "The endpoint does not provide Scheduled Events for this VM. It returned 404: {problem}"

    kind = "not-found"


class EndpointUnmodified(EndpointError):
    message = "The endpoint returned 304 (Not Modified) to a request without If-None-Match."

    kind = "not-modified"


class ClientClosed(EndpointError):
    message = "The request to the endpoint was cancelled, because the client was closed or its task was cancelled."

    kind = "closed"


class NothingToApprove(Invalid):
    message = "Cannot approve {given}. Pass events, or event ids."


class ChangeWithoutClient(Conflict):
    message = "This change has no client to send the approval with. Use approve() of a Client."


class BadPollSeconds(Invalid):
    message = (
        "Invalid poll_seconds {value!r}. Use a number of seconds from {minimum:g} to {maximum:g}. Azure recommends 1."
    )


class HandlerFailed(Unavailable):
    message = "{problem}"


class PagesNotListening(CannotListen):
    message = "Cannot listen on {address}: {problem} Choose another address with --listen, or in [agent] listen."


class PeersNotListening(Unavailable):
    message = "[peers] listen: cannot listen on {address}: {problem} Use an address of this VM and a free port."


class PeerRequestFailed(Unavailable):
    message = "{vm} {problem}"


class BadPeerMessage(Invalid):
    message = "{problem}"
