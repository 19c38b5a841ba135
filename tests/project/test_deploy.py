"""The files in deploy/ are valid, hardened, and agree with each other. acceptance/test_container.py runs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from forewarn.agent.config_file import read_config
from forewarn.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import ServiceProcess

DEPLOY = Path(__file__).parents[2] / "deploy"
EXAMPLES = DEPLOY.parent / "examples" / "agent"
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "agent.yaml").read_text()))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
NODE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose-node.yaml").read_text())
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()


def manifest(kind: str) -> dict[str, Any]:
    return next(each for each in MANIFESTS if each["kind"] == kind)


POD: dict[str, Any] = manifest("DaemonSet")["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
def test_kubernetes_accepts_the_manifests(version: str) -> None:
    for each in MANIFESTS:
        kubernetes_validate.validate(each, version, strict=True)
    wrong = json.loads(json.dumps(manifest("DaemonSet")))
    wrong["spec"]["template"]["spec"]["hostNetworks"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_names_in_the_manifests_agree() -> None:
    account, role, binding = manifest("ServiceAccount"), manifest("ClusterRole"), manifest("ClusterRoleBinding")
    assert POD["serviceAccountName"] == account["metadata"]["name"] == binding["subjects"][0]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert {each["configMap"]["name"] for each in POD["volumes"] if "configMap" in each} == {
        manifest("ConfigMap")["metadata"]["name"]
    }
    namespaced = [each for each in MANIFESTS if not each["kind"].startswith(("Namespace", "Cluster"))]
    assert {each["metadata"]["namespace"] for each in namespaced} == {manifest("Namespace")["metadata"]["name"]}


def test_the_agent_on_a_node_has_no_more_rights_than_it_needs() -> None:
    for container in (*POD["initContainers"], *POD["containers"]):
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]
    assert "add" not in POD["containers"][0]["securityContext"]["capabilities"]
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert f"USER {POD['securityContext']['runAsUser']}:" in CONTAINERFILE
    assert "delete" not in json.dumps(manifest("ClusterRole")["rules"])


def test_the_policy_on_a_node_has_the_rules_of_the_example(tmp_path: Path) -> None:
    """The program of its handler is in the image, and needs no kubeconfig."""
    file = tmp_path / "agent.toml"
    file.write_text(manifest("ConfigMap")["data"]["agent.toml"])
    ours, example = read_config(file), read_config(EXAMPLES / "kubernetes.toml")
    assert ours.rules == example.rules
    assert ours.handlers.keys() == example.handlers.keys()
    program = ours.handlers["drain"].table["prepare"][0]
    assert f"kubernetes-drain.sh /usr/local/bin/{program}\n" in (DEPLOY / "kubernetes" / "Containerfile").read_text()


def run_health_check(data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, DEPLOY / "healthcheck.py"],
        env={"FOREWARN_DATA": str(data)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_health_check_needs_the_service_and_no_token(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service()
    data = Path(service.data)
    (data / "admin-token").unlink()
    done = run_health_check(data)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    service.kill()
    done = run_health_check(data)
    assert (done.stderr.count("\n"), done.returncode) == (1, 1)
    assert "does not respond" in done.stderr


def test_the_compose_file_agrees_with_the_image() -> None:
    service = COMPOSE["services"]["forewarn"]
    check = re.search(r"HEALTHCHECK --interval=(\S+) --timeout=(\S+) --start-period=(\S+) CMD (.*)", CONTAINERFILE)
    assert check is not None
    assert service["healthcheck"] == {
        "test": ["CMD", *json.loads(check[4])],
        "interval": check[1],
        "timeout": check[2],
        "start_period": check[3],
    }
    data = re.search(r"VOLUME (\S+)", CONTAINERFILE)
    assert data is not None
    assert f"FOREWARN_DATA={data[1]}\n" in CONTAINERFILE
    assert service["volumes"][0].partition(":")[::2] == (*COMPOSE["volumes"], data[1])
    node = NODE["services"]["forewarn"]
    names = {*service["environment"], *node["environment"]} - {"PGPASSFILE"}
    assert {name.removeprefix("FOREWARN_").lower() for name in names} <= SETTINGS.keys()
    assert node["volumes"][0].split(":")[-2:] == [node["environment"]["PGPASSFILE"], "ro"]
    assert ".[postgresql]" in CONTAINERFILE
    for name in ("metadata", "control"):
        assert (
            service["environment"][f"FOREWARN_{name.upper()}"]
            == f"${{FOREWARN_{name.upper()}:-{SETTINGS[name].default}}}"
        )
