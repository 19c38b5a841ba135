"""The clients of the approvals, as a process of its own: bare sockets, bytes made ahead, one loop.

Reads {"address", "plan"} as JSON from standard input and prints what it took.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from statistics import median

from bench.connection import approval_bytes


class Client:
    """One connection that sends its approvals one after the other."""

    def __init__(self, address: tuple[str, int], source: str, ids: list[str]) -> None:
        self.socket = socket.create_connection(address, timeout=60, source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.seconds: list[float] = []
        self._requests = [approval_bytes(event_id) for event_id in reversed(ids)]
        self._sent_at = 0.0

    def send(self) -> bool:
        """Send the next one; False when there is none."""
        if not self._requests:
            return False
        self._sent_at = time.perf_counter()
        self.socket.sendall(self._requests.pop())
        return True

    def receive(self) -> None:
        answer = self.socket.recv(4096)
        # A 200 without a body ends with its head, and both come in one piece.
        if not answer.startswith(b"HTTP/1.1 200") or not answer.endswith(b"\r\n\r\n"):
            raise RuntimeError(f"An approval was answered with {answer!r}")
        self.seconds.append(time.perf_counter() - self._sent_at)


def run(clients: list[Client]) -> float:
    """Seconds until all approvals of all clients were answered."""
    by_number = {client.socket.fileno(): client for client in clients}
    poll = select.epoll()
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    begun = time.perf_counter()
    under_way = sum(client.send() for client in clients)
    while under_way:
        for number, _ in poll.poll(60):
            client = by_number[number]
            client.receive()
            under_way -= not client.send()
    return time.perf_counter() - begun


def main() -> None:
    given = json.load(sys.stdin)
    clients = [Client(tuple(given["address"]), source, ids) for source, ids in given["plan"]]
    seconds = run(clients)
    each = sorted(second for client in clients for second in client.seconds)
    found = {
        "count": len(each),
        "per_second": len(each) / seconds,
        "p50_ms": median(each) * 1000,
        "p99_ms": each[len(each) * 99 // 100] * 1000,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
