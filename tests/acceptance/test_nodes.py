"""Several nodes, one service: reads on every node, changes through every node, and what happens when nodes fail."""

from __future__ import annotations

import json
import re
import select
import signal
import threading
from contextlib import ExitStack, closing
from datetime import timedelta
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import pytest
import trustme

import foreground
from cluster import ADDRESSES, FLEET, LONGEST_WAIT_SECONDS, Cluster, NodeProcess, Relay
from depth import amount
from order_log import OrderLog
from pooler import Pooler
from postgresql import PostgresServer
from shifted_system_clock import ShiftedSystemClock
from systemd_socket import SystemdSocket
from tcp_ports import free_port
from webhook_receiver import Receiver

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from forewarn.testing import ServiceProcess

CONNECTIONS = 3
"""What docs/nodes.md promises: how many connections to the database a node needs."""


@pytest.fixture
def own_database(postgresql: PostgresServer, tmp_path: Path) -> Iterator[tuple[PostgresServer, Cluster]]:
    """A database that the test can stop. `postgresql` skips the test if there is no PostgreSQL."""
    server = PostgresServer(postgresql.version).start()
    cluster = Cluster(tmp_path, server, "forewarn")
    yield server, cluster
    try:
        cluster.check_notices()
    finally:
        cluster.close()
        server.close()


def enabled(node: NodeProcess) -> None:
    """Enable all VMs, through this node."""
    for vm in ADDRESSES:
        assert node.poll(vm).status == 200


def documents(node: NodeProcess) -> list[tuple[bytes, str]]:
    answers = [node.poll(vm) for vm in ADDRESSES]
    return [(answer.body, answer.headers["etag"]) for answer in answers]


def test_a_change_through_any_node_is_seen_there_at_once_and_soon_on_all(cluster: Cluster) -> None:
    nodes = [cluster.add(), cluster.add(), cluster.add()]
    assert [node.role for node in nodes] == ["leader", "follower", "follower"]
    for number, (node, vm) in enumerate(zip(nodes, ("web-0", "web-1", "db-0"), strict=True), 1):
        assert node.poll(vm).status == 200
        operation = node.request_operation("restart", vm)
        assert operation["events"][0]["id"] == node.poll(vm).json()["Events"][-1]["EventId"].lower()
        assert len(node.list_all("/v1/events")) == number
    cluster.until_equal()
    assert documents(nodes[0]) == documents(nodes[1]) == documents(nodes[2])
    histories = [node.list_all("/v1/history") for node in nodes]
    assert histories[0] == histories[1] == histories[2]


def test_an_approval_through_a_follower_starts_the_event(cluster: Cluster) -> None:
    leader, follower = cluster.add(), cluster.add()
    enabled(follower)
    event = leader.request_operation("restart", "web-0")["events"][0]["id"]
    cluster.until_equal()
    assert follower.approve_as("web-1", event).status == 200
    assert follower.poll("web-0").json()["Events"][0]["EventStatus"] == "Started"
    assert follower.approve_as("web-1", event).status == 200, "clients repeat themselves"
    wrong = follower.approve_as("db-0", event)
    assert (wrong.status, b"No scheduled event" in wrong.body) == (400, True)
    (row,) = [row for row in leader.list_all("/v1/history") if row["kind"] == "approved"]
    assert (row["by"], row["event"]) == ("web-1", event)


def test_a_scenario_runs_through_any_node(cluster: Cluster) -> None:
    nodes = cluster.add(), cluster.add()
    for node in nodes:
        ran = node.cli("scenario", "run", "user-reboot", "--vm", "db-0", "--enable", "--speed", "300")
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_request_on_a_follower_has_the_answer_of_the_leader(cluster: Cluster) -> None:
    _, follower = cluster.add(), cluster.add()
    missing = follower.control("POST", "/v1/operations", {"cause": "restart", "vms": ["nothing"]})
    assert (missing.status, missing.headers["content-type"]) == (404, "application/problem+json")
    key = {"Idempotency-Key": "once"}
    body = {"cause": "restart", "vms": ["web-0"]}
    first = follower.control("POST", "/v1/operations", body, headers=key)
    again = follower.control("POST", "/v1/operations", body, headers=key)
    assert (first.status, again.status, again.body) == (201, 201, first.body)
    assert again.headers["idempotency-replayed"] == "true"
    token = follower.control("POST", "/v1/tokens", {"name": "ci", "role": "viewer"}).json()["token"]
    assert follower.control("POST", "/v1/operations", body, token=token).status == 403
    assert follower.control("POST", "/v1/operations", body, token="wrong").status == 401  # noqa: S106


