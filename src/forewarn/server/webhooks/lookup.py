"""Names of hosts to addresses, in threads that nobody waits for: a resolver can hang for longer than anybody should.

Neither the loop's own threads, which others need, nor an executor, whose threads hold up the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from ipaddress import ip_address

from forewarn.errors import NameNotFound


class Lookup:
    """Asks the system's resolver, once for all who ask for the same name at the same time."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], asyncio.Future[list[str] | str]] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """Every address of a host, the likeliest first. An address is its own."""
        with contextlib.suppress(ValueError):
            return [str(ip_address(host))]
        key = (host, port)
        if key not in self._asked:
            loop = asyncio.get_running_loop()
            self._asked[key] = loop.create_future()
            threading.Thread(target=self._ask, args=(key, loop), name="look-up", daemon=True).start()
        found = await asyncio.shield(self._asked[key])
        if isinstance(found, str):
            raise NameNotFound(name=host, problem=found)
        return found

    def _ask(self, key: tuple[str, int], loop: asyncio.AbstractEventLoop) -> None:
        found: list[str] | str
        try:
            answers = socket.getaddrinfo(*key, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(address[0]) for *_, address in answers))
        except (OSError, UnicodeError) as error:
            found = str(getattr(error, "strerror", None) or error)
        with contextlib.suppress(RuntimeError):  # the loop may be over by now
            loop.call_soon_threadsafe(self._tell, key, found)

    def _tell(self, key: tuple[str, int], found: list[str] | str) -> None:
        self._asked.pop(key).set_result(found)
