"""This machine's name (given, from the endpoint, or the host name), and which name in an event refers to it."""

from __future__ import annotations

import math
import re
import socket
from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.clock import real_seconds
from forewarn.agent.protocol import NAME_PATH, OK, error_in
from forewarn.errors import EndpointError, EndpointUnreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from forewarn.agent.transport import EndpointResponse


# --- Names ----------------------------------------------------------------------------------------


GIVEN = "--vm-name"
FROM_ENDPOINT = "the endpoint"
HOST_NAME = "the host name"

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_PLACES = 6
"""Digits of the base-36 number at the end of a scale set's host names."""
_OF_SCALE_SET = re.compile(r"(?P<set>.+)_(?P<number>0|[1-9][0-9]{0,9})", re.DOTALL)
_OF_CLOUD_SERVICE = re.compile(r".+_IN_[0-9]+", re.DOTALL)
_SCALE_SET_HOST = re.compile(rf"(?P<set>.+?)(?P<number>[0-9A-Za-z]{{{_PLACES}}})", re.DOTALL)


class MachineIdentity(NamedTuple):
    """This machine's name and its origin: GIVEN, FROM_ENDPOINT, HOST_NAME, or another text for a given name."""

    name: str
    origin: str

    def listed_as(self, resources: Sequence[str]) -> str | None:
        """Return the entry in an event's resources that is this machine; None: the event does not affect it.

        An exact match wins over another letter case, and the name itself wins over its other forms.
        """
        for form in self._possible_names():
            # The first preview version put an underscore before names.
            for written in (form, f"_{form}"):
                if written in resources:
                    return written
            forms = {form.lower(), f"_{form}".lower()}
            alike = {entry for entry in resources if entry.lower() in forms}
            if len(alike) == 1:
                return alike.pop()
        return None

    def _possible_names(self) -> Iterator[str]:
        """Return the names that an event may use for this machine, the most likely first."""
        if not self.name:
            return
        yield self.name
        names = [self.name]
        if self.origin == HOST_NAME:
            label, _, domain = self.name.rstrip(".").partition(".")
            # The last part of a domain is never a number: web.1 is a complete machine name.
            if label and domain and not domain.rpartition(".")[2].isdigit():
                yield label
                names.append(label)
            for name in names:
                host = _SCALE_SET_HOST.fullmatch(name)
                if host:
                    yield f"{host['set']}_{int(host['number'], 36)}"
        instance = _OF_SCALE_SET.fullmatch(self.name)
        if instance and not _OF_CLOUD_SERVICE.fullmatch(self.name) and int(instance["number"]) < 36**_PLACES:
            yield instance["set"] + _in_base_36(int(instance["number"]))


def choose_identity(given: str, request: Callable[[], str | None], host_name: str) -> MachineIdentity:
    """Return the given name, else the endpoint's, else the host name."""
    if given.strip():
        return MachineIdentity(given.strip(), GIVEN)
    name = (request() or "").strip()
    return MachineIdentity(name, FROM_ENDPOINT) if name else MachineIdentity(host_name.strip(), HOST_NAME)


def _in_base_36(number: int) -> str:
    digits = ""
    for _ in range(_PLACES):
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits.upper()


# --- Requesting the name from the endpoint --------------------------------------------------------


_MAX_TRIES, _MAX_SECONDS = 8, 8.0
"""Enough of a Preempt's 30 seconds of notice must remain."""
REQUEST_SECONDS = 4.0
RETRY_SECONDS = 30.0
"""After these tries, use the host name. It is only a guess, so request the name again after this time."""
_MAX_NAME_LENGTH = 300
_BAD_REQUEST, _GONE, _THROTTLED, _SERVER_ERROR = 400, 410, 429, 500


def read_name(response: EndpointResponse) -> str:
    """Return the name in a response; empty: the endpoint has no names. Raise an EndpointError if it failed."""
    if _BAD_REQUEST <= response.status < _SERVER_ERROR and response.status not in (_GONE, _THROTTLED):
        return ""
    if response.status != OK:
        raise error_in(response)
    name = response.body.decode("utf-8", "replace").strip()
    if not name or len(name) > _MAX_NAME_LENGTH or not name.isprintable():
        raise EndpointUnreadable(problem="the name of the VM is empty, too long or not printable")
    return name


class NameResolver:
    """Finds this machine's name. A response settles it; after repeated failures, the host name is used for a while."""

    def __init__(self, given: str) -> None:
        self._given = given
        self._tries = 0
        self._since = 0.0
        self._retry_at = math.inf
        self.last: MachineIdentity = choose_identity(given, lambda: None, socket.gethostname())
        self.is_known = bool(given)

    def me(self, request: Callable[[str], EndpointResponse]) -> MachineIdentity:
        """Return the given name, or the endpoint's; until it is known, the host name."""
        if not self.is_known or real_seconds() >= self._retry_at:
            self._since = self._since or real_seconds()
            try:
                name = read_name(request(NAME_PATH))
            except EndpointError:
                self._failed()
            else:
                self._retry_at, self.is_known = math.inf, True
                if name:
                    self.last = choose_identity(self._given, lambda: name, socket.gethostname())
        return self.last

    def _failed(self) -> None:
        self._tries += 1
        if self._tries >= _MAX_TRIES or real_seconds() - self._since >= _MAX_SECONDS:
            self.is_known, self._retry_at = True, real_seconds() + RETRY_SECONDS
