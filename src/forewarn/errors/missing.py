"""What is not there."""

from __future__ import annotations

from forewarn.errors.families import NotFound


class UnknownVM(NotFound):
    """There is no VM {name!r}.{hint}"""

    member = "vms"


class UnknownHost(NotFound):
    """There is no host {name!r}.{hint}"""

    member = "host"


class Unknown(NotFound):
    """There is no {what} {name!r}.{hint}"""


class UnknownEvent(NotFound):
    """There is no event {event_id!r}.{hint}"""


class UnknownVersion(NotFound):
    """Scheduled Events has no api-version {version!r} here. Known are: {known}."""


class UnknownPath(NotFound):
    """There is nothing at {path}.{hint}"""


class NoService(NotFound):
    """No Forewarn service found: {problem} Start one with: forewarn up"""


class HistoryGone(NotFound):
    """What followed row {after} of history is not kept any more: the oldest row is {oldest}. Go on after 0, which is
    all that is kept, or from now on by naming no row."""


class NameNotFound(NotFound):
    """The name {name} has no address ({problem})."""
