"""Section 3 of the contract, last part: connections, and requests that are too many, too large, too slow or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.clock import real_seconds
from forewarn.verify.check import Departure, Mark, Rules, Skip
from forewarn.verify.endpoint import NEWEST, at, pause
from forewarn.verify.exchange import TRUE, Line, Request, cut
from forewarn.verify.refusals import THROTTLED
from forewarn.verify.snapshot import read

if TYPE_CHECKING:
    from forewarn.verify.exchange import Reply
    from forewarn.verify.session import Session

rules = Rules(3, "requests")

_POLL = Request("GET", at(NEWEST))
_VERSIONS = Request("GET", "/metadata/versions")
_NOWHERE = Request("GET", at(NEWEST, "/metadata/nothing"))
_BURST = 20
"""Four times what is allowed in a second, so that no server that keeps to it can take all of them."""
_LARGE = 2_000_000
_AT_ONCE_SECONDS = 0.5
"""Who closes later than this does so because nothing more was asked, and need not have said it."""


# --- Connections ----------------------------------------------------------------------------------


def _on_one_connection(session: Session) -> tuple[Reply, bool]:
    """The answer to a poll, and whether the connection was closed after it."""
    for _ in range(20):
        with session.here.line() as line:
            line.send(_POLL.raw)
            reply = line.answer(_POLL)
            if reply.status != 429:
                return reply, line.ended(_AT_ONCE_SECONDS)
        pause(0.3)
    return reply, False


@rules("closing-is-said", Mark.OBSERVED, "A server that closes after an answer says `Connection: close` in it.")
def closing_is_said(session: Session) -> None:
    reply, ended = _on_one_connection(session)
    came = f"{reply.status} with Connection: {reply.header('connection') or 'missing'}, and then the end"
    reply.must(reply.closes or not ended, "Connection: close, or a connection that stays open", came=came)


@rules(
    "keep-alive", Mark.ASSUMED, "A connection stays open for more requests, unless the answer says that it does not."
)
def keep_alive(session: Session) -> None:
    for _ in range(20):
        with session.here.line() as line:
            line.send(_POLL.raw)
            first = line.answer(_POLL)
            if first.closes:
                return
            try:
                line.send(_VERSIONS.raw)
                second = line.answer(_VERSIONS)
            except OSError as error:
                raise Departure("an answer over the same connection", sent=_VERSIONS.shown, came=str(error)) from error
        if 429 not in (first.status, second.status):
            break
        pause(0.5)
    second.must(second.status == 200 and b"apiVersions" in second.body, "200 and the list of versions")


@rules("pipelining", Mark.ASSUMED, "Requests sent ahead are answered in their order.")
def pipelining(session: Session) -> None:
    try:
        replies = session.here.in_one_write(_POLL, _NOWHERE, _VERSIONS)
    except OSError as error:
        raise Departure("three answers", sent="three requests in one write", came=str(error)) from error
    rights = ((200, b"DocumentIncarnation"), (404, b"error"), (200, b"apiVersions"))
    for reply, (status, part) in zip(replies, rights, strict=False):
        reply.must(reply.status == status and part in reply.body, f"{status} with {part.decode()}, in this place")


@rules("asked-to-close", Mark.ASSUMED, "Asked to close, the server says that it does, and closes.")
def asked_to_close(session: Session) -> None:
    request = Request("GET", at(NEWEST), (*TRUE, ("Connection", "close")))
    for _ in range(20):
        with session.here.line() as line:
            line.send(request.raw)
            reply = line.answer(request)
            if reply.status != 429:
                reply.must(reply.closes, "Connection: close")
                reply.must(line.ended(), "the end of the connection", came="a connection that stays open")
                return
        pause(0.3)


@rules("http-1.0", Mark.ASSUMED, "HTTP/1.0 is served.")
def http_1_0(session: Session) -> None:
    read(session.here.ask(protocol="1.0"))


# --- Too much -------------------------------------------------------------------------------------


def _survived(session: Session, data: bytes, what: str) -> Reply | None:
    """What comes back for bytes that no server must take; nothing when it closes the connection."""
    request = Request("POST", what, ())
    try:
        with session.here.line() as line:
            try:
                line.send(data)
            except TimeoutError:
                came = "the server neither reads nor closes"
                raise Departure("an answer, or the end of the connection", sent=what, came=came) from None
            except OSError:
                pass  # closed while more was on its way; an answer may still be there
            reply = line.answer(request)
    except Departure as departure:
        if "nothing more within" in departure.came or "neither" in departure.came:
            raise
        reply = None
    except OSError:
        reply = None
    read(session.here.ask())  # whatever it was, the next client is served
    return reply


@rules("large-body", Mark.ASSUMED, "A body that is too large: 413, or the connection is closed; no 500, no hang.")
def large_body(session: Session) -> None:
    sent = f"POST with a body of {_LARGE} bytes"
    for _ in range(20):
        reply = _survived(session, Request("POST", at(NEWEST), TRUE, b" " * _LARGE).raw, sent)
        if reply is None or reply.status != 429:
            break
        pause(0.3)
    if reply is not None and reply.status != 413:
        raise Departure("413, or a closed connection", sent=sent, came=reply.shown)


@rules("large-head", Mark.ASSUMED, "Headers that are too large: 431, or the connection is closed; no 500, no hang.")
def large_head(session: Session) -> None:
    sent = f"GET with a header of {_LARGE} bytes"
    reply = _survived(session, Request("GET", at(NEWEST), (*TRUE, ("X-Large", "a" * _LARGE))).raw, sent)
    if reply is not None and reply.status not in (413, 431):
        raise Departure("431, or a closed connection", sent=sent, came=reply.shown)


@rules("not-http", Mark.ASSUMED, "What is not HTTP: 400, or the connection is closed; no 500, no hang.")
def not_http(session: Session) -> None:
    for data in (b"\x00\x01 rubbish\r\n\r\n", b"Hello, is anybody there?\r\n\r\n"):
        reply = _survived(session, data, repr(data))
        if reply is not None and not 400 <= reply.status < 500:
            raise Departure("400, or a closed connection", sent=repr(data), came=reply.shown)


@rules("slow-client-holds-up-nobody", Mark.ASSUMED, "While a client has sent half of a request, others are served.")
def slow_client_holds_up_nobody(session: Session) -> None:
    line = session.here.line(session.slow_seconds)
    session.slow = line, real_seconds()
    line.send(_POLL.raw[:-2])
    try:
        read(session.here.ask())
    except Departure:
        line.socket.close()
        raise


@rules(
    "slow-client-is-closed", Mark.ASSUMED, "A client that never finishes its request is closed in the end.", late=True
)
def slow_client_is_closed(session: Session) -> None:
    if session.slow is None:
        slow_client_holds_up_nobody(session)
    assert session.slow is not None  # noqa: S101 - it was begun above
    line, began = session.slow
    with line:
        try:
            _end(line, max(began + session.slow_seconds, real_seconds() + 0.1))
        except TimeoutError:
            came = f"an open connection after {real_seconds() - began:.0f} s"
            raise Departure("the end of the connection", sent="half of a request", came=came) from None


def _end(line: Line, end_seconds: float) -> None:
    """Read what still comes until the server closes; one that sends something now and then does not."""
    try:
        while (left := end_seconds - real_seconds()) > 0:
            line.socket.settimeout(left)
            if not line.socket.recv(65536):
                return
    except TimeoutError:
        raise
    except OSError:
        return  # closed, by either way of closing
    raise TimeoutError


# --- Too many -------------------------------------------------------------------------------------


@rules(
    "too-many",
    Mark.DOCUMENTED,
    "More than five requests in a second from one VM: 429, as plain text with its known words.",
)
def too_many(session: Session) -> None:
    lines: list[Line] = []
    try:
        for _ in range(_BURST):
            lines.append(session.here.line())
            lines[-1].send(_POLL.raw)
        replies = [line.answer(_POLL) for line in lines]
    except OSError as error:
        raise Departure("answers", sent=f"{_BURST} requests at once", came=str(error)) from error
    finally:
        for line in lines:
            line.socket.close()
    throttled = [reply for reply in replies if reply.status == 429]
    if not throttled:
        came = cut(", ".join(str(reply.status) for reply in replies))
        raise Departure("429 to some of them", sent=f"{_BURST} requests at once", came=came)
    for reply in throttled:
        kind = (reply.header("content-type") or "").lower()
        fine = reply.body == THROTTLED and kind.startswith("text/plain")
        reply.must(fine, f"429 as text/plain with exactly {THROTTLED.decode()}")


@rules("too-many-is-over-soon", Mark.DOCUMENTED, "Who has asked too often is answered again a second later.")
def too_many_is_over_soon(session: Session) -> None:
    if all(session.here.once(_POLL).status != 429 for _ in range(_BURST)):
        raise Skip("the server does not limit requests; see requests/too-many")
    pause(1.2)
    read(session.here.once(_POLL))
