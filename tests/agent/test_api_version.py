"""The api-version that the agent requests: the newest that it knows, or an older one that the endpoint has."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest

from agent.agent_process import AgentProcess, Diary
from agent.raw_server import RawServer, answer, event
from forewarn.agent import Client
from forewarn.agent.cli.main import main
from forewarn.agent.metrics import render_metrics
from forewarn.agent.protocol import VERSIONS, PollContent, PollState, RejectedVersion
from forewarn.agent.state import FILE, StateFile, WorkStore
from forewarn.agent.transport import EndpointResponse
from forewarn.errors import EndpointError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

NEWEST, OLDER = "2024-07-09", VERSIONS[0]
HERE, ELSEWHERE = "http://127.0.0.1:1", "http://127.0.0.1:2"
NOW = datetime(2031, 5, 4, 12, 0, 0, tzinfo=UTC)
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
GONE, NOT_MODIFIED = EndpointResponse(410, {}, b"", None), EndpointResponse(304, {}, b"", None)
DOCUMENT = EndpointResponse(200, {"etag": '"1"'}, b'{"DocumentIncarnation":1,"Events":[]}', None)
ADVICE = event(1, "Advisory", EventType="SpotRebalanceRecommendation")
EVICTION = event(2, EventType="Preempt", NotBefore="Thu, 22 Jul 2090 04:50:17 GMT")
REJECTIONS = (
    EndpointResponse(404, {}, b'{ "error": "Not found. Invalid version requested" }', None),
    EndpointResponse(404, {}, b"", None),
    EndpointResponse(400, {}, b'{"error":"Bad request.","newest-versions":["2020-07-01"]}', None),
    EndpointResponse(400, {}, b"Bad Request", None),
)


class Poll:
    """One poll after the other, at chosen times."""

    def __init__(self, state: PollState | None = None, endpoint: str = HERE) -> None:
        self.state = PollState(preview_versions=True) if state is None else state
        self.endpoint = endpoint

    def __call__(self, response: EndpointResponse, now: datetime = NOW) -> str:
        """Return the requested version."""
        request = self.state.make_request(20, self.endpoint, now)
        assert request.path.endswith(f"api-version={request.version}")
        try:
            self.content: PollContent | None = self.state.read_response(request, response)
        except EndpointError:
            self.content = None
        return request.version


def test_the_newest_version_is_used_if_the_endpoint_has_it() -> None:
    poll = Poll()
    assert [poll(DOCUMENT), poll(NOT_MODIFIED, NOW + 2 * DAY)] == [NEWEST, NEWEST]
    assert poll.state.rejected is None


@pytest.mark.parametrize("rejection", REJECTIONS, ids=lambda response: f"{response.status} {response.body!r}")
def test_a_rejected_version_is_requested_again_after_a_day(rejection: EndpointResponse) -> None:
    poll = Poll()
    assert poll(rejection) == NEWEST
    assert poll.content == PollContent(None)
    assert poll(DOCUMENT) == OLDER
    assert poll.state.rejected == RejectedVersion(NEWEST, HERE, NOW)
    assert [poll(DOCUMENT, NOW + DAY - MINUTE), poll(rejection, NOW + DAY)] == [OLDER, NEWEST]
    assert [poll(NOT_MODIFIED, NOW + DAY), poll(DOCUMENT, NOW + 2 * DAY)] == [OLDER, NEWEST]
    assert [poll(DOCUMENT, NOW + 2 * DAY), poll.state.rejected] == [NEWEST, None]


def test_the_memory_of_an_earlier_run_counts_for_its_endpoint_only() -> None:
    for endpoint, version in ((HERE, OLDER), (ELSEWHERE, NEWEST)):
        poll = Poll(endpoint=endpoint)
        poll.state.rejected = RejectedVersion(NEWEST, HERE, NOW - MINUTE)
        assert poll(DOCUMENT) == version
    poll = Poll()
    poll.state.rejected = RejectedVersion("2023-01-01", HERE, NOW)  # an older agent knew no newer one
    assert poll(DOCUMENT) == NEWEST


def test_an_endpoint_that_rejects_everything_for_a_while_is_not_remembered() -> None:
    """Azure sends 404 to a VM that it does not know yet."""
    poll = Poll()
    assert [poll(REJECTIONS[1]) for _ in range(len(VERSIONS) + 1)] == [NEWEST, *VERSIONS]
    assert [poll(DOCUMENT), poll.state.rejected] == [OLDER, None]
    assert [poll(DOCUMENT, NOW + MINUTE), poll(DOCUMENT, NOW + MINUTE)] == [NEWEST, NEWEST]


def test_another_failure_leaves_the_endpoint_polled_with_the_older_version() -> None:
    poll = Poll()
    assert [poll(GONE), poll(DOCUMENT), poll(DOCUMENT, NOW + MINUTE / 2)] == [NEWEST, OLDER, OLDER]
    assert [poll(GONE, NOW + MINUTE), poll(DOCUMENT, NOW + MINUTE)] == [NEWEST, OLDER]
    assert poll.state.rejected is None


@pytest.mark.parametrize("rejection", REJECTIONS)
def test_a_version_that_is_withdrawn_is_not_used_any_more(rejection: EndpointResponse) -> None:
    poll, later = Poll(), NOW + 5 * DAY
    assert [poll(DOCUMENT), poll(rejection, later), poll(DOCUMENT, later)] == [NEWEST, NEWEST, OLDER]
    assert poll.state.rejected == RejectedVersion(NEWEST, HERE, later)


def test_a_rejected_approval_does_not_change_the_version() -> None:
    poll = Poll()
    poll(DOCUMENT)
    unknown = EndpointResponse(400, {}, b'{ "error": "Unknown event" }', None)
    assert not poll.state.try_older_version(NEWEST, unknown)
    assert poll(DOCUMENT) == NEWEST


def test_the_entity_tag_is_not_sent_with_another_version() -> None:
    """A tag can be the same for all versions: a 304 would hide an event that only the newest version has."""
    poll = Poll()
    poll.state.rejected = RejectedVersion(NEWEST, HERE, NOW)
    poll(DOCUMENT)
    assert poll.state.make_request(20, HERE, NOW)[1:4] == (
        {**PollState().make_request().headers, "If-None-Match": '"1"', "Prefer": "wait=20"},
        20,
        '"1"',
    )
    request = poll.state.make_request(20, HERE, NOW + DAY)
    assert (request.version, request.tag, request.wait_seconds) == (NEWEST, "", 0)
    poll.state.read_response(request, REJECTIONS[0])
    assert poll.state.make_request(20, HERE, NOW + DAY).tag == '"1"'


def test_without_preview_versions_the_newest_is_never_requested() -> None:
    poll = Poll(PollState())
    assert [poll(DOCUMENT), poll(DOCUMENT, NOW + 5 * DAY)] == [OLDER, OLDER]


# --- The state file -----------------------------------------------------------------------------------


def test_the_state_file_keeps_the_rejected_version(tmp_path: Path) -> None:
    store = WorkStore(StateFile(tmp_path))
    assert store.rejected_version is None
    store.keep_rejected_version(RejectedVersion(NEWEST, HERE, NOW))
    store.close()
    file = StateFile(tmp_path)
    assert WorkStore(file).rejected_version == RejectedVersion(NEWEST, HERE, NOW)
    file.close()


@pytest.mark.parametrize("value", [None, 5, [], {}, {"version": NEWEST, "endpoint": HERE, "at": "soon"}, {"at": 5}])
def test_an_invalid_rejected_version_loses_no_work(tmp_path: Path, value: object) -> None:
    (tmp_path / FILE).write_text(json.dumps({"version": 1, "works": [], "rejected_version": value}))
    file = StateFile(tmp_path)
    assert WorkStore(file).rejected_version is None
    assert (tmp_path / FILE).exists()
    file.close()


# --- Agent and library with an endpoint ---------------------------------------------------------------


class Endpoint:
    """An endpoint with a clock, with or without the newest version. Only that version shows advice."""

    def __init__(self) -> None:
        self.has_newest = False
        self.ahead = timedelta(0)
        self.events: tuple[dict[str, Any], ...] = ()
        self.incarnation = 1
        self.server = RawServer(self._respond)

    def show(self, *events: dict[str, Any]) -> None:
        self.incarnation, self.events = self.incarnation + 1, events

    @property
    def versions(self) -> list[str]:
        """The versions of the requests for documents."""
        return [
            request.target.partition("=")[2] for request in self.server.received if "scheduledevents" in request.target
        ]

    @property
    def approvals(self) -> list[bytes]:
        return [request.body for request in self.server.received if request.method == "POST"]

    def _respond(self, connection: socket.socket) -> None:
        request = self.server.received[-1]
        version = request.target.partition("=")[2]
        if "scheduledevents" not in request.target or (version == NEWEST and not self.has_newest):
            connection.sendall(answer(404, b'{ "error": "Not found. Invalid version requested" }'))
            return
        events = [each for each in self.events if version == NEWEST or each["EventStatus"] != "Advisory"]
        body = json.dumps({"DocumentIncarnation": self.incarnation, "Events": events}).encode()
        date = format_datetime(datetime.now(UTC) + self.ahead, usegmt=True)
        connection.sendall(answer(200, body, {"Date": date}))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    with endpoint.server:
        yield endpoint


RULES = """
[[rule]]
name = "advice"
on = "SpotRebalanceRecommendation"
prepare = ["drain"]
approve = "self"

