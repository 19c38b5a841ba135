"""PgBouncer, a pooler in front of PostgreSQL."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postgresql import START_SECONDS
from programs import SEARCHED, need
from tcp_ports import free_port

if TYPE_CHECKING:
    from postgresql import PostgresServer


class Pooler:
    """PgBouncer on a free port of 127.0.0.1, in front of a server. It does not run as root."""

    def __init__(self, server: PostgresServer, mode: str, size: int, *settings: str) -> None:
        """`size` is the number of connections to the server that it opens at most."""
        need("pgbouncer")
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="forewarn-pgbouncer-"))
        (self._folder / "users.txt").write_text('"forewarn" ""\n')
        config = self._folder / "pgbouncer.ini"
        config.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {self._folder}/users.txt\n"
            f"pool_mode = {mode}\ndefault_pool_size = {size}\nlogfile = {self._folder}/log\n" + "\n".join(settings)
        )
        user: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        if user:
            shutil.chown(self._folder, "nobody", "nogroup")
        program = shutil.which("pgbouncer", path=SEARCHED)
        assert program is not None
        self._process = subprocess.Popen([program, "-q", str(config)], cwd="/", **user)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        for _ in range(START_SECONDS * 10):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5):
                return
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
        raise RuntimeError((self._folder / "log").read_text())

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)
        shutil.rmtree(self._folder, ignore_errors=True)
