"""The database loses commits that nodes and clients have seen: a restored backup, or a standby that has not all."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from cluster import ADDRESSES, Cluster, NodeProcess
from postgresql import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Seen:
    """What clients have seen: no ETag may stand for two documents."""

    def __init__(self) -> None:
        self._documents: dict[tuple[str, str], bytes] = {}
        self._tags: dict[str, str] = {}
        self.rows: dict[int, str] = {}

    def poll(self, *nodes: NodeProcess) -> None:
        """Poll as all VMs. A VM that sends its last ETag gets a document or a 304 that is right."""
        for node in nodes:
            for vm in ADDRESSES:
                whole = node.poll(vm)
                tag = whole.headers["etag"]
                assert self._documents.setdefault((vm, tag), whole.body) == whole.body, "two documents, one ETag"
        for node in nodes:
            for vm, sent in self._tags.items():
                found = node.poll(vm, sent)
                if found.status == 304:
                    assert self._documents[vm, sent] == node.poll(vm).body, "304 for a new document"
        self._tags = {vm: nodes[0].poll(vm).headers["etag"] for vm in ADDRESSES}

    def read(self, node: NodeProcess) -> list[str]:
        """Read history. Returns the kinds of the new rows."""
        found = []
        for row in node.list_all("/v1/history"):
            text = str(row)
            if row["sequence"] not in self.rows:
                found.append(row["kind"])
            assert self.rows.setdefault(row["sequence"], text) == text, "two rows, one number"
        return found


@pytest.fixture
def database(postgresql: PostgresServer, tmp_path: Path) -> Iterator[tuple[PostgresServer, Cluster]]:
    """A database that the test can replace. `postgresql` skips the test if there is no PostgreSQL."""
    server = PostgresServer(postgresql.version).start()
    cluster = Cluster(tmp_path, server, "forewarn")
    yield server, cluster
    cluster.close()
    server.close()


def change(node: NodeProcess, *vms: str) -> None:
    for vm in vms:
        node.request_operation("restart", vm)


def until_all_have_loaded(cluster: Cluster, seen: Seen, *nodes: NodeProcess) -> None:
    """Wait until the nodes have the same commits, which include a new one."""
    cluster.leader()
    change(cluster.leader(), "batch-0")
    cluster.until_equal()
    seen.poll(*nodes)


def test_a_backup_that_was_restored_while_no_node_ran(database: tuple[PostgresServer, Cluster]) -> None:
    server, cluster = database
    node, seen = cluster.add(), Seen()
    seen.poll(node)
    backup = server.back_up()
    change(node, "web-0", "db-0")
    seen.poll(node)
    seen.read(node)
    newest = max(seen.rows)
    node.stop()
    server.restore(backup)
    node.up()
    seen.poll(node)
    change(node, "web-1", "db-0")
    seen.poll(node)
    assert "restored" in seen.read(node)
    assert max(seen.rows) > newest + 1_000_000 - 100
    assert "database_replaced" in node.output
    node.stop()
    node.up()
    assert "restored" not in seen.read(node), "once is enough"


def test_files_of_the_database_that_were_put_back_while_no_node_ran(database: tuple[PostgresServer, Cluster]) -> None:
    """A snapshot of a disk: the database itself cannot know."""
    server, cluster = database
    node, seen = cluster.add(), Seen()
    seen.poll(node)
    node.stop()
    server.stop()
    server.keep_files()
    server.start()
    node.up()
    change(node, "web-0", "db-0")
    seen.poll(node)
    seen.read(node)
    node.stop()
    server.stop()
    server.put_files_back()
    server.start()
    node.up()
    seen.poll(node)
    change(node, "web-1", "db-0")
    seen.poll(node)
    assert "changes-lost" in seen.read(node)


@pytest.mark.parametrize("way", ["backup", "files"])
def test_a_node_that_hangs_while_a_backup_is_restored_and_another_node_writes_past_its_position(
    database: tuple[PostgresServer, Cluster], way: str
) -> None:
    server, cluster = database
    hangs, writes, seen = cluster.add(), cluster.add(), Seen()
    seen.poll(hangs, writes)
    cluster.until_equal()
    if way == "files":
        server.stop()
        server.keep_files()
        server.start()
        cluster.leader()
    backup = server.back_up()
    change(cluster.leader(), "web-0", "db-0")
    cluster.until_equal()
    seen.poll(hangs, writes)
    seen.read(writes)
    hangs.pause()
    writes.kill()
    if way == "files":
        server.stop(signal.SIGQUIT)
        server.put_files_back()
        server.start()
    else:
        server.restore(backup)
    writes.up()
    cluster.leader([writes])
    for _ in range(5):
        change(writes, "web-1")
        (operation,) = writes.list_all("/v1/operations")
        writes.control("POST", f"/v1/operations/{operation['id']}/cancel", {})
    seen.poll(writes)
    hangs.resume()
    until_all_have_loaded(cluster, seen, hangs, writes)
    assert {"restored", "changes-lost"} & {*seen.read(hangs), *seen.read(writes)}


@pytest.mark.parametrize("count", [1, 3])
def test_a_standby_takes_over_that_has_not_the_last_commits(
    database: tuple[PostgresServer, Cluster], count: int
) -> None:
    server, cluster = database
    nodes, seen = [cluster.add() for _ in range(count)], Seen()
    seen.poll(*nodes)
    standby = server.make_standby().start()
    try:
        server.wait_for_standby()
        cluster.until_equal()
        seen.poll(*nodes)
        standby.stop()
        change(nodes[0], "web-0", "db-0", "web-1")
        cluster.until_equal()
        seen.poll(*nodes)
        seen.read(nodes[0])
        before = nodes[0].own_row()["position"]
        server.stop(signal.SIGQUIT)
        standby.start()
        standby.promote()
        for node in nodes:
            node.relay.target = standby.port
        for node in nodes:
            node.until_output("database_behind" if count == 1 else "state_reloaded")
        until_all_have_loaded(cluster, seen, *nodes)
        assert nodes[0].own_row()["position"] > before + 1_000_000 - 100
        assert "changes-lost" in seen.read(nodes[0])
        assert any("database_behind" in node.output for node in nodes)
        for node in nodes:
            assert node.control("GET", "/readyz").status == 200
    finally:
        cluster.close()
        cluster.nodes.clear()
        standby.close()


def test_a_restore_that_an_operator_reports(database: tuple[PostgresServer, Cluster]) -> None:
    server, cluster = database
    nodes, seen = [cluster.add(), cluster.add()], Seen()
    seen.poll(*nodes)
    seen.read(nodes[0])
    command = [*NodeProcess.command, "database", "restored", "--database"]
    said = subprocess.run([*command, server.url], capture_output=True, text=True, check=True).stdout
    place = f"127.0.0.1:{server.port}/postgres"
    assert said == f"Reported that the schema forewarn of {place} was restored. The node that leads skips numbers.\n"
    for node in nodes:
        node.until_output("state_reloaded" if node is nodes[1] else "database_replaced")
    until_all_have_loaded(cluster, seen, *nodes)
    assert seen.read(nodes[1])[0] == "restored"
    wrong = subprocess.run([*command, server.url, "--schema", "none"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, "no data of Forewarn in the schema none" in wrong.stderr) == (3, True)
