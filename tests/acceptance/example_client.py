"""The programs of examples/clients: how to build each, and one that runs."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from programs import need

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FOLDER = Path(__file__).parents[2] / "examples" / "clients"
SECONDS = 60
"""The timeout of every wait."""
NO_NETWORK = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
MCS = ("mcs", "-warnaserror", "-r:System.Net.Http", "-r:System.Runtime.Serialization", "-r:Mono.Posix")


class Language(NamedTuple):
    """How to check, build and start a client. `{}` is the folder for what is built."""

    file: str
    programs: tuple[str, ...]
    """What must be installed."""
    start: tuple[str, ...]
    build: tuple[tuple[str, ...], ...] = ()
    """Commands that check and compile it. The name of the file is added. They must print nothing."""


LANGUAGES = {
    "python": Language("client.py", (), (sys.executable, "-W", "error", str(FOLDER / "client.py"))),
    "shell": Language(
        "client.sh", ("curl", "jq", "shellcheck"), ("sh", str(FOLDER / "client.sh")), (("shellcheck",), ("sh", "-n"))
    ),
    "javascript": Language("client.mjs", ("node",), ("node", str(FOLDER / "client.mjs")), (("node", "--check"),)),
    "go": Language(
        "client.go",
        ("go", "gofmt"),
        ("{}/client-go",),
        (("gofmt", "-l"), ("go", "vet"), ("go", "build", "-o", "{}/client-go")),
    ),
    "csharp": Language("client.cs", ("mcs", "mono"), ("mono", "{}/client.exe"), ((*MCS, "-out:{}/client.exe"),)),
}


def build(language: Language, folder: Path) -> list[str]:
    """Check and compile the client once, whatever number of test processes asks. Return the command that starts it."""
    need(*language.programs)
    variables = {**os.environ, **NO_NETWORK, "GOCACHE": str(folder / "cache"), "GOPATH": str(folder / "go")}
    with (folder / language.file).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = folder / f"{language.file}.built"
        if not built.exists():
            for command in language.build:
                line = [word.replace("{}", str(folder)) for word in (*command, str(FOLDER / language.file))]
                done = subprocess.run(line, env=variables, capture_output=True, text=True, check=False)
                assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), f"{line}: {done}"
            built.touch()
    return [word.replace("{}", str(folder)) for word in language.start]


class ExampleClient:
    """A client in its own process. Threads read what it prints."""

    def __init__(self, command: Sequence[str], **variables: str) -> None:
        self.lines: list[str] = []
        self.problems: list[str] = []
        self._news = threading.Condition()
        # A proxy that nobody serves: a client that uses it gets no response.
        proxy = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"), "http://127.0.0.1:1")
        ours = {name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")}
        self._process = subprocess.Popen(
            command,
            env={**ours, **proxy, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._begin(self._process.stdout, self.lines)
        self._begin(self._process.stderr, self.problems)

    def _begin(self, stream: IO[str], lines: list[str]) -> None:
        threading.Thread(target=self._read, args=(stream, lines), daemon=True).start()

    def _read(self, stream: IO[str], lines: list[str]) -> None:
        with stream:
            for line in stream:
                with self._news:
                    lines.append(line.rstrip("\n"))
                    self._news.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what it has printed meets the condition."""
        with self._news:
            assert self._news.wait_for(condition, SECONDS), self.lines + self.problems

    def until_said(self, start: str) -> None:
        """Wait for a line that starts like this."""
        self.until(lambda: any(line.startswith(start) for line in self.lines))

    def stop(self) -> int:
        """Send SIGTERM. Return the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(SECONDS)

    def kill(self) -> None:
        """Kill it, and the commands that it has started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait(SECONDS)