def test_a_nul_character_finds_nothing_and_is_no_problem_of_the_database(cluster: Cluster) -> None:
    nodes = [cluster.add(), cluster.add()]
    enabled(nodes[0])
    epoch = nodes[0].own_row()["epoch"]
    for node in nodes:
        paths = node.get_json("/v1/openapi.json")["paths"]
        for path, method in ((path, method) for path, item in paths.items() if "{" in path for method in item):
            answer = node.control(method.upper(), re.sub("{.*?}", "a%00b", path), {})
            assert answer.status in (400, 404), (method, path, answer.body)
        wrong = node.approve_as("web-0", "a\0b")
        assert (wrong.status, b"No scheduled event" in wrong.body) == (400, True)
        for body in ({"cause": "restart", "vms": ["a\0b"]}, {"cause": "restart", "vms": ["web-0"], "reason": "a\0b"}):
            assert node.control("POST", "/v1/operations", body).status in (400, 404)
    assert nodes[0].own_row()["epoch"] == epoch


def begin(node: NodeProcess, method: str, path: str, token: str, body: bytes = b"") -> socket.socket:
    """Send a request whose body has 200 MB, and the beginning of the body."""
    client = node.connect(node.control_address)
    client.settimeout(LONGEST_WAIT_SECONDS / 4)
    lines = (
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {token}",
        "Content-Length: 200000000",
    )
    client.sendall("\r\n".join((*lines, "", "")).encode() + body)
    return client


def test_a_follower_checks_a_request_before_it_reads_the_body(cluster: Cluster) -> None:
    _, follower = cluster.add(), cluster.add()
    viewer = follower.control("POST", "/v1/tokens", {"name": "ci", "role": "viewer"}).json()["token"]
    for method, path, token, status in (
        ("PUT", "/v1/fleet", viewer, 403),
        ("PUT", "/v1/fleet?sauce=x", follower.token, 400),
        ("PUT", "/v1/nothing", follower.token, 404),
        ("POST", "/v1/fleet", follower.token, 405),
    ):
        with closing(begin(follower, method, path, token)) as client:
            assert client.recv(12) == f"HTTP/1.1 {status}".encode()
    # The limit of a body is that of its route.
    with closing(begin(follower, "POST", "/v1/operations", follower.token, b"x" * 1_100_000)) as client:
        assert client.recv(12) == b"HTTP/1.1 413"


def test_a_follower_receives_few_fleet_files_at_a_time(cluster: Cluster) -> None:
    """Each of them can fill a large part of its memory. They have the same time for each part as on the leader."""
    _, follower = cluster.add(), cluster.add()
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(begin(follower, "PUT", "/v1/fleet", follower.token))) for _ in range(4)]
        ready: list[socket.socket] = []
        while len(ready) < 2:
            ready, _, _ = select.select(clients, [], [], LONGEST_WAIT_SECONDS)
        assert [client.recv(12) for client in ready] == [b"HTTP/1.1 503"] * 2
        slow = [client for client in clients if client not in ready]
        assert [client.recv(12) for client in slow] == [b"HTTP/1.1 408"] * 2


def test_a_part_of_the_fleet_changes_through_a_follower(cluster: Cluster) -> None:
    leader, follower = cluster.add(), cluster.add()
    part = b'[[host]]\nname = "rack-9"\n[[vm]]\nname = "late"\nhost = "rack-9"\naddress = "127.0.0.9"\n'
    key = {"Idempotency-Key": "once"}
    answers = [follower.control("PATCH", "/v1/fleet", part, headers=key) for _ in range(2)]
    assert [(one.status, one.json()["added"]) for one in answers] == [(200, ["late"])] * 2
    assert follower.request(source="127.0.0.9").status == 200, "at once"
    cluster.until_equal()
    assert leader.request(source="127.0.0.9").status == 200
    assert follower.control("POST", "/v1/fleet/remove", {"hosts": ["rack-9"]}).status == 409
    gone = follower.control("POST", "/v1/fleet/remove", {"vms": ["late"], "hosts": ["rack-9"]})
    assert (gone.status, gone.json()["hosts_removed"]) == (200, ["rack-9"])
    assert follower.request(source="127.0.0.9").status == 404
    cluster.until_equal()
    assert leader.control("GET", "/v1/hosts/rack-9").status == 404


def test_when_the_leader_is_killed_another_leads_and_nothing_is_lost(cluster: Cluster) -> None:
    first, second, third = cluster.add(), cluster.add(), cluster.add()
    enabled(second)
    before = first.request_operation("restart", "web-0")["events"][0]["id"]
    first.kill()
    after = third.control("POST", "/v1/operations", {"cause": "restart", "vms": ["db-0"]})
    assert after.status == 201, "the change waited for the new leader"
    assert cluster.leader() in (second, third)
    assert second.poll("web-0").json()["Events"][0]["EventId"].lower() == before
    first.up()
    assert first.role == "follower"
    cluster.until_equal()
    assert documents(first) == documents(second) == documents(third)


