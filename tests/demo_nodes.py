"""script/server --nodes N: nodes and a database on this machine, until Ctrl-C. A node that ends is started again."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from postgresql import PostgresServer

FIRST_METADATA, FIRST_CONTROL = 8190, 8180
FOREWARN = str(Path(sys.executable).with_name("forewarn"))


def start(number: int, url: str, folder: Path, options: list[str]) -> subprocess.Popen[bytes]:
    command = [
        FOREWARN,
        "up",
        "--database",
        url,
        "--name",
        f"node-{number + 1}",
        "--data",
        str(folder / f"node-{number + 1}"),
    ]
    command += [
        "--metadata",
        f"127.0.0.1:{FIRST_METADATA + number}",
        "--control",
        f"127.0.0.1:{FIRST_CONTROL + number}",
    ]
    return subprocess.Popen([*command, "--fleet", "examples/demo.toml", *options])


def main() -> int:
    """`demo_nodes.py N [options of forewarn up]`."""
    if not (len(sys.argv) > 1 and sys.argv[1].isdecimal() and 1 <= int(sys.argv[1]) <= 9):
        print("Give the number of nodes, from 1 to 9: script/server --nodes 3", file=sys.stderr)  # noqa: T201
        return 2
    server = PostgresServer().start()
    nodes: dict[int, subprocess.Popen[bytes]] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with tempfile.TemporaryDirectory(prefix="forewarn-nodes-") as folder:
            for number in range(int(sys.argv[1])):
                nodes[number] = start(number, server.url, Path(folder), sys.argv[2:])
            print("To see who leads: forewarn node list --service node-1. Kill a node: it starts again.")  # noqa: T201
            try:
                while True:
                    for number, node in nodes.items():
                        try:
                            node.wait(0.5)
                        except subprocess.TimeoutExpired:
                            continue
                        if node.returncode in (0, 2):  # it was stopped, or its options are wrong
                            return node.returncode
                        nodes[number] = start(number, server.url, Path(folder), sys.argv[2:])
            finally:
                for node in nodes.values():
                    node.terminate()
                for node in nodes.values():
                    node.wait(30)
    except KeyboardInterrupt:
        return 0
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main())
