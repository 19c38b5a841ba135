"""What goes wrong in an agent, and in the library that it is built on."""

from __future__ import annotations

from forewarn.errors.families import Conflict, Invalid, NotFound, Unavailable
from forewarn.errors.invalid import CannotListen


class BadAgentConfig(Invalid):
    """{source}:{line}: {key}: {problem}"""


class BadCommandLine(Invalid):
    """{problem} See: {program} --help"""


class NoAgentRuns(Unavailable):
    """No agent is running on {folder}. Start one with: forewarn agent run. If it keeps its state elsewhere, say where
    with --state."""


class AgentHung(Unavailable):
    """The agent on {folder} does not answer ({problem}). See its log, and start it again if it stays so."""


class UnitDiffers(Conflict):
    """{path} is there already and says something else. Compare it with what --print shows; --force writes over it."""


class UnitMasked(Conflict):
    """{path} is masked: somebody has said that this unit must not start. If it may, write: systemctl unmask {unit}"""


class NoStateFolder(Invalid):
    """Nobody has said where the agent keeps what it has done, and this user has no home. Say it with --state DIR or
    FOREWARN_AGENT_STATE."""


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

    @property
    def retry_after(self) -> float | None:
        """How many seconds the endpoint itself asks for before the next try."""
        found = self.fields.get("retry_after")
        return found if isinstance(found, float) else None


class EndpointAway(EndpointTrouble):
    """The endpoint {url} cannot be reached: {problem}."""

    kind = "unreachable"


class EndpointUnknown(EndpointTrouble):
    """{problem}"""

    kind = "unreachable"


class EndpointReset(EndpointTrouble):
    """The endpoint {url} has ended the connection without an answer ({problem})."""

    kind = "reset"


class EndpointSilent(EndpointTrouble):
    """The endpoint {url} has not answered within {seconds:g} s."""

    kind = "timeout"


class EndpointStalled(EndpointTrouble):
    """The endpoint {url} has sent a part of an answer, and not the rest of it within {seconds:g} s."""

    kind = "stalled"


class EndpointEmpty(EndpointTrouble):
    """The endpoint has answered 200 with an empty body."""

    kind = "empty"


class EndpointCutOff(EndpointTrouble):
    """The endpoint {url} has ended an answer before it was whole."""

    kind = "cut-off"


class EndpointUnreadable(EndpointTrouble):
    """The endpoint has answered what cannot be read: {problem}."""

    kind = "unreadable"


class EndpointGone(EndpointTrouble):
    """The endpoint has answered 410: it is being updated."""

    kind = "gone"


class EndpointThrottled(EndpointTrouble):
    """The endpoint has answered 429: it has had too many requests of this machine."""

    kind = "throttled"


class EndpointFailing(EndpointTrouble):
    """The endpoint has answered {status}: {problem}"""

    kind = "failing"


class EndpointRefused(EndpointTrouble):
    """The endpoint has refused that with {status}: {problem}"""

    kind = "refused"


class EndpointNotHere(EndpointTrouble):
    """The endpoint has no scheduled events for this machine. It has answered 404: {problem}"""

    kind = "not-here"


class EndpointUnmodified(EndpointTrouble):
    """The endpoint has answered 304, not modified, to a question for the whole document."""

    kind = "not-modified"


class EndpointLeft(EndpointTrouble):
    """The endpoint was not waited for any longer: the client was closed, or its task cancelled."""

    kind = "closed"


class NothingToApprove(Invalid):
    """{given} is nothing to approve: give events, or their ids."""


class NobodyToApprove(Conflict):
    """This change did not come from a client, so there is none to approve it with. Use approve() of a Client."""


class BadPollSeconds(Invalid):
    """poll_seconds is {value!r}. Give a number of seconds from {least:g} to {most:g}; Azure advises 1."""


class HandlerFailed(Unavailable):
    """{problem}"""


class PagesNotListening(CannotListen):
    """Cannot listen on {address}: {problem} Choose another with --listen, or in [agent] listen."""


class PeersNotListening(Unavailable):
    """[peers] listen: {address} cannot be listened on: {problem} Name an address of this machine and a port that
    nobody else uses."""


class PeerTrouble(Unavailable):
    """{vm} {problem}"""


class BadWord(Invalid):
    """{problem}"""
