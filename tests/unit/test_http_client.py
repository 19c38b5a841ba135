"""The client of the command line and the test kit: no proxy, no redirect, one trusted certificate."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
import trustme

from forewarn.system.http_client import Origin, opened, origin_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class Handler(BaseHTTPRequestHandler):
    """Says who called, or where to go."""

    def do_POST(self) -> None:
        said = self.rfile.read(int(self.headers["Content-Length"]))
        body = f"{self.client_address[0]} {self.headers['X-Name']} {said.decode()}".encode()
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "/here")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def said_by(origin: Origin, target: str = "/here", source: str = "") -> tuple[int, str]:
    with opened(origin, "POST", target, {"X-Name": "ann"}, "hello", seconds=10, source=source) as answer:
        return answer.status, answer.read().decode()


def test_a_request_from_an_address_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving() as port:
        origin = origin_of(f"http://127.0.0.1:{port}/path?query")
        assert said_by(origin) == (200, "127.0.0.1 ann hello")
        assert said_by(origin, source="127.0.0.7") == (200, "127.0.0.7 ann hello")


def test_a_redirect_is_returned_and_not_followed() -> None:
    with serving() as port:
        assert said_by(Origin("127.0.0.1", port), "/away")[0] == 302


def test_one_certificate_is_trusted_and_nothing_else() -> None:
    authority = trustme.CA()
    # Issued for another name: only that it is the very certificate counts.
    issued = authority.issue_cert("elsewhere.example")
    other = authority.issue_cert("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(context)
    with serving(context) as port:
        url = f"https://127.0.0.1:{port}"
        assert said_by(origin_of(url, issued.cert_chain_pems[0].bytes().decode()))[0] == 200
        for trusted in (other.cert_chain_pems[0].bytes().decode(), ""):
            with pytest.raises(ssl.SSLCertVerificationError):
                said_by(origin_of(url, trusted))


def test_a_server_that_sends_nothing_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        origin = Origin(*silent.getsockname())
        with pytest.raises(TimeoutError), opened(origin, "GET", "/", {}, seconds=0.05):
            pass


@pytest.mark.parametrize(
    ("url", "host", "port", "tls"),
    [
        ("http://localhost", "localhost", 80, False),
        ("http://[::1]:8170/base", "::1", 8170, False),
        ("https://forewarn.example.org", "forewarn.example.org", 443, True),
    ],
)
def test_the_origin_of_a_url(url: str, host: str, port: int, tls: bool) -> None:
    origin = origin_of(url)
    assert (origin.host, origin.port, origin.tls is not None) == (host, port, tls)
