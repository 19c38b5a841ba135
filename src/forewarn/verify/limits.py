"""Section 3 of the contract, last part: connections, size limits, slow clients and the rate limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.clock import real_seconds
from forewarn.verify.check import CheckFailed, CheckRegistry, CheckSkipped, Mark
from forewarn.verify.endpoint import NEWEST, pause, target_for
from forewarn.verify.exchange import CONNECTION_CLOSE, METADATA_TRUE, HttpConnection, HttpRequest, truncate
from forewarn.verify.refusals import THROTTLED
from forewarn.verify.snapshot import read

if TYPE_CHECKING:
    from forewarn.verify.exchange import HttpResponse
    from forewarn.verify.session import Session

check = CheckRegistry(3, "requests")

_POLL = HttpRequest("GET", target_for(NEWEST))
_UNKNOWN_PATH = HttpRequest("GET", target_for(NEWEST, "/metadata/nothing"))
_BURST = 20
"""Four times the limit per second, so that a server with the limit cannot accept all of them."""
_LARGE_BYTES = 2_000_000
_IMMEDIATE_SECONDS = 0.5
"""A server that closes later than this has an idle timeout, which it need not announce."""


# --- Connections ----------------------------------------------------------------------------------


def _poll_and_watch(session: Session) -> tuple[HttpResponse, bool]:
    """Poll, and return the response and whether the server closed the connection after it."""
    for _ in range(20):
        with session.endpoint.connect() as connection:
            connection.send(_POLL.raw)
            response = connection.read_response(_POLL)
            if response.status != 429:
                return response, connection.is_closed(_IMMEDIATE_SECONDS)
        pause(0.3)
    return response, False


@check(
    "connection-close-announced",
    Mark.OBSERVED,
    "A server that closes the connection after a response sends `Connection: close` in it.",
)
def connection_close_announced(session: Session) -> None:
    response, closed = _poll_and_watch(session)
    header = response.header("connection") or "missing"
    actual = f"{response.status} with Connection: {header}, then a closed connection"
    response.expect(response.closes or not closed, "Connection: close, or an open connection", actual=actual)


@check(
    "keep-alive",
    Mark.ASSUMED,
    "The connection stays open for more requests, unless the response has `Connection: close`.",
)
def keep_alive(session: Session) -> None:
    for _ in range(20):
        with session.endpoint.connect() as connection:
            connection.send(_POLL.raw)
            first = connection.read_response(_POLL)
            if first.closes:
                return
            try:
                connection.send(_UNKNOWN_PATH.raw)
                second = connection.read_response(_UNKNOWN_PATH)
            except OSError as error:
                expected = "a response over the same connection"
                raise CheckFailed(expected, request=_UNKNOWN_PATH.summary, actual=str(error)) from error
        if 429 not in (first.status, second.status):
            break
        pause(0.5)
    second.expect(second.status == 404, "404 for an unknown path")


@check("pipelining", Mark.ASSUMED, "The server responds to pipelined requests in order.")
def pipelining(session: Session) -> None:
    try:
        responses = session.endpoint.pipeline(_POLL, _UNKNOWN_PATH, _POLL)
    except OSError as error:
        raise CheckFailed("three responses", request="three requests in one write", actual=str(error)) from error
    for response, status in zip(responses, (200, 404, 200), strict=False):
        response.expect(response.status == status, f"{status} at this position")


@check(
    "connection-close-requested",
    Mark.ASSUMED,
    "After a request with `Connection: close`, the server sends `Connection: close` and closes the connection.",
)
def connection_close_requested(session: Session) -> None:
    request = HttpRequest("GET", target_for(NEWEST), (*METADATA_TRUE, CONNECTION_CLOSE))
    for _ in range(20):
        with session.endpoint.connect() as connection:
            connection.send(request.raw)
            response = connection.read_response(request)
            if response.status != 429:
                response.expect(response.closes, "Connection: close")
                response.expect(connection.is_closed(), "a closed connection", actual="an open connection")
                return
        pause(0.3)


@check("http-1.0", Mark.ASSUMED, "An HTTP/1.0 request gets the document.")
def http_1_0(session: Session) -> None:
    read(session.endpoint.request(protocol="1.0"))


# --- Size limits ----------------------------------------------------------------------------------


def _send_unacceptable(session: Session, data: bytes, description: str) -> HttpResponse | None:
    """Send data that no server must accept. Return the response, or None if the server closes the connection.

    Fail the check if the server hangs, or does not serve the next client.
    """
    request = HttpRequest("POST", description, ())
    try:
        with session.endpoint.connect() as connection:
            try:
                connection.send(data)
            except TimeoutError:
                expected, actual = "a response or a closed connection", "the server neither reads nor closes"
                raise CheckFailed(expected, request=description, actual=actual) from None
            except OSError:
                pass  # closed while sending; a response may still be there
            response = connection.read_response(request)
    except CheckFailed as failure:
        if "no more data within" in failure.actual or "neither" in failure.actual:
            raise
        response = None
    except OSError:
        response = None
    read(session.endpoint.request())
    return response


@check(
    "large-body",
    Mark.ASSUMED,
    "A body that is too large gets 413, 400 or a closed connection. The server neither sends 500 nor hangs.",
)
def large_body(session: Session) -> None:
    description = f"POST with a body of {_LARGE_BYTES} bytes"
    request = HttpRequest("POST", target_for(NEWEST), METADATA_TRUE, b" " * _LARGE_BYTES)
    for _ in range(20):
        response = _send_unacceptable(session, request.raw, description)
        if response is None or response.status != 429:
            break
        pause(0.3)
    if response is not None and response.status not in (400, 413):
        raise CheckFailed("413, 400 or a closed connection", request=description, actual=response.summary)


@check(
    "large-header",
    Mark.ASSUMED,
    "A header that is too large gets 431 or a closed connection. The server neither sends 500 nor hangs.",
)
def large_header(session: Session) -> None:
    description = f"GET with a header of {_LARGE_BYTES} bytes"
    request = HttpRequest("GET", target_for(NEWEST), (*METADATA_TRUE, ("X-Large", "a" * _LARGE_BYTES)))
    response = _send_unacceptable(session, request.raw, description)
    if response is not None and response.status not in (413, 431):
        raise CheckFailed("431 or a closed connection", request=description, actual=response.summary)


@check(
    "not-http",
    Mark.ASSUMED,
    "Data that is not HTTP gets 400 or a closed connection. The server neither sends 500 nor hangs.",
)
def not_http(session: Session) -> None:
    for data in (b"\x00\x01 rubbish\r\n\r\n", b"Hello, is anybody there?\r\n\r\n"):
        response = _send_unacceptable(session, data, repr(data))
        if response is not None and not 400 <= response.status < 500:
            raise CheckFailed("400 or a closed connection", request=repr(data), actual=response.summary)


# --- Slow clients ---------------------------------------------------------------------------------


@check(
    "slow-client-does-not-block",
    Mark.ASSUMED,
    "The server serves other clients while one client has sent only half of a request.",
)
def slow_client_does_not_block(session: Session) -> None:
    connection = session.endpoint.connect(session.slow_client_seconds)
    session.slow_connection = connection, real_seconds()
    connection.send(_POLL.raw[:-2])
    try:
        read(session.endpoint.request())
    except CheckFailed:
        connection.socket.close()
        raise


@check(
    "slow-client-is-closed",
    Mark.ASSUMED,
    "The server closes the connection of a client that does not finish its request.",
    late=True,
)
def slow_client_is_closed(session: Session) -> None:
    if session.slow_connection is None:
        slow_client_does_not_block(session)
    assert session.slow_connection is not None  # noqa: S101 - set above
    connection, start = session.slow_connection
    with connection:
        try:
            _wait_for_close(connection, max(start + session.slow_client_seconds, real_seconds() + 0.1))
        except TimeoutError:
            actual = f"an open connection after {real_seconds() - start:.0f} s"
            raise CheckFailed("a closed connection", request="half of a request", actual=actual) from None


def _wait_for_close(connection: HttpConnection, deadline_seconds: float) -> None:
    """Read until the server closes the connection. Data that arrives meanwhile does not extend the deadline."""
    try:
        while (remaining := deadline_seconds - real_seconds()) > 0:
            connection.socket.settimeout(remaining)
            if not connection.socket.recv(65536):
                return
    except TimeoutError:
        raise
    except OSError:
        return  # a reset is a close, too
    raise TimeoutError


# --- Rate limit -----------------------------------------------------------------------------------


@check(
    "rate-limit",
    Mark.DOCUMENTED,
    "More than five requests per second from one VM get 429, as plain text with the published text.",
)
def rate_limit(session: Session) -> None:
    burst = f"{_BURST} requests at once"
    connections: list[HttpConnection] = []
    try:
        for _ in range(_BURST):
            connections.append(session.endpoint.connect())
            connections[-1].send(_POLL.raw)
        responses = [connection.read_response(_POLL) for connection in connections]
    except OSError as error:
        raise CheckFailed("a response to each", request=burst, actual=str(error)) from error
    finally:
        for connection in connections:
            connection.socket.close()
    throttled = [response for response in responses if response.status == 429]
    if not throttled:
        actual = truncate(", ".join(str(response.status) for response in responses))
        raise CheckFailed("429 for some of them", request=burst, actual=actual)
    for response in throttled:
        content_type = (response.header("content-type") or "").lower()
        valid = response.body == THROTTLED and content_type.startswith("text/plain")
        response.expect(valid, f"429 as text/plain with exactly {THROTTLED.decode()}")


@check("rate-limit-recovers", Mark.DOCUMENTED, "One second after 429 the server responds normally again.")
def rate_limit_recovers(session: Session) -> None:
    if all(session.endpoint.request_once(_POLL).status != 429 for _ in range(_BURST)):
        raise CheckSkipped("the server has no rate limit; see requests/rate-limit")
    pause(1.2)
    read(session.endpoint.request_once(_POLL))
