"""The policies and scripts of examples/agent, run with stand-ins for the programs that they call."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.jobs import LoneJob, then
from agent.workers import Worker
from forewarn.agent.config_file import read_text
from forewarn.agent.handlers.loader import kinds
from forewarn.errors import HandlerFailed
from forewarn.system.processes import find_process
from programs import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forewarn.agent.handlers.handler import Handler

EXAMPLES = Path(__file__).parents[2] / "examples" / "agent"
POLICIES = sorted(EXAMPLES.glob("*.toml"))
SCRIPTS = sorted(EXAMPLES.glob("*.sh"))

# A node that remembers what was done to it. `broken` answers nothing.
KUBECTL = """#!/bin/sh
folder=$(dirname "$0")
[ ! -e "$folder/broken" ] || { echo "the server does not answer" >&2; exit 1; }
[ "$1 $2 $3" = "get node node-0" ] || echo "$*" >> "$folder/done"
case "$*" in
*unschedulable*) [ ! -e "$folder/cordoned" ] || printf true ;;
*"annotations."*) [ ! -e "$folder/mark" ] || cat "$folder/mark" ;;
"annotate node node-0 --overwrite forewarn.agent/cordoned="*) printf %s "${5#*=}" > "$folder/mark" ;;
"annotate node node-0 forewarn.agent/cordoned-") rm "$folder/mark" ;;
"cordon node-0") touch "$folder/cordoned" ;;
"uncordon node-0") rm -f "$folder/cordoned" ;;
drain*) [ -e "$folder/cordoned" ] && [ ! -e "$folder/stuck" ] || { echo "cannot evict pod web: budget" >&2; exit 1; } ;;
*) echo "unknown: $*" >&2; exit 1 ;;
esac
"""
# The primary is who is named in the file `primary`.
PATRONICTL = """#!/bin/sh
folder=$(dirname "$0")
echo "$*" >> "$folder/done"
[ ! -e "$folder/stuck" ] || { echo "Switchover failed" >&2; exit 1; }
case "$*" in
*"--leader db-0 --force") echo db-1 > "$folder/primary" ;;
*"--candidate db-0 --force") echo db-0 > "$folder/primary" ;;
*) exit 2 ;;
esac
"""
CURL = """#!/bin/sh
folder=$(dirname "$0")
for url; do :; done
primary=$(cat "$folder/primary")
case $url in
http://127.0.0.1:8008/primary) [ "$primary" = db-0 ] && printf 200 || printf 503 ;;
http://127.0.0.1:8008/replica) [ "$primary" = db-0 ] && printf 503 || printf 200 ;;
*) printf 000 ;;
esac
"""


class Machine:
    """A machine with stand-ins for programs that are not here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def put(self, name: str, text: str = "") -> None:
        (self.folder / name).write_text(text)

    def take(self) -> list[str]:
        """What was done since the last look."""
        path = self.folder / "done"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path / "machine")
    monkeypatch.setenv("PATH", f"{machine.folder}:{os.environ['PATH']}")
    return machine


