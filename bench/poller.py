"""One client that polls without a pause until SIGTERM, as a process of its own.

Prints when each poll began and ended, as pairs of doubles of the monotonic clock that all processes share.
"""

from __future__ import annotations

import gc
import signal
import sys
import time
from array import array

from bench.connection import Connection, poll_bytes


def main() -> None:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    connection = Connection((sys.argv[1], int(sys.argv[2])))
    request = poll_bytes()
    moments = array("d")
    gc.disable()  # a pause of the poller must not pass for one of the service
    while not stopped:
        begun = time.perf_counter()
        connection.exchange(request)
        moments.append(begun)
        moments.append(time.perf_counter())
    sys.stdout.buffer.write(moments.tobytes())


if __name__ == "__main__":
    main()
