"""The handler `webhook`, with a real receiver."""

from __future__ import annotations

import hashlib
import hmac
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from agent.jobs import LoneJob, handler_of, then
from forewarn.errors import BadAgentConfig, HandlerFailed
from webhook_receiver import ReceivedRequest, Receiver, Reply, authority_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def webhook(url: str, more: str = "") -> str:
    return f'kind = "webhook"\nurl = "{url}"\n{more}'


def fail(handler_text: str, job: LoneJob) -> str:
    with pytest.raises(HandlerFailed) as failure:
        handler_of(handler_text).prepare(job)
    return str(failure.value)


def test_the_receiver_gets_the_event_and_its_end(tmp_path: Path, receiver: Receiver) -> None:
    handler = handler_of(webhook(receiver.url("/hook?key=secret"), 'headers = {X-Key = "a b"}'))
    assert handler.describe("prepare") == f"POST to {receiver.url('/hook')}"
    job = LoneJob(tmp_path)
    handler.prepare(job)
    handler.undo(then(job))
    first, second = receiver.got
    assert first.event == {"action": "prepare", "vm": "web-0", "handler": "it", "event": job.event.raw}
    assert second.event == {**first.event, "action": "undo"}
    assert first.path == second.path == "/hook?key=secret"
    assert first.headers["content-type"] == "application/json"
    assert first.headers["x-key"] == "a b"
    assert first.headers["forewarn-attempt"] == "1"
    assert "forewarn-signature" not in first.headers


def test_undo_can_have_another_url_or_none(tmp_path: Path, receiver: Receiver) -> None:
    elsewhere = handler_of(webhook(receiver.url(), f'undo_url = "{receiver.url("/back")}"'))
    elsewhere.undo(LoneJob(tmp_path, "undo"))
    assert [got.path for got in receiver.got] == ["/back"]
    nowhere = handler_of(webhook(receiver.url(), "undo = false"))
    nowhere.undo(LoneJob(tmp_path, "undo"))
    assert len(receiver.got) == 1
    assert nowhere.describe("undo") == ""


def test_it_is_signed_as_the_services_own_are(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "secret").write_text("geheim\n")
    handler_of(webhook(receiver.url(), f'secret_file = "{tmp_path}/secret"')).prepare(LoneJob(tmp_path))
    (got,) = receiver.got
    signed = got.headers["forewarn-timestamp"].encode() + b"." + got.body
    assert got.headers["forewarn-signature"] == "v1=" + hmac.new(b"geheim", signed, hashlib.sha256).hexdigest()


@pytest.mark.parametrize("content", [None, "", " \n", b"\xff"])
def test_an_unreadable_secret_is_a_failure(tmp_path: Path, receiver: Receiver, content: str | bytes | None) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content if isinstance(content, bytes) else content.encode())
    problem = fail(webhook(receiver.url(), f'secret_file = "{tmp_path}/secret"'), LoneJob(tmp_path))
    assert f"{tmp_path}/secret" in problem
    assert receiver.got == []


def test_it_retries_with_backoff_until_it_is_accepted(tmp_path: Path, receiver: Receiver) -> None:
    class Patient(LoneJob):
        pauses: list[float] = []  # noqa: RUF012 - one test, one job

        def wait(self, seconds: float) -> bool:
            if seconds:
                self.pauses.append(seconds)
            return False

    replies = [Reply(503), Reply(reset=True), Reply(204)]
    receiver.respond = lambda _: replies[len(receiver.got) - 1]
    job = Patient(tmp_path)
    handler_of(webhook(receiver.url())).prepare(job)
    assert [got.headers["forewarn-attempt"] for got in receiver.got] == ["1", "2", "3"]
    assert job.pauses == [1.0, 2.0]
    assert job.warned[0] == f"attempt 1 of 3: 127.0.0.1:{receiver.port} responded with 503"


@pytest.mark.parametrize("status", [302, 400, 404, 500])
def test_all_but_a_2xx_is_a_failure_and_no_redirect_is_followed(
    tmp_path: Path, receiver: Receiver, status: int
) -> None:
    def answer(_: ReceivedRequest) -> Reply:
        return Reply(status, {"Location": receiver.url("/elsewhere")})

    receiver.respond = answer
    problem = fail(webhook(receiver.url(), "attempts = 1"), LoneJob(tmp_path))
    assert problem == f"failed after 1 attempt: 127.0.0.1:{receiver.port} responded with {status}."
    assert [got.path for got in receiver.got] == ["/hook"]


def test_a_receiver_without_a_response_costs_at_most_the_timeout(tmp_path: Path, receiver: Receiver) -> None:
    receiver.respond = lambda _: Reply(hang=True)
    problem = fail(webhook(receiver.url(), "attempts = 20"), LoneJob(tmp_path, seconds=1.5))
    assert "the timeout has passed" in problem or "did not respond" in problem


def test_a_very_slow_response_costs_at_most_the_timeout(tmp_path: Path) -> None:
    """Each byte comes in time, and yet there is no end to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def trickle() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 200 OK\r\n")
                while not over.wait(0.05):
                    try:
                        peer.sendall(b"A: b\r\n")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.getsockname()[1]}/"
            assert "did not respond" in fail(webhook(url, "attempts = 1"), LoneJob(tmp_path, seconds=1))
        finally:
            over.set()
            thread.join()


def test_a_cancellation_ends_the_retries(tmp_path: Path, receiver: Receiver) -> None:
    job = LoneJob(tmp_path)

    def answer(_: ReceivedRequest) -> Reply:
        job.stopped.set()
        return Reply(hang=True)

    receiver.respond = answer
    assert "it is no longer needed" in fail(webhook(receiver.url()), job)
    assert len(receiver.got) == 1


def test_no_proxy_is_used(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    handler_of(webhook(receiver.url())).prepare(LoneJob(tmp_path))
    assert len(receiver.got) == 1


def test_tls_is_verified(tmp_path: Path) -> None:
    receiver = Receiver(tls=True)
    try:
        trusted = webhook(receiver.url(), f'attempts = 1\nca_file = "{authority_file(tmp_path)}"')
        handler_of(trusted).prepare(LoneJob(tmp_path))
        assert len(receiver.got) == 1
        assert "certificate verify failed" in fail(webhook(receiver.url(), "attempts = 1"), LoneJob(tmp_path))
        assert len(receiver.got) == 1
    finally:
        receiver.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "url: It is missing"),
        ('url = "ftp://a"', "is not an http or https URL"),
        ('url = "http://"', "is not an http or https URL"),
        ('url = "http://a:99999"', "is not an http or https URL"),
        ('url = "http://a/b c"', "is not an http or https URL"),
        ('url = "http://me:word@a/"', "headers.Authorization"),
        ('url = "http://a"\nheaders = {"A B" = "c"}', "Is not a valid header"),
        ('url = "http://a"\nheaders = {A = "c\\nd"}', "Is not a valid header"),
        ('url = "http://a"\nheaders = {Host = "c"}', "The agent sets this header itself"),
        ('url = "http://a"\nattempts = 0', "from 1 to 20"),
        ('url = "http://a"\nsecret_file = "x"', "Must be an absolute path"),
        ('url = "http://a"\nundo = false\nundo_url = "http://b"', "Has no effect with undo = false"),
    ],
)
def test_invalid_options_are_rejected_with_the_allowed_values(text: str, problem: str) -> None:
    with pytest.raises(BadAgentConfig, match=problem):
        handler_of(f'kind = "webhook"\n{text}')