def test_a_leader_that_hangs_loses_its_lease_and_follows_when_it_continues(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    enabled(first)
    cluster.until_equal()
    first.pause()
    assert cluster.leader([second]) is second
    event = second.request_operation("restart", "web-0")["events"][0]["id"]
    first.resume()
    answer = first.control("POST", "/v1/operations", {"cause": "restart", "vms": ["db-0"]})
    assert answer.status == 201, answer.body
    assert cluster.leader() is second
    assert first.poll("web-0").json()["Events"][0]["EventId"].lower() == event
    cluster.until_equal()
    assert first.list_all("/v1/history") == second.list_all("/v1/history")


def test_a_leader_that_is_cut_off_in_the_middle_of_a_renewal_is_replaced(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    enabled(first)
    cluster.until_equal()
    first.relay.tear(first.name.encode())  # it renews its lease when it reports its name
    assert cluster.leader([second]) is second
    first.relay.mend()
    cluster.until_equal()


@pytest.fixture
def users(postgresql: PostgresServer, schema: str) -> Iterator[list[str]]:
    """Two users of the database, as the documentation creates them. None of them is an administrator."""
    owner, *names = (f"{schema}_{name}" for name in ("owner", "one", "two"))
    postgresql.execute(f"CREATE ROLE {owner}; CREATE SCHEMA {schema} AUTHORIZATION {owner}")
    for name in names:
        postgresql.execute(f"CREATE ROLE {name} LOGIN IN ROLE {owner}; ALTER ROLE {name} SET role = {owner}")
    yield names
    postgresql.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE; DROP ROLE {', '.join([owner, *names])}")


def test_a_leader_with_another_user_of_the_database_is_replaced_when_it_hangs(
    users: list[str], cluster: Cluster, schema: str
) -> None:
    first, second = (cluster.add(user=user) for user in users)
    enabled(first)
    cluster.until_equal()
    for hangs, leads, vm in ((first, second, "web-0"), (second, first, "web-1"), (first, second, "db-0")):
        hangs.pause()
        assert cluster.leader([leads]) is leads
        assert leads.request_operation("restart", vm)["events"]
        hangs.resume()
        cluster.until_equal()
    for node in (first, second):
        assert node.output.count("old_leader_not_ended") == 1
        assert f"GRANT pg_signal_backend TO {schema}_owner" in node.output


def use_all_connections(cluster: Cluster, user: str) -> None:
    """Start two nodes, and let the leader hang. So its connections remain while the other node takes over."""
    first, second = cluster.add(user=user), cluster.add(user=user)
    enabled(first)
    cluster.until_equal()
    for hangs, leads, vm in ((first, second, "web-0"), (second, first, "web-1")):
        for node in (first, second):
            assert node.get_json("/v1/history")["history"], "every connection of a node is open"
        hangs.pause()
        assert cluster.leader([leads]) is leads
        assert leads.request_operation("restart", vm)["events"]
        hangs.resume()
        cluster.until_equal()
    assert first.list_all("/v1/history") == second.list_all("/v1/history")


def test_three_connections_for_each_node_are_enough(
    users: list[str], cluster: Cluster, postgresql: PostgresServer
) -> None:
    postgresql.execute(f"ALTER ROLE {users[0]} CONNECTION LIMIT {2 * CONNECTIONS}")
    use_all_connections(cluster, users[0])


def test_three_connections_for_each_node_are_enough_for_a_pooler(cluster: Cluster, postgresql: PostgresServer) -> None:
    with closing(Pooler(postgresql, "session", size=2 * CONNECTIONS)) as pooler:
        cluster.database_port = pooler.port
        use_all_connections(cluster, "forewarn")


def test_leaders_keep_their_lease_with_a_round_trip_of_0_6_seconds(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    enabled(first)
    cluster.until_equal()
    for node in (first, second):
        node.relay.delay = 0.3
    for vm in ADDRESSES:  # each change takes a round trip at least, so all together take several leases
        event = second.request_operation("restart", vm)["events"][0]["id"]
        assert second.approve_as(vm, event).status == 200
    assert (first.role, first.own_row()["epoch"]) == ("leader", 1)
    first.kill()
    assert cluster.leader([second]) is second
    for vm in ADDRESSES:
        for name in ("one", "two"):
            assert second.control("POST", "/v1/tokens", {"name": f"{name}-{vm}", "role": "viewer"}).status == 201
    assert (second.role, second.own_row()["epoch"]) == ("leader", 2)
    assert "node_follows" not in first.output + second.output


def test_a_leader_without_the_database_answers_reads_and_another_leads(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    enabled(first)
    cluster.until_equal()
    before = documents(first)
    first.relay.cut()
    assert cluster.leader([second]) is second
    assert documents(first) == before
    second.request_operation("restart", "web-0")
    first.relay.mend()
    cluster.until_equal()
    assert first.role == "follower"
    assert documents(first) == documents(second) != before


def test_a_follower_without_the_database_answers_reads_and_says_how_old_they_are(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    enabled(second)
    operation = first.request_operation("restart", "db-0")
    rollout = first.control("POST", "/v1/rollouts", {"hosts": ["rack-2"]}).json()["id"]
    cluster.until_equal()
    fleet = ("vms", "vms/db-0", "hosts", "hosts/rack-0", "groups", "groups/web", "map", "overview", "nodes", "clock")
    events = second.get_json("/v1/events?count=true")
    items = [f"events/{each['id']}" for each in events["events"]]
    items += [f"operations/{operation['id']}", f"operations/{operation['id'][:13]}", f"rollouts/{rollout}"]
    lists = (
        "events?count=true",
        "events?vm=db-*",
        "operations?host=rack-2",
        "operations?todo=true",
        "rollouts?limit=1",
    )
    items += [f"{item}/explain" for item in items]
    before = {path: second.get_json(f"/v1/{path}") for path in (*lists, *items)}
    second.relay.cut()
    first.request_operation("restart", "web-0")
    assert second.poll("web-0").json()["Events"] == []
    for path in fleet:
        assert second.control("GET", f"/v1/{path}").status == 200, path
    assert {path: second.get_json(f"/v1/{path}") for path in before} == before
    assert second.control("GET", "/v1/events?all=true").status == 503, "ended events are in the database"
    for _ in range(LONGEST_WAIT_SECONDS):
        problems = second.control("GET", "/readyz").json()["problems"]
        if any(each.startswith("This node has not heard from the database for") for each in problems):
            break
        threading.Event().wait(1)
    else:
        pytest.fail(f"/readyz says {problems}")
    assert second.control("GET", "/v1/history").status == 503, "history is in the database"
    second.relay.mend()
    cluster.until_equal()
    assert len(second.poll("web-0").json()["Events"]) == 1


def test_a_client_that_knows_a_newer_document_waits_for_it(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    enabled(first)
    cluster.until_equal()
    second.relay.cut()
    first.request_operation("restart", "web-0")
    newer = first.poll("web-0")
    late = second.poll("web-0", newer.headers["etag"])
    assert (late.status, late.headers["etag"]) == (304, newer.headers["etag"]), "it knows nothing newer"
    assert second.poll("web-0").json()["Events"] == []
    threading.Timer(0.3, second.relay.mend).start()
    assert second.poll("web-0", newer.headers["etag"]).status == 304
    assert second.poll("web-0").body == newer.body
    cluster.until_equal()
    assert second.poll("web-0", '"99.0"').status == 200, "a tag that this service never sent"


def test_a_feed_client_that_knows_a_newer_row_waits_for_it(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    cluster.until_equal()
    second.relay.cut()
    first.request_operation("restart", "web-0")
    newest = first.list_all("/v1/history")[-1]["sequence"]
    late = second.control("GET", f"/v1/feed?after={newest}")
    assert (late.status, late.headers["retry-after"]) == (503, "2"), late.body
    assert "behind the others" in late.json()["detail"]
    threading.Timer(0.3, second.relay.mend).start()
    assert second.control("HEAD", f"/v1/feed?after={newest}").status == 200
    cluster.until_equal()
    for node in (first, second):
        assert node.control("GET", f"/v1/feed?after={newest + 1000}").status == 400, "no node has ever sent this row"


def test_watching_continues_on_a_node_that_is_behind(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    enabled(first)
    cluster.until_equal()
    balancer = Relay(first.control_address[1])
    variables = {
        "FOREWARN_SERVER": f"http://127.0.0.1:{balancer.port}",
        "FOREWARN_TOKEN_FILE": str(Path(second.data) / "admin-token"),
    }
    command = [*NodeProcess.command, "event", "watch", "--kind", "scheduled", "--after", "0"]
    with foreground.running(command, second.environment | variables) as watch:
        assert watch.stdout is not None
        assert watch.stderr is not None
        second.relay.cut()
        first.request_operation("restart", "web-0")
        assert "web-0" in watch.stdout.readline()
        balancer.target = second.control_address[1]
        first.kill()
        assert "connection lost" in watch.stderr.readline()
        threading.Event().wait(3)  # it has tried by then, and the node was behind
        second.relay.mend()
        cluster.leader([second])
        second.request_operation("restart", "db-0")
        assert "db-0" in watch.stdout.readline()
    balancer.close()


def test_changes_that_meet_a_change_of_the_leader_are_made_by_the_next_one(
    cluster: Cluster, postgresql: PostgresServer, schema: str
) -> None:
    def depose() -> NodeProcess:
        """Let the next commit of the leader fail, as if another node led."""
        leader = cluster.leader()
        postgresql.execute(f"UPDATE {schema}.lease SET epoch = epoch + 1")
        return leader

    nodes = [cluster.add(), cluster.add()]
    first = cluster.leader()
    first.poll("web-0")
    event = first.request_operation("restart", "web-0")["events"][0]["id"]
    cluster.until_equal()
    assert depose().poll("db-0").status == 200, "it enables the scope"
    assert depose().approve_as("web-1", event).status == 200
    leader = depose()
    follower = next(node for node in nodes if node is not leader)
    assert follower.control("POST", "/v1/operations", {"cause": "restart", "vms": ["db-0"]}).status == 201
    assert depose().control("POST", "/v1/operations", {"cause": "eviction", "vms": ["batch-0"]}).status == 201
    cluster.until_equal()
    kinds = [row["kind"] for row in nodes[0].list_all("/v1/history")]
    assert (kinds.count("approved"), kinds.count("requested")) == (1, 3), "nothing happened twice"


def test_a_long_poll_on_a_follower_ends_with_the_change(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    etag = second.poll("web-0").headers["etag"]
    threading.Timer(0.3, first.request_operation, ("restart", "web-0")).start()
    changed = second.poll("web-0", etag, prefer="wait=60")
    assert (changed.status, len(changed.json()["Events"])) == (200, 1)


def test_a_long_poll_with_a_tag_that_no_node_sent_ends_with_the_change(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    etag = second.poll("web-0").headers["etag"]
    cluster.until_equal()
    enabling, incarnation, scope = etag.strip('"').split(".")
    tags = f'{etag}, "{enabling}.{int(incarnation) + 1000}.{scope}"'
    for node in (first, second):
        assert node.poll("web-0", tags, prefer="wait=1").status == 304
        changes = len(node.poll("web-0").json()["Events"])
        threading.Timer(0.3, first.request_operation, ("restart", f"web-{changes}")).start()
        changed = node.poll("web-0", tags, prefer="wait=60")
        assert (changed.status, len(changed.json()["Events"])) == (200, changes + 1)
        cluster.until_equal()
        tags = f"{changed.headers['etag']}, {tags}"


def test_without_a_leader_changes_wait_for_a_bounded_time(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    enabled(first)
    cluster.until_equal()
    for node in (first, second):
        node.relay.cut()
    for _ in range(LONGEST_WAIT_SECONDS):
        if first.role == "follower":
            break
        threading.Event().wait(0.5)
    answer = second.control("POST", "/v1/operations", {"cause": "restart", "vms": ["db-0"]})
    assert (answer.status, answer.headers["retry-after"]) == (503, "2"), answer.body
    assert "Nothing was changed" in answer.json()["detail"]
    for node in (first, second):
        node.relay.mend()
    while answer.status == 503:  # until a node leads again
        answer = second.control("POST", "/v1/operations", {"cause": "restart", "vms": ["db-0"]})
    assert answer.status == 201
    assert len(second.list_all("/v1/events")) == 1


def test_a_node_with_other_settings_is_rejected(cluster: Cluster) -> None:
    cluster.add()
    with pytest.raises(RuntimeError, match=r"setting speed of this node is '60'.*have '1'"):
        cluster.add("--speed", "60")
    for arguments in (("--clock", "virtual"), ("--allow-faults",)):
        with pytest.raises(RuntimeError, match="several nodes cannot use it"):
            cluster.add(*arguments)


def test_a_second_service_in_the_same_schema_is_rejected(cluster: Cluster, postgresql: PostgresServer) -> None:
    node = cluster.add()
    with pytest.raises(RuntimeError, match=r"A node with the name node-0 is running at 127.0.0.1:"):
        cluster.add("--name", "node-0")
    node.kill()
    node.up()
    assert cluster.leader() is node, "a node that starts again after a kill keeps its name"
    node.stop()
    with pytest.raises(RuntimeError, match=r"belongs to a node of another service than the schema other_service"):
        node.up("--database-schema", "other_service")
    found = postgresql.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'other_service'")
    assert found == [], "nothing was changed"
    assert node.up().role == "leader"


def test_a_node_says_which_files_it_does_not_use(cluster: Cluster, make_service: type[ServiceProcess]) -> None:
    first = cluster.add()
    assert "fleet_file_ignored" not in first.output
    service = make_service()
    service.stop()
    second = cluster.add("--data", service.data)
    (second.folder / "other.toml").write_text(FLEET.replace("web-1", "web-2"))
    assert "own_database_ignored" in second.output
    second.stop()
    second.up("--fleet", str(second.folder / "other.toml"))
    assert "fleet_file_ignored" in second.output
    assert [vm["name"] for vm in second.list_all("/v1/vms")] == sorted(ADDRESSES)


def test_settings_can_change_when_no_other_node_runs(cluster: Cluster) -> None:
    first = cluster.add()
    first.stop()
    first.up("--speed", "60")
    assert first.role == "leader"


def test_the_leader_steps_down_and_the_commands_show_it(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    shown = second.cli("node", "list")
    assert shown.returncode == 0, shown.stderr
    assert [line.split()[:2] for line in shown.stdout.splitlines()[2:]] == [["node-0", "leader"], ["node-1", "*"]]
    stepped = second.cli("node", "step-down")
    assert stepped.returncode == 0, stepped.stderr
    assert cluster.leader() is second
    nodes = json.loads(second.cli("node", "list", "--json").stdout)["nodes"]
    one = next(node for node in nodes if node["name"] == "node-1")
    assert (one["role"], one["epoch"]) == ("leader", 2)
    second.until_output("node_leads")
    first.until_output("node_follows")
    metrics = second.control("GET", "/metrics").body.decode()
    assert "\nforewarn_node_leads 1.0\n" in metrics
    assert "\nforewarn_node_epoch 2.0\n" in metrics
    assert first.control("GET", "/readyz").json()["role"] == "follower"


def test_a_node_with_a_wrong_clock_does_not_lead_and_says_so(cluster: Cluster, tmp_path: Path) -> None:
    clock = ShiftedSystemClock(tmp_path)
    clock.shift(3600)
    first, second = cluster.add(), cluster.add(**clock.variables)
    enabled(first)
    first.request_operation("restart", "web-0")
    cluster.until_equal()
    answer = second.control("GET", "/readyz")
    (problem,) = answer.json()["problems"]
    assert (answer.status, problem[:31]) == (503, "The clock of this node is at 20"), problem
    assert second.get_json("/v1/nodes")["problem"].startswith("The clock of this node is at")
    assert "has a problem: The clock of this node" in second.cli("node", "list").stderr
    dates = [parsedate_to_datetime(node.poll("web-0").headers["date"]) for node in (first, second)]
    assert dates[1] - dates[0] < timedelta(minutes=1), "agents decide by this time"
    second.until_output("clock_differs")
    assert second.output.count("clock_differs") == 1
    first.kill()
    for _ in range(LONGEST_WAIT_SECONDS):
        if second.get_json("/v1/nodes")["leader"] is None:
            break
        threading.Event().wait(0.5)
    assert [event["EventStatus"] for event in second.poll("web-0").json()["Events"]] == ["Scheduled"]
    first.up()
    assert cluster.leader() is first
    second.kill()
    clock.shift(0)
    second.up(**clock.variables)
    assert second.control("GET", "/readyz").status == 200


def test_a_stopped_leader_gives_its_lease_away(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    enabled(second)
    assert first.stop() == 0
    assert second.request_operation("restart", "web-0")["events"]
    assert second.role == "leader"


def test_each_node_has_its_own_admin_token_and_a_revoked_one_does_not_return(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    names = {token["name"] for token in first.list_all("/v1/tokens")}
    assert names == {"admin-node-0", "admin-node-1"}
    assert first.control("DELETE", "/v1/tokens/admin-node-1").status == 200
    second.stop()
    second.up()
    assert second.control("GET", "/v1/fleet").status == 401
    second.stop()
    (Path(second.data) / "admin-token").write_text("fw_never_created")
    second.up()
    assert second.control("GET", "/v1/fleet").status == 200, "the service never had the token in the file"


def test_a_service_without_a_shared_database_is_one_node(make_service: type[ServiceProcess]) -> None:
    service = make_service()
    (node,) = service.get_json("/v1/nodes")["nodes"]
    assert (node["role"], node["is_self"]) == ("leader", True)
    answer = service.cli("node", "step-down")
    assert (answer.returncode, "has one node" in answer.stderr) == (4, True)


def test_polls_on_a_follower_count_as_activity(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    enabled(first)
    cluster.until_equal()
    before = first.get_json("/v1/vms/web-0")["last_seen_at"]
    for _ in range(LONGEST_WAIT_SECONDS):
        second.poll("web-0")
        if first.get_json("/v1/vms/web-0")["last_seen_at"] > before:
            return
        threading.Event().wait(1)
    raise AssertionError("the leader never heard of the polls")


def test_a_node_that_is_too_far_behind_loads_the_state_again(
    cluster: Cluster, postgresql: PostgresServer, schema: str
) -> None:
    first, second = cluster.add(), cluster.add()
    enabled(first)
    cluster.until_equal()
    second.relay.cut()
    first.request_operation("restart", "web-0")
    first.request_operation("restart", "db-0")
    postgresql.execute(f"DELETE FROM {schema}.journal WHERE number < (SELECT max(number) FROM {schema}.journal)")
    second.relay.mend()
    cluster.until_equal()
    assert documents(first) == documents(second)
    second.until_output("state_reloaded")
    assert second.list_all("/v1/history") == first.list_all("/v1/history")


def test_a_leader_that_other_nodes_cannot_reach_keeps_leading(cluster: Cluster) -> None:
    first, second = cluster.add(), cluster.add()
    enabled(second)
    cluster.until_equal()
    first.node_relay.cut()
    event = first.request_operation("restart", "web-0")["events"][0]["id"]
    cluster.until_equal()
    assert second.poll("web-0").json()["Events"][0]["EventId"].lower() == event, "the journal is in the database"
    key = {"Idempotency-Key": "once"}
    body = {"cause": "restart", "vms": ["db-0"]}
    lost = second.control("POST", "/v1/operations", body, headers=key)
    assert (lost.status, "It is not known whether the change was made" in lost.json()["detail"]) == (503, True)
    approval = second.approve_as("web-1", event)
    assert (approval.status, approval.headers["retry-after"]) == (503, "2"), approval.body
    assert first.role == "leader"
    first.node_relay.mend()
    again = second.control("POST", "/v1/operations", body, headers=key)
    assert again.status == 201, again.body
    assert second.approve_as("web-1", event).status == 200
    kinds = [(row["kind"], row["group"]) for row in second.list_all("/v1/history")]
    assert kinds.count(("scheduled", "db-0")) == kinds.count(("approved", "web")) == 1, "nothing happened twice"


def test_a_leader_that_is_cut_off_from_everything_is_replaced(cluster: Cluster) -> None:
    first, second, third = cluster.add(), cluster.add(), cluster.add()
    enabled(first)
    event = second.request_operation("restart", "web-0")["events"][0]["id"]
    cluster.until_equal()
    before = documents(first)
    first.relay.cut()
    first.node_relay.cut()
    assert second.approve_as("web-1", event).status == 200, "the node has sent it again, to the new leader"
    assert cluster.leader([second, third]) in (second, third)
    assert documents(first) == before
    first.relay.mend()
    first.node_relay.mend()
    cluster.until_equal()
    assert first.role == "follower"
    assert documents(first) == documents(second) == documents(third) != before


def health(port: int, path: str) -> tuple[int, str]:
    """The answer of a node that has no service file yet; 0: it does not listen yet."""
    line = HTTPConnection("127.0.0.1", port, timeout=LONGEST_WAIT_SECONDS)
    try:
        line.request("GET", path)
        answer = line.getresponse()
        return answer.status, answer.read().decode()
    except ConnectionError:
        return 0, ""
    finally:
        line.close()


def test_a_node_that_starts_while_the_database_is_away_waits_for_it(
    own_database: tuple[PostgresServer, Cluster], tmp_path: Path
) -> None:
    database, cluster = own_database
    first = cluster.add()
    enabled(first)
    first.kill()
    database.stop()
    port = free_port()
    with SystemdSocket(tmp_path) as systemd:
        variables = {"FOREWARN_CONTROL": f"127.0.0.1:{port}", **systemd.variables}
        starting = threading.Thread(target=first.up, kwargs=variables)
        starting.start()
        while not (answer := health(port, "/readyz"))[0] and starting.is_alive():
            threading.Event().wait(0.1)
        assert (answer[0], "This node starts, and answers no polls yet" in answer[1]) == (503, True)
        assert health(port, "/healthz")[0] == 503, "a balancer must not send polls to it"
        first.until_output("database_unreachable")
        waits = systemd.receive()
        assert waits["EXTEND_TIMEOUT_USEC"] == "60000000", "systemd would end it"
        assert waits["STATUS"].startswith("Cannot use the database")
        database.start()
        while "READY" not in systemd.receive():
            pass
    starting.join(LONGEST_WAIT_SECONDS)
    assert cluster.leader() is first
    assert [health(port, path)[0] for path in ("/healthz", "/readyz")] == [200, 200]


def test_a_node_that_waits_for_the_database_can_be_stopped(own_database: tuple[PostgresServer, Cluster]) -> None:
    database, cluster = own_database
    first = cluster.add()
    first.kill()
    database.stop()
    port = free_port()
    ended: list[str] = []

    def start() -> None:
        with pytest.raises(RuntimeError) as error:
            first.up(FOREWARN_CONTROL=f"127.0.0.1:{port}")
        ended.append(str(error.value))

    starting = threading.Thread(target=start)
    starting.start()
    while not health(port, "/readyz")[0] and starting.is_alive():
        threading.Event().wait(0.1)
    assert first.process is not None
    first.process.terminate()
    starting.join(LONGEST_WAIT_SECONDS)
    assert ended[0].startswith("forewarn up ended with 0"), ended


def test_a_node_with_an_unknown_database_ends(
    postgresql: PostgresServer, make_service: Callable[..., ServiceProcess]
) -> None:
    url = postgresql.url_at(postgresql.port, "nothing")
    with pytest.raises(RuntimeError, match='database "nothing" does not exist'):
        make_service("--database", url, "--name", "one", "--node-address", "127.0.0.1:0")


def test_a_database_that_crashes_and_comes_back(own_database: tuple[PostgresServer, Cluster]) -> None:
    server, cluster = own_database
    first, second = cluster.add(), cluster.add()
    enabled(second)
    event = second.request_operation("restart", "web-0")["events"][0]["id"]
    cluster.until_equal()
    before = documents(first)
    server.stop(signal.SIGQUIT)
    answer = second.control("POST", "/v1/operations", {"cause": "restart", "vms": ["db-0"]})
    assert answer.status == 503, answer.body
    away = monotonic() + amount(60)
    while monotonic() < away:
        assert documents(first) == documents(second) == before, "reads need nobody"
    server.start()
    assert second.request_operation("restart", "db-0")["events"]
    assert first.approve_as("web-0", event).status == 200
    cluster.until_equal()
    assert documents(first) == documents(second)
    assert first.list_all("/v1/history") == second.list_all("/v1/history")


def test_another_node_finishes_the_work_of_a_leader_that_was_killed(cluster: Cluster, tmp_path: Path) -> None:
    receiver = Receiver()
    orders = cluster.notices.orders = OrderLog(tmp_path / "orders", seconds=0.2)
    options = ("--speed", "600", "--webhook-private-networks", "127.0.0.1/32", *orders.options)
    leader, other = cluster.add(*options), cluster.add(*options)
    enabled(other)
    assert other.control("POST", "/v1/webhooks", {"name": "all", "url": receiver.url()}).status == 201
    eviction = other.request_operation("eviction", "batch-0")["id"]
    rollout = other.control("POST", "/v1/rollouts", {"hosts": ["rack-*"], "notice": "30m"}).json()["id"]
    other.poll_all()
    leader.kill()
    fleet = f'{FLEET}\n[[vm]]\nname = "new-0"\naddress = "127.0.0.9"\n'
    assert other.control("PUT", "/v1/fleet", fleet.encode()).status == 200, "it waited for the new leader"
    for _ in range(LONGEST_WAIT_SECONDS * 5):
        found = [other.get_json(f"/v1/rollouts/{rollout}"), other.get_json(f"/v1/operations/{eviction}")]
        if [each["status"] for each in found] == ["done", "done"]:
            break
        other.poll_all()
        threading.Event().wait(0.2)
    assert [each["status"] for each in found] == ["done", "done"]
    rows = other.list_all("/v1/history")
    started = [row["event"] for row in rows if row["kind"] == "started"]
    assert len(started) == len(set(started)), "nothing happened twice"
    added = next(row["sequence"] for row in rows if row["kind"] == "webhook-added")
    receiver.wait_until_accepted({str(row["sequence"]) for row in rows if row["sequence"] > added})
    receiver.close()


def test_other_nodes_trust_a_renewed_certificate(cluster: Cluster, tmp_path: Path) -> None:
    def issue() -> None:
        trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "node.pem"))

    issue()
    options = ("--tls-certificate", str(tmp_path / "node.pem"))
    first, second = cluster.add(*options), cluster.add(*options)
    issue()
    for node in (first, second):
        assert node.process is not None
        node.process.send_signal(signal.SIGHUP)
        node.until_output("certificate_reloaded")
    second.stop()
    second.up(*options)
    assert second.role == "follower"
    assert second.request_operation("restart", "web-0")["id"]


def test_the_next_leader_applies_its_fleet_file_if_there_is_no_fleet(
    cluster: Cluster, postgresql: PostgresServer, schema: str
) -> None:
    first = cluster.add()
    # As if the first node had failed before it applied its file.
    postgresql.execute(f"DELETE FROM {schema}.vm")
    postgresql.execute(f"DELETE FROM {schema}.fact WHERE name = 'fleet file'")
    second = cluster.add()
    assert second.list_all("/v1/vms") == []
    first.kill()
    assert cluster.leader([second]) is second
    for _ in range(LONGEST_WAIT_SECONDS * 10):
        if names := [vm["name"] for vm in second.list_all("/v1/vms")]:
            break
        threading.Event().wait(0.1)
    assert names == sorted(ADDRESSES)