def handler(policy: str, name: str, change: Callable[[str], str] = str) -> Handler:
    """A handler of an example, with its scripts where they are here."""
    text = (EXAMPLES / f"{policy}.toml").read_text().replace("/etc/forewarn/", f"{EXAMPLES}/")
    return read_text(change(text), policy, EXAMPLES).handlers[name].handler


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.stem)
def test_every_policy_is_accepted_without_a_warning(policy: Path) -> None:
    command = [sys.executable, "-m", "forewarn", "agent", "check", "--config", str(policy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_is_executable_and_rejects_unknown_arguments(script: Path, tmp_path: Path) -> None:
    places = {name: str(tmp_path) for name in ("JOB", "STORE", "WORKER")}
    known = {"PATH": os.environ["PATH"], "CLUSTER": "main", **places}
    alone = subprocess.run([script], env=known, capture_output=True, text=True, check=False)
    assert alone.returncode != 0
    assert "is run by forewarn agent" in alone.stderr
    wrong = subprocess.run([script], env={**known, "FOREWARN_ACTION": "x"}, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "must be prepare or undo" in wrong.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_is_clean(script: Path) -> None:
    need("shellcheck")
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_example_of_the_page_on_handlers_is_accepted(tmp_path: Path) -> None:
    page = (EXAMPLES.parents[1] / "docs" / "reference" / "handlers.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks].count("python") == 1
    for kind, text in blocks:
        if kind == "python":
            (tmp_path / text.split()[1]).write_text(text)
    configs = [read_text(text, "the page", tmp_path) for kind, text in blocks if kind == "toml"]
    shown = {handler.kind for config in configs for handler in config.handlers.values()}
    assert shown == {*kinds(), "maintenance_page.py"}
    for kind in kinds():
        assert f"\n## {kind}\n" in page


def test_the_handler_of_the_page_works_as_described(tmp_path: Path) -> None:
    page = (EXAMPLES.parents[1] / "docs" / "reference" / "handlers.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "own.py").write_text(code)
    shown = tmp_path / "maintenance.html"
    own = read_text(f'[handler.page]\nfile = "own.py"\npage = "{shown}"', "own", tmp_path).handlers["page"].handler
    job = LoneJob(tmp_path)
    own.prepare(job)
    assert shown.read_text() == "Reboot: back soon"
    own.undo(then(job))
    assert not shown.exists()


# --- A Kubernetes node ---------------------------------------------------------------------------------


@pytest.fixture
def node(machine: Machine) -> Machine:
    machine.program("kubectl", KUBECTL)
    machine.program("hostname", "#!/bin/sh\necho Node-0\n")
    return machine


def test_a_node_is_drained_and_uncordoned(tmp_path: Path, node: Machine) -> None:
    drain, job = handler("kubernetes", "drain"), LoneJob(tmp_path)
    drain.prepare(job)
    annotated, cordoned, drained = node.take()
    assert annotated == f"annotate node node-0 --overwrite forewarn.agent/cordoned={job.event.id}"
    assert cordoned == "cordon node-0"
    assert drained.startswith("drain node-0 --ignore-daemonsets --delete-emptydir-data --timeout=5")
    # Once more, as after a kill, and then undone; and that once more.
    drain.prepare(then(job, "prepare"))
    node.take()
    drain.undo(then(job))
    assert node.take() == ["uncordon node-0", "annotate node node-0 forewarn.agent/cordoned-"]
    drain.undo(then(job))
    assert node.take() == []


def test_a_node_that_an_operator_cordoned_stays_cordoned(tmp_path: Path, node: Machine) -> None:
    node.put("cordoned")
    drain, job = handler("kubernetes", "drain"), LoneJob(tmp_path)
    drain.prepare(job)
    assert [line.split()[0] for line in node.take()] == ["drain"]
    drain.undo(then(job))
    assert node.has("cordoned")


@pytest.mark.parametrize(("fault", "words"), [("stuck", "cannot evict pod web: budget"), ("broken", "does not answer")])
def test_a_node_that_cannot_be_drained_is_a_failure(tmp_path: Path, node: Machine, fault: str, words: str) -> None:
    node.put(fault)
    with pytest.raises(HandlerFailed, match=f"exit code 1: .*{words}"):
        handler("kubernetes", "drain").prepare(LoneJob(tmp_path))


# --- The primary of a database --------------------------------------------------------------------------


@pytest.fixture
def database(machine: Machine) -> Machine:
    machine.program("patronictl", PATRONICTL)
    machine.program("curl", CURL)
    machine.program("hostname", "#!/bin/sh\necho db-0\n")
    machine.put("primary", "db-0\n")
    return machine


def test_a_primary_fails_over_once(tmp_path: Path, database: Machine) -> None:
    hand_over, job = handler("database", "hand-over"), LoneJob(tmp_path)
    hand_over.prepare(job)
    assert database.take() == ["-c /etc/patroni/config.yml switchover main --leader db-0 --force"]
    again = then(job, "prepare")
    hand_over.prepare(again)
    assert again.said == ["db-0 is not the primary: nothing to hand over"]
    hand_over.undo(then(job))
    assert database.take() == []


def test_it_fails_back_if_configured(tmp_path: Path, database: Machine) -> None:
    hand_over = handler("database", "hand-over", lambda text: text.replace('FAIL_BACK = "no"', 'FAIL_BACK = "yes"'))
    job = LoneJob(tmp_path)
    hand_over.prepare(job)
    database.take()
    hand_over.undo(then(job))
    assert database.take() == ["-c /etc/patroni/config.yml switchover main --candidate db-0 --force"]


def test_a_replica_does_not_become_the_primary_because_of_that(tmp_path: Path, database: Machine) -> None:
    database.put("primary", "db-1\n")
    hand_over = handler("database", "hand-over", lambda text: text.replace('FAIL_BACK = "no"', 'FAIL_BACK = "yes"'))
    job = LoneJob(tmp_path)
    hand_over.prepare(job)
    hand_over.undo(then(job))
    assert database.take() == []


def test_a_failed_failover_is_a_failure(tmp_path: Path, database: Machine) -> None:
    database.put("stuck")
    with pytest.raises(HandlerFailed, match="exit code 1: Switchover failed"):
        handler("database", "hand-over").prepare(LoneJob(tmp_path))


# --- A batch worker -------------------------------------------------------------------------------------

# Counts from where it was; on SIGUSR1 it writes down how far it is.
BATCH = """#!{python}
import os, signal, sys
folder = sys.argv[1]
signal.alarm(120)
count = int(open(sys.argv[2]).read()) if len(sys.argv) > 2 else 41
def keep(*_):
    with open(folder + "/state.part", "w") as file:
        file.write(str(count + 1))
    os.rename(folder + "/state.part", folder + "/state")
signal.signal(signal.SIGUSR1, keep)
with open(folder + "/pid.part", "w") as file:
    file.write(str(os.getpid()))
os.rename(folder + "/pid.part", folder + "/worker.pid")
while True:
    signal.pause()
"""


class BatchWorker(Worker):
    """Kept as Worker is, with its own program and names."""

    def argv(self, manner: str = "polite") -> list[str]:
        return [str(self.folder / "worker"), str(self.folder)]

    @property
    def pid_file(self) -> Path:
        return self.folder / "worker.pid"


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[BatchWorker]:
    for name in ("job", "store", "state"):
        (tmp_path / name).mkdir()
    program = tmp_path / "job" / "worker"
    program.write_text(BATCH.format(python=sys.executable))
    program.chmod(0o755)
    worker = BatchWorker(tmp_path / "job")
    yield worker
    worker.close()


def batch_handler(name: str, folder: Path) -> Handler:
    places = {"/var/lib/batch": "job", "/mnt/shared/checkpoints": "store", "/opt/batch/worker": "job/worker"}

    def change(text: str) -> str:
        for place, here in places.items():
            text = text.replace(place, str(folder / here))
        return text

    return handler("batch-spot", name, change)


def test_a_batch_job_resumes_from_its_checkpoint(tmp_path: Path, batch: BatchWorker) -> None:
    pid = batch.start()
    checkpoint, stop = (batch_handler(name, tmp_path) for name in ("checkpoint", "stop-worker"))
    (tmp_path / "other").mkdir()
    job, other = LoneJob(tmp_path / "state", handler="checkpoint"), LoneJob(tmp_path / "other", handler="stop-worker")
    checkpoint.prepare(job)
    stop.prepare(other)
    assert find_process(pid) is None
    batch.collect()
    (kept,) = (tmp_path / "store").iterdir()
    assert kept.read_text() == "42"
    assert job.memo == {"said": {"checkpoint": str(kept)}}
    stop.undo(then(other))
    checkpoint.undo(then(job))
    new = batch.until_ready(pid)
    assert find_process(new) is not None
    # Once more, as after a kill: it runs already. And the next time it has gone on from there.
    again = then(job)
    checkpoint.undo(again)
    assert again.said == ["the worker is already running"]
    checkpoint.prepare(then(job, "prepare"))
    assert kept.read_text() == "43"


def test_without_a_worker_there_is_nothing_to_keep(tmp_path: Path, batch: BatchWorker) -> None:
    job = LoneJob(tmp_path / "state")
    checkpoint = batch_handler("checkpoint", tmp_path)
    checkpoint.prepare(job)
    checkpoint.undo(then(job))
    assert list((tmp_path / "store").iterdir()) == []
    assert batch.pid == 0


def test_a_store_that_is_not_there_is_a_failure(tmp_path: Path, batch: BatchWorker) -> None:
    (tmp_path / "store").rmdir()
    batch.start()
    with pytest.raises(HandlerFailed, match="there is no folder"):
        batch_handler("checkpoint", tmp_path).prepare(LoneJob(tmp_path / "state"))
