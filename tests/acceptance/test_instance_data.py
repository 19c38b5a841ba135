"""User data, custom data and public keys: who can read them, when they change, and that they survive a restart."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from forewarn.testing.client import expect_status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.testing import ServiceProcess

OLDEST, NEWEST = {"user": "2021-01-01", "custom": "2019-02-01"}, "2025-04-07"
KEY = "ssh-ed25519 AAAAC3Nz ops@example.org"
FLEET = """
[[group]]
name = "web"
kind = "availability-set"

[[vm]]
name = "web-0"
group = "web"
address = "127.0.0.1"
os = "windows"
location = "westeurope"
user_data = "{user}"
custom_data = "{custom}"
public_keys = ["ssh-ed25519 AAAAC3Nz ops@example.org"]

[[vm]]
name = "web-1"
group = "web"
address = "127.0.0.2"

[[vm]]
name = "other"
address = "127.0.0.3"
"""


def value(service: ServiceProcess, path: str, version: str, source: str = "127.0.0.1") -> str:
    target = f"/metadata/instance/compute/{path}?api-version={version}&format=text"
    return expect_status(service.request(target=target, source=source), 200).body.decode()


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def applied(service: ServiceProcess, folder: Path, **texts: str) -> Any:
    file = folder / "changed.toml"
    file.write_text(FLEET.format(**texts))
    return service.cli("fleet", "apply", str(file))


def test_only_the_vm_itself_reads_its_data(make_service: Callable[..., ServiceProcess], tmp_path: Path) -> None:
    service = make_service(fleet=FLEET.format(user="SECRET-U", custom="SECRET-C"))
    for kind, text in (("user", "SECRET-U"), ("custom", "SECRET-C")):
        for version in (OLDEST[kind], NEWEST):
            assert value(service, f"{kind}Data", version) == encoded(text)
            # Neither another VM of the group nor another group.
            assert value(service, f"{kind}Data", version, "127.0.0.2") == ""
            assert value(service, f"{kind}Data", version, "127.0.0.3") == ""
            outside = service.request(target=f"/metadata/instance?api-version={version}", source="127.0.0.9")
            assert outside.status == 404
    assert value(service, "osType", "2017-04-02") == "Windows"
    assert value(service, "location", "2017-04-02") == "westeurope"
    assert value(service, "publicKeys/0/keyData", "2018-04-02") == value(service, "publicKeys/0/keyData", NEWEST) == KEY

    shown = service.get_json("/v1/vms/web-0")
    assert (shown["os"], shown["location"], shown["public_keys"]) == ("windows", "westeurope", [KEY])
    assert (shown["has_user_data"], shown["has_custom_data"]) == (True, True)
    other = service.get_json("/v1/vms/other")
    assert (other["os"], other["location"], other["public_keys"]) == ("linux", "local", [])
    assert (other["has_user_data"], other["has_custom_data"]) == (False, False)

    rejected = applied(service, tmp_path, user="SECRET-U" * 9000, custom="SECRET-C")
    assert rejected.returncode != 0
    assert 'vm "web-0".user_data: Has 72000 bytes in UTF-8. The maximum is 65535.' in rejected.stderr
    assert applied(service, tmp_path, user="SECRET-U2", custom="SECRET-C").returncode == 0
    for path in ("/v1/vms", "/v1/vms/web-0", "/v1/history", "/v1/groups/web", "/v1/fleet"):
        body = service.control("GET", path).body
        assert b"SECRET" not in body
        assert b64encode(b"SECRET-") not in body
    command = service.cli("vm", "show", "web-0")
    assert re.search(r"^user data +yes$", command.stdout, re.MULTILINE)
    assert "SECRET" not in command.stdout + rejected.stdout + rejected.stderr
    assert service.stop() == 0
    assert "SECRET" not in service.output


def test_data_changes_with_the_fleet_file_and_survives_a_kill(
    make_service: Callable[..., ServiceProcess], tmp_path: Path
) -> None:
    service = make_service(fleet=FLEET.format(user="one", custom="c"))
    assert value(service, "userData", NEWEST) == encoded("one")
    assert applied(service, tmp_path, user="two", custom="").returncode == 0
    assert (value(service, "userData", NEWEST), value(service, "customData", NEWEST)) == (encoded("two"), "")
    service.kill()
    service.start()
    assert (value(service, "userData", NEWEST), value(service, "customData", NEWEST)) == (encoded("two"), "")
    assert value(service, "publicKeys/0/keyData", NEWEST) == KEY
    assert value(service, "osType", NEWEST) == "Windows"
