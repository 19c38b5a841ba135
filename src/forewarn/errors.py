"""Every exception of Forewarn: one root, five families by what the caller can do about it.

The docstring of a class is its message, filled in with the fields it is raised with. Families, not
single errors, decide the HTTP status and the exit code.
"""

from __future__ import annotations

from difflib import get_close_matches
from inspect import cleandoc
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """The hint that follows an unknown name: the nearest known one, or nothing."""
    # A slip of the finger changes the length little; without that bound 'vn' would be nearer to 'event' than to 'vm'.
    most = max(2, len(word) // 3)
    lowered = {name.lower(): name for name in known if abs(len(name) - len(word)) <= most}
    close = get_close_matches(word.lower(), lowered, n=1, cutoff=0.5)
    return f" Did you mean {lowered[close[0]]!r}?" if close else ""


class ForewarnError(Exception):
    """Forewarn could not do that."""

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(cleandoc(type(self).__doc__ or "").replace("\n", " ").format(**fields))

    @classmethod
    def relayed(cls, text: str) -> Self:
        """An error that happened elsewhere, in the words it was reported with."""
        error = cls.__new__(cls)
        error.fields = {}
        Exception.__init__(error, text)
        return error


# --- The five families ----------------------------------------------------------------------------


class Invalid(ForewarnError):
    """The request is wrong: {problem}"""


class NotFound(ForewarnError):
    """There is no such thing: {name}"""


class Conflict(ForewarnError):
    """Not at this moment: {problem}"""


class Forbidden(ForewarnError):
    """Not yours to do: {problem}"""


class Unavailable(ForewarnError):
    """Try again later: {problem}"""


# --- Invalid: fix the request ---------------------------------------------------------------------


class BadDuration(Invalid):
    """{text!r} is not a length of time. Write it like 90s, 14m50s, 2h or 7d."""


class BadSetting(Invalid):
    """{name} = {value!r} (from {origin}) is not valid: {problem}"""


class UnknownSetting(Invalid):
    """{name!r} (in {origin}) is not a setting.{hint}"""


class BadConfigFile(Invalid):
    """The configuration file {path} cannot be read: {problem}"""


class BadFleet(Invalid):
    """{source}:{line}: {key}: {problem}"""


class UnreadableFile(Invalid):
    """Cannot read {path}: {problem}"""


class BadStartRequests(Invalid):
    """Bad request. {problem} Expected {{"StartRequests": [{{"EventId": "<id>"}}]}}."""


class UnknownStartRequest(Invalid):
    """Bad request. No scheduled event with EventId {event_id} is known here; nothing was approved."""


class BadRequestBody(Invalid):
    """{pointer}: {problem}"""

    pointer: str

    def __init__(self, *, pointer: str, problem: str) -> None:
        self.pointer = pointer
        super().__init__(pointer=pointer or "the body", problem=problem)


class UnknownCause(Invalid):
    """{name!r} is not a cause. Known are: {known}.{hint}"""


class NothingToDo(Invalid):
    """The operation names no VM. Name at least one."""


class CannotListen(Invalid):
    """Cannot listen on {address}: {problem}"""


# --- NotFound -------------------------------------------------------------------------------------


class UnknownVM(NotFound):
    """There is no VM {name!r}.{hint}"""


class UnknownHost(NotFound):
    """There is no host {name!r}.{hint}"""


class UnknownEvent(NotFound):
    """There is no event {event_id!r}.{hint}"""


class UnknownVersion(NotFound):
    """Scheduled Events has no api-version {version!r} here. Known are: {known}."""


class UnknownPath(NotFound):
    """There is nothing at {path}.{hint}"""


class NoService(NotFound):
    """No Forewarn service found: {problem} Start one with: forewarn up"""


# --- Conflict: wrong moment -----------------------------------------------------------------------


class AlreadyStarted(Conflict):
    """Event {event_id} has started: it can no longer be cancelled."""


class AlreadyOver(Conflict):
    """Event {event_id} is over ({status}): nothing more can be done to it."""


class TooEarly(Conflict):
    """Event {event_id} is not approved and may not start before {not_before}."""


class NotStarted(Conflict):
    """Event {event_id} has not started yet, so it cannot be over."""


class VMHasLiveEvent(Conflict):
    """{vms} would leave or change group with a live event ({events}). Wait, cancel the events, or apply
    with --force, which ends them."""


class ClockNotVirtual(Conflict):
    """This service runs on the system clock, which cannot be moved. Start it with: forewarn up --clock virtual"""


class DataInUse(Conflict):
    """The data folder {path} is in use by another Forewarn service (process {pid}). Stop that one, or give
    this one a folder of its own with --data."""


# --- Forbidden ------------------------------------------------------------------------------------


class BadToken(Forbidden):
    """This needs a valid token: send the header 'Authorization: Bearer <token>' with the token from the
    service's data folder."""


class NotPermitted(Forbidden):
    """Cannot {action} {path}: {problem}. Make that possible, or choose another with {flag}."""


# --- Unavailable: try later -----------------------------------------------------------------------


class StoreFailed(Unavailable):
    """The change could not be written ({problem}). Nothing was changed; try again when the disk has room
    and can be written."""


class StoreDamaged(Unavailable):
    """The database {path} is damaged ({problem}). Nothing was touched. Restore it from a copy, or move it
    away to start anew."""


class StoreNewer(Unavailable):
    """The database {path} was written by a newer Forewarn (schema {found}, this one knows {known}).
    Upgrade Forewarn; nothing was touched."""


class StoreForeign(Unavailable):
    """{path} is not a Forewarn database. Choose another folder with --data; nothing was touched."""


class Stopping(Unavailable):
    """The service is stopping. Try again when it is back."""


class ServiceUnreachable(Unavailable):
    """The service at {url} does not answer ({problem})."""
