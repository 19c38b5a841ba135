"""What goes wrong in an agent, and in the library that it is built on."""

from __future__ import annotations

from forewarn.errors.families import Conflict, Invalid, NotFound, Unavailable


class BadAgentConfig(Invalid):
    """{source}:{line}: {key}: {problem}"""


class BadEndpoint(Invalid):
    """{url!r} is no endpoint of Scheduled Events: {problem} Write it like http://127.0.0.1:8169"""


class EndpointNotFound(NotFound):
    """No endpoint of Scheduled Events was found: {problem} Name one with --endpoint or FOREWARN_ENDPOINT."""


class StateInUse(Conflict):
    """Another agent works in {folder}. Two agents of one machine would undo each other's work: stop that one, or
    give this one a folder of its own with --state."""


class EndpointTrouble(Unavailable):
    """The endpoint {problem}"""

    kind = "trouble"
    """What it is, in a word that stays the same: for counts and for deciding how long to wait."""


class HandlerFailed(Unavailable):
    """{problem}"""


class PeersNotListening(Unavailable):
    """[peers] listen: {address} cannot be listened on: {problem} Name an address of this machine and a port that
    nobody else uses."""


class PeerTrouble(Unavailable):
    """{vm} {problem}"""


class BadWord(Invalid):
    """{problem}"""
