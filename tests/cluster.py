"""Several nodes of one service, each in its own process, and a network between them that a test can cut."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from notice_witness import NoticeWitness
from tcp_ports import free_port
from watched_process import WatchedProcess

if TYPE_CHECKING:
    from pathlib import Path

    from forewarn.testing.client import HTTPResponse
    from postgresql import PostgresServer

LONGEST_WAIT_SECONDS = 60
FLEET = """\
[[host]]
name = "rack-0"

[[host]]
name = "rack-1"

[[host]]
name = "rack-2"

[[group]]
name = "web"
kind = "availability-set"

[[vm]]
name = "web-0"
group = "web"
host = "rack-0"
update_domain = 0
address = "127.0.0.2"

[[vm]]
name = "web-1"
group = "web"
host = "rack-1"
update_domain = 1
address = "127.0.0.3"

[[vm]]
name = "db-0"
host = "rack-2"
address = "127.0.0.4"

[[vm]]
name = "batch-0"
host = "rack-2"
priority = "spot"
eviction_policy = "deallocate"
address = "127.0.0.5"
"""
ADDRESSES = {"web-0": "127.0.0.2", "web-1": "127.0.0.3", "db-0": "127.0.0.4", "batch-0": "127.0.0.5"}


SYNC = b"S\0\0\0\4"
"""The message of a client of PostgreSQL that ends what it has sent at once, and its transaction."""


class Relay:
    """Passes TCP connections on to a port. While it is cut, nothing arrives, and no connection is closed."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay = 0.0
        """How long each packet takes, in each direction: half of the round trip."""
        self._torn_at: bytes | None = None
        self.port = 0
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="relay", daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._open = asyncio.Event()
        self._open.set()
        started.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # the relay is closed
            await asyncio.sleep(2 * self.delay)  # as the handshake of TCP
            await self._open.wait()
            try:
                onward, back = await asyncio.open_connection("127.0.0.1", self.target)
            except OSError:
                writer.close()
                return
            await asyncio.gather(self._pump(reader, back), self._pump(onward, writer))

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        arrived: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1000)
        try:
            await asyncio.gather(self._receive(source, arrived), self._send(arrived, target))
        except OSError:
            pass
        finally:
            target.close()

    async def _receive(self, source: asyncio.StreamReader, arrived: asyncio.Queue[tuple[float, bytes]]) -> None:
        data = b"-"
        while data:
            try:
                data = await source.read(65536)
            except OSError:
                data = b""
            await arrived.put((self._loop.time() + self.delay, data))

    async def _send(self, arrived: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter) -> None:
        tears = False  # the text was in this packet, or in an earlier one of the same transaction
        while True:
            due, data = await arrived.get()
            await asyncio.sleep(due - self._loop.time())
            await self._open.wait()
            if not data:
                return
            tears = self._torn_at is not None and (tears or self._torn_at in data)
            if tears and data.endswith(SYNC):
                self._torn_at, tears = None, False
                self._open.clear()
                target.write(data.removesuffix(SYNC))
                await self._open.wait()
                data = SYNC
            target.write(data)
            await target.drain()

    def tear(self, text: bytes) -> None:
        """Cut the connections in the middle of the next statement of PostgreSQL that has this text: the server has
        executed it, and does not hear that its transaction ends."""
        self._torn_at = text

    def cut(self) -> None:
        """Stop to pass data on."""
        self._loop.call_soon_threadsafe(lambda: self._open.clear())

    def mend(self) -> None:
        """Pass everything on again, also what has arrived meanwhile."""
        self._torn_at = None
        self._loop.call_soon_threadsafe(lambda: self._open.set())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


