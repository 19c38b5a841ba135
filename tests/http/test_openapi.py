"""The OpenAPI description of the control API is current, is served, and matches the service.

schemathesis sends valid and invalid requests to the running service. There must be no 5xx and no undescribed response,
and invalid requests must be rejected.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from depth import amount

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import Service, ServiceProcess

ROOT = Path(__file__).parents[2]
WRITTEN = ROOT / "docs" / "openapi.json"
SCHEMATHESIS = str(Path(sys.executable).with_name("schemathesis"))
FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[group]]
name = "pool"
kind = "scale-set"
eviction_policy = "delete"
[[host]]
name = "host-a"
[[host]]
name = "host-b"
[[vm]]
name = "web-0"
group = "web"
host = "host-a"
address = "127.0.0.1"
[[vm]]
name = "web-1"
group = "web"
host = "host-b"
update_domain = 1
[[vm]]
name = "pool_0"
group = "pool"
host = "host-a"
priority = "spot"
address = "127.0.0.2"
"""
# Valid data that is refused for what it means (a notice that is too short) is no fault of the description; and what
# is narrowed to this fleet's names does not forbid others. A request repeated by its key is answered as it was the
# first time, also where what it made has been deleted since.
NOT_CHECKED = {
    "as it is": "positive_data_acceptance,ensure_resource_availability",
    "for this fleet": "positive_data_acceptance,negative_data_rejection,ensure_resource_availability",
}
REJECTED = [400, 401, 403, 404, 408, 409, 413, 415, 421, 429, 431, 503]
EXAMPLES = amount(15, 2)
NOT_FOR_FUZZING = ("/v1/feed",)
"""What never ends by itself cannot be read to its end."""
LENGTHS = ("notice", "duration", "by", "pause", "for", "delay")


def test_the_checked_in_description_is_current() -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "script" / "openapi"), "--print"], capture_output=True, timeout=60, check=True
    )
    assert WRITTEN.read_bytes() == made.stdout, "run: .venv/bin/python script/openapi"


def test_it_is_served_as_it_is_checked_in(forewarn: Service) -> None:
    assert forewarn.get_json("/v1/openapi.json") == json.loads(WRITTEN.read_text())


def narrowed() -> dict[str, Any]:
    """The description for this very fleet: with its names, requests get further than to "there is no such VM"."""
    described: dict[str, Any] = json.loads(WRITTEN.read_text())
    for path, item in described["paths"].items():
        noun = path.split("/")[2] if path.count("/") > 2 else ""
        names = {"vms": ["web-0", "web-1", "pool_0"], "hosts": ["host-a", "host-b"], "groups": ["web", "pool"]}.get(
            noun
        )
        for operation in item.values():
            for parameter in operation["parameters"]:
                if parameter["in"] == "path" and names:
                    parameter["schema"] = {"enum": names}
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            members = body.get("properties", {})
            for name, member in members.items():
                if name == "vms":
                    member["items"] = {"enum": ["web-0", "web-1", "pool_0"]}
                elif name == "vm":
                    members[name] = {"enum": ["web-0", "web-1", None]}
                elif name == "host":
                    members[name] = {"enum": ["host-a", "host-b"]}
                elif name == "hosts":
                    member["items"] = {"enum": ["host-a", "host-*", "*"]}
                elif name == "url":
                    members[name] = {"enum": ["http://127.0.0.1:9/hook"]}  # nothing leaves this machine
                elif name in ("groups", "kinds"):
                    member["items"] = {"enum": ["web", "pool"] if name == "groups" else ["scheduled", "started"]}
                elif "length of time" in member.get("description", "") or name in LENGTHS:
                    members[name] = {"enum": ["1s", "9s", "15m", "2h", "7d"]}
                elif name in ("until", "postpone_until", "expires"):
                    members[name] = {"enum": ["2h", "8d"]}
    return described


@pytest.mark.parametrize("form", [pytest.param("as it is", marks=pytest.mark.deep), "for this fleet"])
def test_no_response_is_a_server_error_or_undescribed(
    form: str, make_service: Callable[..., ServiceProcess], tmp_path: Path
) -> None:
    targets = ("--webhook-private-networks", "127.0.0.1/32")
    service = make_service(
        "--allow-faults", "--clock", "virtual", "--inactivity-timeout", "3650d", *targets, fleet=FLEET
    )
    service.document()  # so that web has events enabled, and its events wait
    described = json.loads(WRITTEN.read_text()) if form == "as it is" else narrowed()
    # It is text to schemathesis, which does not know how to write TOML.
    for method in ("put", "patch"):
        content = described["paths"]["/v1/fleet"][method]["requestBody"]["content"]
        content["text/plain"] = content.pop("application/toml")
    for path in NOT_FOR_FUZZING:
        described["paths"].pop(path, None)
    (tmp_path / "described.json").write_text(json.dumps(described))
    (tmp_path / "schemathesis.toml").write_text(f"[checks.negative_data_rejection]\nexpected-statuses = {REJECTED}\n")
    host, port = service.control_address
    fuzzer = service.control("POST", "/v1/tokens", {"name": "fuzzer", "role": "admin"}).json()["token"]
    run = subprocess.run(
        [
            *(SCHEMATHESIS, "run", str(tmp_path / "described.json"), "--url", f"http://{host}:{port}"),
            *("-H", f"Authorization: Bearer {fuzzer}", "--checks", "all", "--exclude-checks", NOT_CHECKED[form]),
            *("--max-examples", str(EXAMPLES), "--continue-on-failure", "--no-color", "--generation-deterministic"),
        ],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout[-15_000:]
    assert " passed" in run.stdout
    assert service.control("GET", "/readyz", token="").json() == {"status": "ready", "problems": []}
    assert service.stop() == 0
    assert "Traceback" not in service.output
