"""A client that polls without a pause until SIGTERM, in a process of its own.

Prints the start and the end of each poll, as pairs of doubles. All processes share this monotonic clock.
"""

from __future__ import annotations

import gc
import signal
import sys
import time
from array import array

from tools.bench.connection import Connection, poll_bytes


def main() -> None:
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    connection = Connection((sys.argv[1], int(sys.argv[2])))
    request = poll_bytes()
    times = array("d")
    gc.disable()  # a pause of this process would look like a pause of the service
    while not signals:
        started = time.perf_counter()
        connection.exchange(request)
        times.append(started)
        times.append(time.perf_counter())
    sys.stdout.buffer.write(times.tobytes())


if __name__ == "__main__":
    main()
