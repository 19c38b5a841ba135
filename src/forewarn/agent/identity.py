"""Who this machine is: its name, given or from the endpoint or the host name, and which name in an event is its own."""

from __future__ import annotations

import math
import re
import socket
from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.clock import real_seconds
from forewarn.agent.protocol import NAME_PATH, OK
from forewarn.errors import EndpointTrouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from forewarn.agent.transport import Answer


# --- Names ----------------------------------------------------------------------------------------


GIVEN = "--vm-name"
ASKED = "the endpoint"
HOST_NAME = "the host name"

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_PLACES = 6
"""Of the number at the end of a scale set's host names, in base 36."""
_OF_SCALE_SET = re.compile(r"(?P<set>.+)_(?P<number>0|[1-9][0-9]{0,9})", re.DOTALL)
_OF_CLOUD_SERVICE = re.compile(r".+_IN_[0-9]+", re.DOTALL)
_SCALE_SET_HOST = re.compile(rf"(?P<set>.+?)(?P<number>[0-9A-Za-z]{{{_PLACES}}})", re.DOTALL)


class Me(NamedTuple):
    """This machine's name, and where it is from: GIVEN, ASKED or HOST_NAME, or other words for what was given."""

    name: str
    origin: str

    def listed_as(self, resources: Sequence[str]) -> str | None:
        """The entry of an event's resources that is this machine; None: the event is not about it.

        As it is written before any other letter case, and the name itself before other forms of it.
        """
        for form in self._forms():
            # The first preview put an underscore before names.
            for written in (form, f"_{form}"):
                if written in resources:
                    return written
            wanted = {form.lower(), f"_{form}".lower()}
            alike = {entry for entry in resources if entry.lower() in wanted}
            if len(alike) == 1:
                return alike.pop()
        return None

    def _forms(self) -> Iterator[str]:
        """How this machine may be called in an event, the likeliest first."""
        if not self.name:
            return
        yield self.name
        names = [self.name]
        if self.origin == HOST_NAME:
            label, _, domain = self.name.rstrip(".").partition(".")
            # The last part of a domain is never a number: web.1 is the whole name of a machine.
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


def find_me(given: str, ask: Callable[[], str | None], host_name: str) -> Me:
    """The name that is given; else what the endpoint says; else the host name."""
    if given.strip():
        return Me(given.strip(), GIVEN)
    told = (ask() or "").strip()
    return Me(told, ASKED) if told else Me(host_name.strip(), HOST_NAME)


def _in_base_36(number: int) -> str:
    digits = ""
    for _ in range(_PLACES):
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits.upper()


# --- Asking the endpoint for the name -------------------------------------------------------------


_MOST_TRIES, _MOST_SECONDS = 8, 8.0
"""Of the 30 seconds that a Preempt leaves, enough must remain."""
ASK_SECONDS = 4.0
ASK_AGAIN_SECONDS = 30.0
"""After that the host name will do, but it is only a guess: the endpoint is asked again from time to time."""
_LONGEST_NAME = 300
_BAD_REQUEST, _THROTTLED, _FAILING = 400, 429, 500


class NameResolver:
    """Who this machine is. An answer settles it; a trouble that goes on does so for a while."""

    def __init__(self, given: str) -> None:
        self._given = given
        self._tries = 0
        self._since = 0.0
        self._ask_at = math.inf
        self.last: Me = find_me(given, lambda: None, socket.gethostname())
        self.settled = bool(given)

    def me(self, ask: Callable[[str], Answer]) -> Me:
        """The name that was given, or that the endpoint says; the host name, as long as neither is there."""
        if not self.settled or real_seconds() >= self._ask_at:
            self._since = self._since or real_seconds()
            try:
                answer = ask(NAME_PATH)
            except EndpointTrouble:
                self._failed()
            else:
                self._take(answer)
        return self.last

    def _take(self, answer: Answer) -> None:
        name = answer.body.decode("utf-8", "replace").strip() if answer.status == OK else ""
        self._ask_at = math.inf
        if name and len(name) <= _LONGEST_NAME and name.isprintable():
            self.last = find_me(self._given, lambda: name, socket.gethostname())
            self.settled = True
        elif _BAD_REQUEST <= answer.status < _FAILING and answer.status not in (410, _THROTTLED):
            self.settled = True  # it has no names to give, and will not have any
        else:
            self._failed()

    def _failed(self) -> None:
        self._tries += 1
        if self._tries >= _MOST_TRIES or real_seconds() - self._since >= _MOST_SECONDS:
            self.settled, self._ask_at = True, real_seconds() + ASK_AGAIN_SECONDS
