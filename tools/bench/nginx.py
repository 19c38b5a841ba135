"""nginx as the baseline of a poll: one worker that returns the same bytes from its configuration."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from tools.bench.connection import Connection, Response
from tools.bench.processes import SERVER_CORE, Processes, program

if TYPE_CHECKING:
    from pathlib import Path

# nginx sends constants in the headers that it does not have by default. That is cheaper than what Forewarn does.
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
    listen 127.0.0.1:{document_port};
    location / {{ return 200 '{body}'; }}
  }}
  server {{
    listen 127.0.0.1:{unchanged_port};
    location / {{ return 304; }}
  }}
}}
"""


class Nginx:
    """Returns the document on one port, and 304 on another port."""

    def __init__(self, processes: Processes, folder: Path, response: Response) -> None:
        """Start nginx with the response of Forewarn."""
        folder.mkdir()
        self.document = ("127.0.0.1", _free_port())
        self.unchanged = ("127.0.0.1", _free_port())
        configuration = folder / "nginx.conf"
        configuration.write_text(
            CONFIGURATION.format(
                folder=folder,
                content_type=response.headers["content-type"],
                etag=response.headers["etag"],
                request_id=response.headers["x-ms-request-id"],
                body=response.body.decode(),
                document_port=self.document[1],
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
        raise RuntimeError("nginx did not start within five seconds.")

    def cpu_seconds(self) -> float:
        return self._processes.cpu_seconds(self._process)

    def stop(self) -> None:
        self._processes.end(self._process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
