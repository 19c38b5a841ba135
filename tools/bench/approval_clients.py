"""Clients that approve events, in a process of their own: plain sockets, prepared bytes, one loop.

Reads {"address", "plan"} as JSON from standard input. Prints the rate and the latencies as JSON.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from statistics import median

from tools.bench.connection import approval_bytes


class Client:
    """One connection that sends its approvals one after the other."""

    def __init__(self, address: tuple[str, int], source: str, ids: list[str]) -> None:
        self.socket = socket.create_connection(address, timeout=60, source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.latencies: list[float] = []
        self._requests = [approval_bytes(event_id) for event_id in reversed(ids)]
        self._sent_at = 0.0

    def send(self) -> bool:
        """Send the next approval. Return False if there is none."""
        if not self._requests:
            return False
        self._sent_at = time.perf_counter()
        self.socket.sendall(self._requests.pop())
        return True

    def receive(self) -> None:
        response = self.socket.recv(4096)
        # A 200 without a body ends with its headers, and arrives in one piece.
        if not response.startswith(b"HTTP/1.1 200") or not response.endswith(b"\r\n\r\n"):
            raise RuntimeError(f"The service rejected an approval: {response!r}")
        self.latencies.append(time.perf_counter() - self._sent_at)


def run(clients: list[Client]) -> float:
    """Send all approvals of all clients. Return the seconds until the last response."""
    by_number = {client.socket.fileno(): client for client in clients}
    poll = select.epoll()
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    started = time.perf_counter()
    in_progress = sum(client.send() for client in clients)
    while in_progress:
        for number, _ in poll.poll(60):
            client = by_number[number]
            client.receive()
            in_progress -= not client.send()
    return time.perf_counter() - started


def main() -> None:
    arguments = json.load(sys.stdin)
    clients = [Client(tuple(arguments["address"]), source, ids) for source, ids in arguments["plan"]]
    seconds = run(clients)
    latencies = sorted(latency for client in clients for latency in client.latencies)
    result = {
        "count": len(latencies),
        "per_second": len(latencies) / seconds,
        "p50_ms": median(latencies) * 1000,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
