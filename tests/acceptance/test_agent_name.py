"""A VM name that is given to the agent, but that the endpoint does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent.mock_server import MockServer
from forewarn.agent.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.agent_process import AgentProcess
    from forewarn.testing import Service

FLEET = '[[group]]\nname = "web"\nkind = "scale-set"\n[[vm]]\ngroup = "web"\ncount = 12\n'
POLICY = '[[rule]]\napprove = "self"\n'

pytestmark = pytest.mark.forewarn(fleet=FLEET)


def warnings(agent: AgentProcess) -> list[tuple[Any, Any]]:
    return [(line["vm"], line["endpoint_vm"]) for line in agent.lines if line.get("event") == "vm_name_unknown"]


def environment(service: Service, name: str) -> dict[str, str]:
    return {**service.vm("web_10").environment, "FOREWARN_VM_NAME": name}


def test_it_warns_once_and_continues(forewarn: Service, new_agent: Callable[..., AgentProcess]) -> None:
    agent = new_agent(POLICY, environment(forewarn, "web_99")).start()
    agent.until(lambda: warnings(agent) == [("web_99", "web_10")], "the warning")
    for _ in range(3):
        forewarn.advance(seen_by=forewarn.vm("web_10"))
    forewarn.vm("web_10").restart()
    forewarn.advance(seen_by=forewarn.vm("web_10"))
    assert agent.status()["vm"] == "web_99"
    assert agent.stop() == 0
    assert warnings(agent) == [("web_99", "web_10")]
    assert [line["level"] for line in agent.lines if line.get("event") == "vm_name_unknown"] == ["warning"]


@pytest.mark.parametrize("name", ["web_10", "WEB_10"])
def test_it_does_not_warn_of_a_name_that_the_endpoint_knows(
    forewarn: Service, new_agent: Callable[..., AgentProcess], name: str
) -> None:
    agent = new_agent(POLICY, environment(forewarn, name)).start()
    agent.until_logged("endpoint_connected")
    for _ in range(3):  # the request for the name is before the second poll
        forewarn.advance(seen_by=forewarn.vm("web_10"))
    assert agent.stop() == 0
    assert warnings(agent) == []


def test_it_does_not_warn_of_a_name_in_resources(forewarn: Service, new_agent: Callable[..., AgentProcess]) -> None:
    """For example behind a proxy: the endpoint takes the agent for another VM of the scope, but lists its events."""
    forewarn.vm("web_10").poll()
    forewarn.vm("web_3").restart()
    agent = new_agent(POLICY, environment(forewarn, "web_3")).start()
    agent.until_logged("event_approved")
    forewarn.advance(seen_by=forewarn.vm("web_10"))
    assert agent.stop() == 0
    assert warnings(agent) == []


def test_it_does_not_warn_if_the_endpoint_has_no_names(new_agent: Callable[..., AgentProcess]) -> None:
    with MockServer() as endpoint:
        agent = new_agent(POLICY, {**endpoint.environment, "FOREWARN_VM_NAME": "other"}).start()
        agent.until_logged("endpoint_connected")
        endpoint.schedule("other")
        agent.until_logged("event_approved")
        assert agent.stop() == 0
    assert warnings(agent) == []


@pytest.mark.forewarn(fleet=FLEET, enable_groups=False)
def test_check_here_compares_the_name(
    forewarn: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("FOREWARN_ENDPOINT", "FOREWARN_VM_NAME"):
        monkeypatch.delenv(variable, raising=False)
    endpoint = forewarn.vm("web_10").environment["FOREWARN_ENDPOINT"]
    policy = tmp_path / "agent.toml"
    policy.write_text(f'[agent]\nvm_name = "web_99"\nendpoint = "{endpoint}"\n{POLICY}')

    def check(*options: str) -> list[str]:
        assert main(["check", str(policy), *options]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]

    remedy = "Correct the name, or remove it: the agent then uses the endpoint's name."
    wrong = f"warning: the VM name is 'web_99' (from {policy}), but the endpoint's is 'web_10'. {remedy}"
    assert check("--here") == [wrong]
    assert check() == []
    assert check("--here", "--vm-name", "Web_10") == []
    assert check("--here", "--vm-name", "web_1") == [
        wrong.replace("web_99", "web_1").replace(f"from {policy}", "from --vm-name")
    ]
    assert not forewarn.get_json("/v1/vms/web_10")["events_enabled"]
    assert main(["check", str(policy), "--here", "--strict"]) == 2
    capsys.readouterr()
    (unreachable,) = check("--here", "--endpoint", "http://127.0.0.1:1")
    assert unreachable.startswith("warning: cannot compare the VM name 'web_99' with the endpoint's: Cannot connect")


def test_check_here_tries_the_endpoint_also_without_a_vm_name(
    forewarn: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOREWARN_VM_NAME", raising=False)
    policy = tmp_path / "agent.toml"
    policy.write_text(POLICY)
    assert main(["check", str(policy), "--here", "--strict", "--endpoint", forewarn.metadata_url]) == 0
    assert main(["check", str(policy), "--here", "--strict", "--endpoint", "http://127.0.0.1:1"]) == 2
    assert "warning: Cannot connect to the endpoint http://127.0.0.1:1" in capsys.readouterr().out
