"""Standard output and error that are closed, full, or a pipe without a reader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from command_line import run_command
from forewarn.testing import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.testing import Service

FOREWARN = f"env -u PYTHONUNBUFFERED {sys.executable} -m forewarn"
UNBUFFERED = f"env PYTHONUNBUFFERED=1 {sys.executable} -m forewarn"


@contextmanager
def started(folder: Path, redirection: str) -> Iterator[ServiceProcess]:
    """A service that the shell starts with these streams. Yield a client for it when its service file is there."""
    known = ServiceProcess(folder).start()
    environment = known.environment
    known.stop()
    script = f"exec {FOREWARN} up --clock virtual {redirection}"
    with (folder / "errors").open("w") as errors:
        program = subprocess.Popen(
            ["bash", "-c", script], env={**os.environ, **environment}, stderr=errors, stdout=errors, stdin=errors
        )
        try:
            while not (Path(known.data) / "service.json").exists():
                with pytest.raises(subprocess.TimeoutExpired):
                    program.wait(0.05)
            yield known
            program.send_signal(signal.SIGTERM)
            assert program.wait(timeout=30) == 0
        finally:
            program.kill()
            program.wait()
    assert "Traceback" not in (folder / "errors").read_text()


REDIRECTIONS = [
    "> /dev/full",
    ">&-",
    "2>&-",
    "2> /dev/full",
    "> /dev/full 2>&1",
    "<&- >&- 2>&-",
    "> >(true)",
    "> >(true) 2>&1",
]


@pytest.mark.parametrize("redirection", REDIRECTIONS)
def test_a_service_starts_and_stops_without_output(tmp_path: Path, redirection: str) -> None:
    with started(tmp_path, redirection) as service:
        assert "virtual clock" in run_command(service, "clock", "show").stdout
        assert service.document()["Events"] == []


def shell(service: Service, script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **service.environment}
    return subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("command", ["vm list", "vm list --json", "clock show", "--help", "vm --help", "settings"])
def test_output_to_a_full_disk_is_an_error_of_one_line(forewarn: Service, command: str) -> None:
    forewarn.vm("web-0")
    done = shell(forewarn, f"{FOREWARN} {command} > /dev/full")
    assert (done.returncode, done.stderr) == (1, "forewarn: Cannot write: No space left on device\n")
    unbuffered = shell(forewarn, f"{UNBUFFERED} {command} > /dev/full")
    assert (unbuffered.returncode, unbuffered.stderr) == (1, done.stderr)
    quiet = shell(forewarn, f"{FOREWARN} {command} > /dev/full 2>&1")
    assert quiet.returncode == 1


def test_errors_that_nobody_can_read_keep_their_exit_code(forewarn: Service) -> None:
    assert shell(forewarn, f"{FOREWARN} vm show none 2> /dev/full").returncode == 3
    assert shell(forewarn, f"{FOREWARN} vm show none 2>&-").returncode == 3
    assert shell(forewarn, f"{FOREWARN} vm list <&- >&- 2>&-").returncode == 0


def test_a_reader_that_stops_reading_ends_the_command_quietly(forewarn: Service) -> None:
    for number in range(3):
        forewarn.vm(f"web-{number}")
    done = shell(forewarn, f"{FOREWARN} vm list | head -1; {FOREWARN} vm list | true")
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 1)
