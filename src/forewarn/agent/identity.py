"""Who this machine is, and which name in an event is its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
