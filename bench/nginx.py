"""nginx as the measure of a poll: one worker that returns the same bytes from its configuration."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from bench.connection import Answer, Connection
from bench.processes import SERVER_CORE, Processes, program

if TYPE_CHECKING:
    from pathlib import Path

# Headers that nginx does not send by itself are constants here: cheaper than what Forewarn does.
CONFIGURATION = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  default_type '{content_type}';
  add_header ETag '{etag}';
  add_header x-ms-request-id '{request_id}';
  server {{
    listen 127.0.0.1:{found_port};
    location / {{ return 200 '{body}'; }}
  }}
  server {{
    listen 127.0.0.1:{unchanged_port};
    location / {{ return 304; }}
  }}
}}
"""


class Nginx:
    """Returns the document on one port, and 304 on another."""

    def __init__(self, processes: Processes, folder: Path, answer: Answer) -> None:
        """Start it with the answer that Forewarn gave."""
        folder.mkdir()
        self.found = ("127.0.0.1", _free_port())
        self.unchanged = ("127.0.0.1", _free_port())
        configuration = folder / "nginx.conf"
        configuration.write_text(
            CONFIGURATION.format(
                folder=folder,
                content_type=answer.headers["content-type"],
                etag=answer.headers["etag"],
                request_id=answer.headers["x-ms-request-id"],
                body=answer.body.decode(),
                found_port=self.found[1],
                unchanged_port=self.unchanged[1],
            )
        )
        self._processes = processes
        command = [program("nginx"), "-p", str(folder), "-c", str(configuration), "-e", str(folder / "error.log")]
        self._process = processes.start(command, SERVER_CORE, log=folder / "log")
        self._wait()

    def _wait(self) -> None:
        for _ in range(500):
            try:
                Connection(self.unchanged).close()
            except ConnectionRefusedError:
                time.sleep(0.01)
            else:
                return
        raise RuntimeError("nginx did not come up")

    def cpu_seconds(self) -> float:
        return self._processes.cpu_seconds(self._process)

    def stop(self) -> None:
        self._processes.end(self._process)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
