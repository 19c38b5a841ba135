"""The handler `haproxy`, with a real HAProxy, real servers and real connections."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from agent.jobs import LoneJob, handler_of, then
from agent.pool import Pool, Traffic, ask
from forewarn.errors import BadAgentConfig, HandlerFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from forewarn.agent.handlers.handler import Handler


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool() as pool:
        yield pool


def haproxy(pool: Pool, more: str = "", server: str = "pool/web-0") -> Handler:
    return handler_of(f'kind = "haproxy"\nsocket = "{pool.socket}"\nserver = "{server}"\n{more}')


class Aside:
    """Something that is done in another thread, and what came of it."""

    def __init__(self, what: Callable[[], object]) -> None:
        self.problem = ""
        self._thread = threading.Thread(target=self._run, args=(what,))
        self._thread.start()

    def _run(self, what: Callable[[], object]) -> None:
        try:
            what()
        except (HandlerFailed, OSError) as error:
            self.problem = str(error)

    def end(self) -> str:
        self._thread.join()
        return self.problem


class Held:
    """A request to which the server responds only when the test allows it."""

    def __init__(self, pool: Pool) -> None:
        """Held by web-0, the only one in the pool while it comes."""
        pool.runtime().set_state("pool/web-1", "drain")
        self._aside = Aside(lambda: ask(pool.port, "/hold"))
        job = LoneJob(pool.folder)
        while pool.servers()["pool/web-0"].sessions != 1:
            assert not job.wait(0.01)
            assert job.seconds_left() > 0
        pool.runtime().set_state("pool/web-1", "ready")
        self._pool = pool

    def release(self) -> str:
        """Straight to the server, whether it is in the pool or not."""
        ask(self._pool._ports["web-0"], "/release")
        return self._aside.end()

    def end(self) -> str:
        return self._aside.end()


def test_a_drained_server_causes_no_client_errors(tmp_path: Path, pool: Pool) -> None:
    handler = haproxy(pool)
    assert handler.describe("prepare") == "drain pool/web-0 of HAProxy and wait until no sessions remain"
    assert handler.describe("undo") == "return pool/web-0 of HAProxy to the pool"
    job = LoneJob(tmp_path)
    with Traffic(pool.port) as traffic:
        traffic.until_more(20, "web-0")
        handler.prepare(job)
        pool.stop_server("web-0")
        traffic.until_more()
        pool.start_server("web-0")
        handler.undo(then(job))
        traffic.until_more(20, "web-0")
    assert traffic.errors == []


def test_a_server_without_drain_causes_client_errors(pool: Pool) -> None:
    """The same without the handler: the clients do count."""
    with Traffic(pool.port) as traffic:
        traffic.until_more(20, "web-0")
        pool.stop_server("web-0")
        traffic.until_more()
    assert len(traffic.errors) > 0


def test_it_waits_for_the_last_session(tmp_path: Path, pool: Pool) -> None:
    held, job = Held(pool), LoneJob(tmp_path)
    preparing = Aside(lambda: haproxy(pool).prepare(job))
    job.until_said("pool/web-0 is draining, with 1 session")
    # Nobody new comes, and it does not return before the session is over.
    assert {ask(pool.port, "/short") for _ in range(5)} == {"web-1"}
    assert preparing._thread.is_alive()
    assert held.release() == ""
    assert preparing.end() == ""
    assert pool.servers()["pool/web-0"] == ("drain", 0)


def test_sessions_that_stay_are_a_failure_after_the_timeout(tmp_path: Path, pool: Pool) -> None:
    held = Held(pool)
    with pytest.raises(HandlerFailed, match="drain_timeout passed with 1 session on pool/web-0 left"):
        haproxy(pool, 'drain_timeout = "0.3s"').prepare(LoneJob(tmp_path))
    with pytest.raises(HandlerFailed, match="timed out with 1 session on pool/web-0 left"):
        haproxy(pool).prepare(LoneJob(tmp_path, seconds=0.5))
    assert pool.state("web-0") == "drain"
    assert held.release() == ""


@pytest.mark.parametrize(("more", "seconds"), [('drain_timeout = "0.3s"', 60.0), ("", 8.0)])
def test_or_they_are_cut(tmp_path: Path, pool: Pool, more: str, seconds: float) -> None:
    held, job = Held(pool), LoneJob(tmp_path, seconds=seconds)
    haproxy(pool, f'on_remaining = "cut"\n{more}').prepare(job)
    assert held.end() != ""
    assert job.warned == ["cutting the remaining sessions: 1 session on pool/web-0"]


def test_a_cancellation_ends_the_wait(tmp_path: Path, pool: Pool) -> None:
    held, job = Held(pool), LoneJob(tmp_path)
    preparing = Aside(lambda: haproxy(pool).prepare(job))
    job.until_said("draining")
    job.stopped.set()
    assert preparing.end() == "was stopped with 1 session on pool/web-0 left."
    haproxy(pool).undo(then(job))
    assert pool.state("web-0") == "ready"
    held.release()


@pytest.mark.parametrize("state", ["drain", "maint"])
def test_a_server_that_an_operator_disabled_stays_disabled(tmp_path: Path, pool: Pool, state: str) -> None:
    pool.runtime().set_state("pool/web-0", state)
    job = LoneJob(tmp_path)
    haproxy(pool).prepare(job)
    assert pool.state("web-0") == state
    haproxy(pool).undo(then(job))
    assert pool.state("web-0") == state


def test_a_server_put_into_maintenance_meanwhile_stays_there(tmp_path: Path, pool: Pool) -> None:
    job = LoneJob(tmp_path)
    haproxy(pool).prepare(job)
    pool.runtime().set_state("pool/web-0", "maint")
    undoing = then(job)
    haproxy(pool).undo(undoing)
    assert pool.state("web-0") == "maint"
    assert undoing.warned == ["pool/web-0 was put into maintenance since; leaving it"]


def test_after_a_kill_it_knows_the_original_state(tmp_path: Path, pool: Pool) -> None:
    job = LoneJob(tmp_path)
    haproxy(pool).prepare(job)
    haproxy(pool).prepare(then(job, "prepare"))
    for _ in range(2):
        haproxy(pool).undo(then(job))
        assert pool.state("web-0") == "ready"


def test_several_servers_and_an_address_with_a_port(tmp_path: Path, pool: Pool) -> None:
    text = f'socket = "127.0.0.1:{pool.admin_port}"\nservers = ["pool/web-0", "pool/web-1"]'
    handler = handler_of(f'kind = "haproxy"\n{text}')
    job = LoneJob(tmp_path)
    handler.prepare(job)
    assert {server.state for server in pool.servers().values()} == {"drain"}
    handler.undo(then(job))
    assert {server.state for server in pool.servers().values()} == {"ready"}


def test_a_haproxy_that_was_restarted_has_forgotten_and_that_is_fine(tmp_path: Path, pool: Pool) -> None:
    job = LoneJob(tmp_path)
    haproxy(pool).prepare(job)
    pool.stop()
    pool.start()
    undoing = then(job)
    haproxy(pool).undo(undoing)
    assert undoing.said == ["pool/web-0 is already in the pool"]


def test_a_haproxy_restarted_during_the_drain_is_drained_again(tmp_path: Path, pool: Pool) -> None:
    held, job = Held(pool), LoneJob(tmp_path)
    preparing = Aside(lambda: haproxy(pool).prepare(job))
    job.until_said("draining")
    pool.stop()
    pool.start()
    assert preparing.end() == ""
    assert pool.state("web-0") == "drain"
    assert job.warned == ["HAProxy has lost the drain state, probably by a restart; draining again"]
    held.end()


def test_undo_waits_until_haproxy_is_up(tmp_path: Path, pool: Pool) -> None:
    job = LoneJob(tmp_path)
    haproxy(pool).prepare(job)
    pool.stop()
    tried = threading.Event()

    class Watched(LoneJob):
        def wait(self, seconds: float) -> bool:
            tried.set()
            return super().wait(seconds)

    undoing = Aside(lambda: haproxy(pool).undo(Watched(tmp_path, "undo", event=job.event)))
    assert tried.wait(60)
    pool.start()
    assert undoing.end() == ""


def test_an_unknown_server_is_a_failure_with_the_known_servers(tmp_path: Path, pool: Pool) -> None:
    problem = "HAProxy has no server pool/web-9; it has pool/web-0, pool/web-1. Did you mean 'pool/web-0'"
    with pytest.raises(HandlerFailed, match=problem):
        haproxy(pool, server="pool/web-9").prepare(LoneJob(tmp_path))


def test_a_socket_that_may_not_change_anything_is_a_failure(tmp_path: Path) -> None:
    with Pool(level="user") as pool, pytest.raises(HandlerFailed, match="the socket must have `level admin`"):
        haproxy(pool).prepare(LoneJob(tmp_path))


def test_a_missing_haproxy_is_a_failure_within_the_timeout(tmp_path: Path) -> None:
    handler = handler_of('kind = "haproxy"\nsocket = "/no/such.sock"\nserver = "a/b"')
    with pytest.raises(HandlerFailed, match=r"HAProxy does not respond at /no/such.sock: No such file"):
        handler.prepare(LoneJob(tmp_path, seconds=0.5))


def test_a_haproxy_that_does_not_respond_is_a_failure_within_the_timeout(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        handler = handler_of(f'kind = "haproxy"\nsocket = "127.0.0.1:{port}"\nserver = "a/b"')
        with pytest.raises(HandlerFailed, match=r"does not respond at .*: timed out"):
            handler.prepare(LoneJob(tmp_path, seconds=0.5))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('server = "a/b"', "socket: It is missing"),
        ('socket = "a.sock"\nserver = "a/b"', "neither an absolute path nor an address"),
        ('socket = "127.0.0.1:0"\nserver = "a/b"', "neither an absolute path nor an address"),
        ('socket = "::1:9999"\nserver = "a/b"', "neither an absolute path nor an address"),
        ('socket = "/a"', "server: It is missing"),
        ('socket = "/a"\nserver = "web-0"', "is not a server"),
        ('socket = "/a"\nserver = "a/b;c"', "is not a server"),
        ('socket = "/a"\nserver = "a/b c"', "is not a valid name"),
        ('socket = "/a"\nserver = "a/b"\non_remaining = "kill"', "is not one of fail, cut"),
    ],
)
def test_invalid_options_are_rejected(text: str, problem: str) -> None:
    with pytest.raises(BadAgentConfig, match=problem):
        handler_of(f'kind = "haproxy"\n{text}')