class NodeProcess(WatchedProcess):
    """A node. It reaches the database through a relay of its own, and other nodes reach it through another one."""

    def __init__(
        self,
        folder: Path,
        name: str,
        server: PostgresServer,
        port: int,
        schema: str,
        user: str = "forewarn",
        notices: NoticeWitness | None = None,
    ) -> None:
        """`port` is where it reaches the database."""
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, notices)
        self.name = name
        own_port = free_port()
        self.relay = Relay(port)
        self.node_relay = Relay(own_port)
        self._options = [
            *("--database", server.url_at(self.relay.port, user=user), "--database-schema", schema, "--name", name),
            *("--node-address", f"127.0.0.1:{self.node_relay.port}", "--node-listen", f"127.0.0.1:{own_port}"),
        ]

    def up(self, *arguments: str, **variables: str) -> NodeProcess:
        self.start(*self._options, *arguments, **variables)
        return self

    def pause(self) -> None:
        """Stop the process, as a machine that hangs."""
        self._running.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    @property
    def role(self) -> str:
        return str(self.own_row()["role"])

    def own_row(self) -> dict[str, Any]:
        """What the node says about itself."""
        own: dict[str, Any] = next(each for each in self.get_json("/v1/nodes")["nodes"] if each["is_self"])
        return own

    def poll(self, vm: str, etag: str = "", prefer: str = "") -> HTTPResponse:
        headers = {"Metadata": "true"} | ({"If-None-Match": etag} if etag else {})
        return self.request(source=ADDRESSES[vm], headers=headers | ({"Prefer": prefer} if prefer else {}))

    def approve_as(self, vm: str, event: str) -> HTTPResponse:
        return self.approve(event, source=ADDRESSES[vm])


class Cluster:
    """Nodes of one service."""

    def __init__(self, folder: Path, server: PostgresServer, schema: str) -> None:
        self._folder = folder
        self._server = server
        self._schema = schema
        self.database_port = server.port
        """Where the nodes reach the database: the server, or a pooler."""
        self.command: tuple[str, ...] = NodeProcess.command
        """The program of the nodes."""
        self.nodes: list[NodeProcess] = []
        self.notices = NoticeWitness()
        """What clients saw of any node."""
        (folder / "fleet.toml").write_text(FLEET)

    def add(self, *arguments: str, user: str = "forewarn", **variables: str) -> NodeProcess:
        """Start another node, with a user of the database."""
        name = f"node-{len(self.nodes)}"
        node = NodeProcess(
            self._folder / name, name, self._server, self.database_port, self._schema, user, notices=self.notices
        )
        node.command = self.command
        self.nodes.append(node)
        return node.up("--fleet", str(self._folder / "fleet.toml"), *arguments, **variables)

    def leader(self, among: list[NodeProcess] | None = None) -> NodeProcess:
        """Wait until one of the running nodes leads."""
        for _ in range(LONGEST_WAIT_SECONDS * 10):
            for node in among or [node for node in self.nodes if node.process is not None]:
                if node.role == "leader":
                    return node
            threading.Event().wait(0.1)
        raise AssertionError("no node leads")

    def followers(self) -> list[NodeProcess]:
        return [node for node in self.nodes if node.process is not None and node.role != "leader"]

    def until_equal(self) -> None:
        """Wait until all running nodes have applied the same commits."""
        running = [node for node in self.nodes if node.process is not None]
        for _ in range(LONGEST_WAIT_SECONDS * 10):
            if len({node.own_row()["position"] for node in running}) == 1:
                return
            threading.Event().wait(0.1)
        raise AssertionError([node.own_row() for node in running])

    def check_notices(self) -> None:
        """Fail if a VM was touched without its notice. A test can end with nodes that do not answer."""
        for node in self.nodes:
            node.relay.target, node.relay.delay = self._server.port, 0.0
            node.relay.mend()
            node.node_relay.mend()
            if node.process is not None:
                node.resume()
        if any(node.process is not None for node in self.nodes):
            self.leader().check_notices()

    def close(self) -> None:
        for node in self.nodes:
            if node.process is not None:
                with suppress(ProcessLookupError):
                    os.kill(node.process.pid, signal.SIGCONT)
                node.kill()
            node.relay.close()
            node.node_relay.close()
