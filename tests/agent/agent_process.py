"""An agent in its own process. A test can stop, kill and restart it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

COMMAND = (sys.executable, "-m", "forewarn", "agent")
_COMMON_FIELDS = {"time", "level", "logger", "event", "message", "event_id", "event_type"}
SECONDS = 60
"""The timeout of every wait."""


class AgentProcess:
    """The agent of one machine, with its own folder. A thread reads its log."""

    def __init__(
        self, folder: Path, config: str, environment: Mapping[str, str], command: Sequence[str] = COMMAND
    ) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.config = folder / "agent.toml"
        self.config.write_text(config)
        self._environment = {**os.environ, **environment}
        self._command = command
        self._news = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.lines: list[dict[str, Any]] = []
        """The log lines of this and of earlier runs."""

    # --- Start and stop -------------------------------------------------------------------------------------

    def start(self, *arguments: str, prefix: Sequence[str] = ()) -> AgentProcess:
        line = [
            *prefix,
            *self._command,
            "run",
            "--config",
            str(self.config),
            "--state",
            str(self.state),
            "--log",
            "json",
        ]
        self._process = subprocess.Popen(
            [*line, *arguments], env=self._environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        return self

    def kill(self) -> None:
        """Kill the agent, but not the programs that it has started."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Wait until it ends, and return the exit code."""
        assert self._process is not None
        return self._process.wait(SECONDS)

    def _end(self, number: int) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(SECONDS)
        # A program that it has started can keep the pipe open. The lines of the agent itself are read by now.
        assert self._reader is not None
        self._reader.join(0.5 if number == signal.SIGKILL else SECONDS)
        return code

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                with self._news:
                    self.lines.append(json.loads(line) if line.startswith("{") else {"message": line})
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    # --- What it does ---------------------------------------------------------------------------------

    def until(self, wanted: Callable[[], object], what: str = "what was waited for") -> None:
        """Wait until the condition is true. It is checked after each log line."""
        with self._news:
            # A file can be written a little later than the log line.
            for _ in range(SECONDS * 20):
                if wanted():
                    return
                self._news.wait(0.05)
        raise AssertionError(f"{what} did not come; logged: {self.messages()}")

    def until_logged(self, text: str, times: int = 1) -> None:
        self.until(lambda: sum(text in message for message in self.messages()) >= times, repr(text))

    def messages(self) -> list[str]:
        """`event_name: message key=value`, without the keys that every line has."""
        found = []
        for line in self.lines:
            fields = [f"{name}={value}" for name, value in line.items() if name not in _COMMON_FIELDS]
            found.append(" ".join([f"{line.get('event', '')}: {line['message']}", *fields]))
        return found

    def status(self) -> dict[str, Any]:
        """Return the output of `forewarn agent status`."""
        done = subprocess.run(
            [*self._command, "status", "--state", str(self.state), "--json"],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.stdout, done.stderr
        value: dict[str, Any] = json.loads(done.stdout)
        return value


class Diary:
    """What the handlers of a test write down of themselves, and where they can be held."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "diary"
        self._folder = folder
        self.path.touch()
        script = folder / "step"
        script.write_text(
            f"""#!/bin/sh
echo "begin $1 $2" >> {self.path}
while [ -e {folder}/hold-$1-$2 ]; do sleep 0.05; done
if [ -e {folder}/fail-$1-$2 ]; then echo "no luck"; echo "fail $1 $2" >> {self.path}; exit 3; fi
echo "end $1 $2" >> {self.path}
"""
        )
        script.chmod(0o755)
        self._script = script

    def handler(self, name: str) -> str:
        """The table of a handler that does nothing but write it down."""
        return f"""
[handler.{name}]
kind = "command"
prepare = ["{self._script}", "prepare", "{name}"]
undo = ["{self._script}", "undo", "{name}"]
timeout = "30s"
"""

    def hold(self, action: str, name: str) -> None:
        (self._folder / f"hold-{action}-{name}").touch()

    def release(self, action: str, name: str) -> None:
        (self._folder / f"hold-{action}-{name}").unlink()

    def fail(self, action: str, name: str) -> None:
        (self._folder / f"fail-{action}-{name}").touch()

    def mend(self, action: str, name: str) -> None:
        (self._folder / f"fail-{action}-{name}").unlink()

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    @property
    def done(self) -> list[str]:
        """What was done to its end."""
        return [line.removeprefix("end ") for line in self.lines if line.startswith("end ")]

    def has(self, line: str, times: int = 1) -> Callable[[], bool]:
        return lambda: self.lines.count(line) >= times

    def check(self, noted: Sequence[str] = ()) -> None:
        """No two runs of a handler overlap, undo is in reverse, and at the end all that was touched is undone.

        An agent writes down that it will prepare, then prepares. One that was killed in between has touched nothing,
        but the next one cannot know that: it undoes what was written down. `noted` names the handlers to which this
        may have happened.
        """
        prepared: list[str] = []
        begun: set[str] = set()
        running: str | None = None
        for line in self.lines:
            word, action, name = line.split()
            if word == "begin":
                # One that was killed with its agent has no end: the next of the same handler takes its place.
                assert running is None or running.split()[1] == name or action == "undo", self.lines
                running = f"{action} {name}"
                if action == "prepare" and name not in prepared:
                    prepared.append(name)
                if action == "undo":
                    if name in noted and name not in begun:
                        assert begun <= {*prepared}, self.lines  # it would have come last, so it is undone first
                        prepared.append(name)
                    assert prepared, self.lines
                    assert prepared[-1] == name, self.lines
                begun.add(name)
            else:
                assert running == f"{action} {name}", self.lines
                running = None
                if (word, action) == ("end", "undo"):
                    prepared.remove(name)
        assert prepared == [], self.lines
        assert running is None, self.lines
