"""A lost connection: the page says so, and catches up without a gap."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from forewarn.testing import ServiceProcess
    from portal_user import PortalUser

FLEET = """
[[vm]]
name = "web-0"
address = "127.0.0.1"
"""


def test_the_service_is_killed_and_restarted(
    make_service: Callable[..., ServiceProcess], visit: Callable[..., PortalUser]
) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    service.document()
    user = visit(service.control_url, service.token)
    user.sees("live", "header")
    user.sees("No event is scheduled or started.")
    address = service.control_url.removeprefix("http://")
    service.kill()
    user.sees("The connection to the service is lost")
    user.sees("disconnected", "header")
    user.sees("No event is scheduled or started.")  # the last known state stays

    service.start("--clock", "virtual", FOREWARN_CONTROL=address)
    service.control("POST", "/v1/operations", {"cause": "restart", "vms": ["web-0"]})
    user.sees("Reboot", "table")
    user.no_longer_sees("The connection to the service is lost")
    user.sees("live", "header")


def test_a_connection_that_is_cut_and_restored(
    make_service: Callable[..., ServiceProcess], visit: Callable[..., PortalUser]
) -> None:
    """The service continues while the browser cannot reach it. The page then shows what happened in the meantime."""
    service = make_service("--clock", "virtual", fleet=FLEET)
    service.document()
    with Relay(service.control_url) as relay:
        user = visit(relay.url, service.token)
        user.sees("No event is scheduled or started.")
        user.follow("History")
        relay.cut()
        user.sees("The connection to the service is lost")
        service.control("POST", "/v1/operations", {"cause": "restart", "vms": ["web-0"]})
        service.control("POST", "/v1/clock/advance", {"by": "1h"})
        relay.restore()
        user.sees("completed", "table")
        user.no_longer_sees("The connection to the service is lost")
        sequences = user.page.locator("table tbody tr").evaluate_all("rows => rows.map(row => row.id)")
        newest = service.control("GET", "/v1/history?order=newest&limit=1").json()["history"][0]["sequence"]
        assert sequences == [f"row-{number}" for number in range(newest, 0, -1)]


class Relay:
    """Forwards connections to an address, until it is cut."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: set[socket.socket] = set()
        self._is_cut = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Reset all connections, and every new one."""
        self._is_cut = True
        for each in list(self._sockets):
            _reset(each)

    def restore(self) -> None:
        self._is_cut = False

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_cut:
                    _reset(client)
                    continue
                server = socket.create_connection(self._target)
                self._sockets |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for each in (source, target):
            _reset(each)
            self._sockets.discard(each)


def _reset(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
