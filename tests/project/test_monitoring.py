"""deploy/: the alert rules work, and every metric in the rules and in the Grafana dashboard exists."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

from doc_pages import ROOT
from forewarn.agent.metrics import METRICS
from programs import need

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus-rules.yaml"
DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text())
_METRIC = re.compile(r"\bforewarn_[a-z_]+")


def promtool(*arguments: str) -> None:
    need("promtool")
    result = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, cwd=DEPLOY)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_alert_rules_are_valid() -> None:
    promtool("check", "rules", RULES.name)


def test_the_alert_rules_fire_when_they_should() -> None:
    promtool("test", "rules", "prometheus-rules.test.yaml")


def known_metrics() -> set[str]:
    """The metrics of the service, from its generated reference, and those of the agent."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    service = set(re.findall(r"^\| `(forewarn_[a-z_]+)` \|", page, re.MULTILINE))
    return service | {f"forewarn_agent_{name}" for name in METRICS}


def unknown(text: str) -> set[str]:
    used = {re.sub(r"_(bucket|sum|count)$", "", name) for name in _METRIC.findall(text)}
    assert used
    return used - known_metrics()


def test_the_rules_use_metrics_that_exist() -> None:
    assert unknown(RULES.read_text()) == set()


def queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]


def test_the_dashboard_uses_metrics_that_exist_and_shows_all_of_the_service() -> None:
    text = "\n".join(queries())
    assert unknown(text) == set()
    shown = {re.sub(r"_bucket$", "", name) for name in _METRIC.findall(text)}
    missing = {name for name in known_metrics() - shown if not name.startswith("forewarn_agent_")}
    assert missing <= NOT_SHOWN, missing - NOT_SHOWN


NOT_SHOWN = {"forewarn_active_faults", "forewarn_approvals_total", "forewarn_fault_hits_total"}
"""Of injected faults, and a count that the transitions contain."""


def test_prometheus_accepts_the_queries_of_the_dashboard(tmp_path: Any) -> None:
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for number, query in enumerate(queries())
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    promtool("check", "rules", str(file))


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], int] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["id"]) == panel["id"]
