"""History as a file: all matching rows, as CSV or JSON."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import pytest

from forewarn.control.history import DOWNLOAD_ROWS
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

DOWNLOADED = DOWNLOAD_ROWS // 3 + 1
FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[host]]
name = "rack-a"
[[vm]]
name = "web-0"
group = "web"
host = "rack-a"
address = "127.0.0.1"
[[vm]]
name = "other"
host = "rack-a"
"""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(FLEET) as running:
        for _ in range(DOWNLOADED):  # three rows each, so that there are two pages
            event = running.request_operation("restart", "web-0")[0]
            running.control("POST", f"/v1/events/{event.id}/cancel", {})
        running.request_operation("host-update", host="rack-a")
        yield running


def csv_rows(service: Service, query: str = "", token: str | None = None) -> list[dict[str, str]]:
    response = service.control("GET", f"/v1/history?format=csv{query}", token=token)
    assert response.status == 200
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(response.body.decode(), newline="")))


def test_the_files_have_all_rows_in_order(service: Service) -> None:
    rows = service.list_all("/v1/history")
    assert len(rows) > DOWNLOAD_ROWS
    response = service.control("GET", "/v1/history?format=json")
    assert response.json() == rows
    disposition = response.headers["content-disposition"]
    assert disposition.startswith('attachment; filename="forewarn-history-')
    assert disposition.endswith('.json"')
    found = csv_rows(service)
    assert [int(row["sequence"]) for row in found] == [row["sequence"] for row in rows]
    scheduled = next(row for row in found if row["kind"] == "scheduled")
    assert (scheduled["vms"], scheduled["group"], scheduled["status"]) == ("web-0", "web", "scheduled")
    newest = service.control("GET", "/v1/history?format=json&order=newest").json()
    assert newest == rows[::-1]


def test_the_filters_apply(service: Service) -> None:
    rows = service.list_all("/v1/history?kind=cancelled&vm=web-0")
    assert service.control("GET", "/v1/history?format=json&kind=cancelled&vm=web-0").json() == rows
    assert service.control("GET", "/v1/history?format=json&kind=restored").json() == []
    assert csv_rows(service, "&kind=restored") == []
    for query in ("limit=5", "cursor=MQ"):
        response = service.control("GET", f"/v1/history?format=csv&{query}")
        assert (response.status, response.json()["parameter"]) == (400, query.partition("=")[0])
    response = service.control("GET", "/v1/history?format=xml")
    assert (response.status, response.json()["allowed"]) == (400, ["csv", "json"])


def test_a_tenant_gets_the_rows_of_its_group_without_hosts(service: Service) -> None:
    body = {"name": "web-team", "role": "tenant", "group": "web"}
    token = service.control("POST", "/v1/tokens", body).json()["token"]
    for form in ("csv", "json"):
        response = service.control("GET", f"/v1/history?format={form}", token=token)
        assert response.status == 200
        for word in (b"rack-a", b"other", b"token-created"):
            assert word not in response.body
    assert {row["group"] for row in csv_rows(service, token=token)} == {"web"}
    assert service.control("GET", "/v1/history?format=csv&group=other", token=token).status == 404


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "='a'!A1"])
def test_a_spreadsheet_sees_no_formula(text: str) -> None:
    with Service(FLEET) as service:
        events = service.request_operation("host-update", host="rack-a", description=text)
        operation = service.get_json(f"/v1/events/{events[0].id}")["operation"]
        service.advance("16m")
        service.control("POST", f"/v1/operations/{operation}/failed", {"reason": text})
        reasons = [row["reason"] for row in csv_rows(service)]
    assert text not in reasons
    assert f"'{text}" in reasons


def test_the_command_prints_the_file(service: Service) -> None:
    result = service.cli("history", "--kind", "cancelled", "--csv")
    assert result.returncode == 0
    found: list[Any] = list(csv.DictReader(io.StringIO(result.stdout, newline="")))
    assert len(found) == DOWNLOADED
    assert service.cli("history", "--csv", "--last", "5").returncode == 2
    assert service.cli("history", "--csv", "--json").returncode == 2