[[rule]]
name = "others"
prepare = ["drain", "stop"]
"""


@pytest.fixture
def start(endpoint: Endpoint, tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    diary = Diary(tmp_path)
    variables = {"FOREWARN_ENDPOINT": endpoint.server.url, "FOREWARN_VM_NAME": "web-0"}
    started: list[AgentProcess] = []

    def start_agent(*arguments: str, config: str = "") -> AgentProcess:
        text = f"{config}{RULES}{diary.handler('drain')}{diary.handler('stop')}"
        started.append(AgentProcess(tmp_path, text, variables).start(*arguments))
        return started[-1]

    yield start_agent
    for agent in started:
        if agent.runs:
            agent.stop()


def test_a_restart_does_not_request_a_rejected_version_again(
    endpoint: Endpoint, start: Callable[..., AgentProcess]
) -> None:
    agent = start()
    agent.until_logged(f"api_version={OLDER}")
    assert endpoint.versions[:2] == [NEWEST, OLDER]
    agent.until(lambda: (agent.state / FILE).exists(), "the state file")
    assert agent.status()["polling"]["api_version"] == OLDER
    agent.kill()
    before = len(endpoint.versions)
    agent = start()
    agent.until(lambda: len(endpoint.versions) > before + 2, "three polls")
    assert set(endpoint.versions[before:]) == {OLDER}
    agent.stop()
    endpoint.ahead, endpoint.has_newest = DAY + MINUTE, True
    endpoint.show(ADVICE)
    start().until_logged("handler_completed")
    assert endpoint.versions[-1] == NEWEST


def test_advice_is_prepared_until_the_eviction_that_follows_is_over(
    endpoint: Endpoint, start: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    endpoint.has_newest = True
    endpoint.show(ADVICE)
    agent = start()
    agent.until_logged("handler_completed")
    (shown,) = agent.status()["events"]
    assert (shown["status"], shown["phase"]) == ("Advisory", "prepared")
    assert 'api_version="2024-07-09"' in render_metrics(agent.status(), "1.0")
    endpoint.show(EVICTION)
    agent.until_logged("handler_completed", times=2)
    agent.until_logged("eviction_followed")
    agent.until_logged("handler_shared")
    agent.kill()
    agent = start()
    endpoint.show()
    agent.until_logged("work_undone", times=2)
    diary = (tmp_path / "diary").read_text().splitlines()
    assert [line for line in diary if line.startswith("end")] == [
        "end prepare drain",
        "end prepare stop",
        "end undo stop",
        "end undo drain",
    ]
    assert endpoint.approvals == []
    agent.until_logged("event_cancelled")


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (("--preview-versions", "false"), ""),
        ((), "[agent]\npreview_versions = false\n"),
        (("--preview-versions=false",), "[agent]\npreview_versions = true\n"),
    ],
)
def test_the_newest_version_can_be_turned_off(
    endpoint: Endpoint, start: Callable[..., AgentProcess], arguments: tuple[str, ...], config: str
) -> None:
    agent = start(*arguments, config=config)
    agent.until(lambda: len(endpoint.versions) > 2, "three polls")
    assert set(endpoint.versions) == {OLDER}


def test_check_and_install_know_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("[agent]\npreview_versions = false\n")
    assert main(["check", str(config)]) == 0
    assert "The agent requests no api-version that is a preview." in capsys.readouterr().out
    assert main(["check", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["preview_versions"] is False
    assert main(["install", "--config", str(config), "--print", "--preview-versions", "true"]) == 0
    assert "--preview-versions=true" in capsys.readouterr().out


def test_the_library_uses_preview_versions_only_on_request(endpoint: Endpoint) -> None:
    endpoint.has_newest = True
    endpoint.show(ADVICE)
    with Client(endpoint.server.url, "web-0") as client:
        assert client.document().events == ()
        assert client.api_version == OLDER
    with Client(endpoint.server.url, "web-0", preview_versions=True) as client:
        change = next(client.changes())
        assert (change.event.status, change.approve()) == ("Advisory", False)
        assert client.api_version == NEWEST
    assert endpoint.approvals == []
