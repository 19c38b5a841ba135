"""Tokens: the first one, creating and revoking others, and their use from another machine."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from command_line import run_command
from forewarn.control.server import Certificate

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import Service, ServiceProcess
    from forewarn.testing.client import ServiceClient

    MakeService = Callable[..., ServiceProcess]

FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
name = "web-0"
group = "web"
address = "127.0.0.1"
"""

pytestmark = pytest.mark.forewarn(fleet=FLEET)


def create(service: ServiceClient, token: str | None = None, **fields: Any) -> Any:
    return service.control("POST", "/v1/tokens", fields, token)


def opens(service: ServiceClient, token: str) -> bool:
    status = service.control("GET", "/v1/clock", token=token).status
    assert status in (200, 401)
    return status == 200


def names(service: ServiceClient) -> list[str]:
    return [token["name"] for token in service.list_all("/v1/tokens")]


def test_the_first_start_writes_an_admin_token_that_only_its_owner_can_read(make_service: MakeService) -> None:
    service = make_service(fleet=FLEET)
    path = Path(service.data) / "admin-token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = service.token
    assert names(service) == ["admin"]
    service.kill()
    service.start()
    assert service.token == first
    assert opens(service, first)


def test_only_hashes_are_stored(make_service: MakeService) -> None:
    service = make_service(fleet=FLEET)
    secret = create(service, name="ci", role="operator").json()["token"]
    assert secret.startswith("fw_")
    assert "token" not in service.list_all("/v1/tokens")[0]
    service.stop()
    files = [path for path in Path(service.data).iterdir() if path.name != "admin-token"]
    assert any(b"operator" in path.read_bytes() for path in files), "the token's row is in one of them"
    assert not [path.name for path in files if secret.encode() in path.read_bytes()]
    admin = (Path(service.data) / "admin-token").read_bytes().strip()
    assert not [path.name for path in files if admin in path.read_bytes()]


def test_a_lost_first_token_is_replaced_at_the_next_start(make_service: MakeService) -> None:
    service = make_service(fleet=FLEET)
    lost, path = service.token, Path(service.data) / "admin-token"
    other = create(service, name="ci", role="viewer").json()["token"]
    path.unlink()
    said = run_command(service, "vm", "list")
    assert (said.returncode, "admin-token does not exist" in said.stderr) == (5, True)
    service.stop()
    service.start()
    assert service.token != lost
    assert [opens(service, token) for token in (service.token, lost, other)] == [True, False, True]
    assert names(service) == ["admin", "ci"]


def test_a_revoked_first_token_stays_revoked_while_another_admin_exists(make_service: MakeService) -> None:
    service = make_service(fleet=FLEET)
    first = service.token
    second = create(service, name="root", role="admin").json()["token"]
    assert service.control("DELETE", "/v1/tokens/admin").status == 200
    assert not opens(service, first)
    service.stop()
    service.start()
    assert [opens(service, token) for token in (first, second)] == [False, True]
    last = service.control("DELETE", "/v1/tokens/root", token=second)
    assert (last.status, "last admin token" in last.json()["detail"]) == (409, True)


def test_the_name_of_a_revoked_first_token_can_be_used_again(make_service: MakeService) -> None:
    service = make_service(fleet=FLEET)
    second = create(service, name="root", role="admin").json()["token"]
    service.control("DELETE", "/v1/tokens/admin")
    other = create(service, second, name="admin", role="viewer").json()["token"]
    service.stop()
    service.start()
    assert opens(service, other)
    listed = service.control("GET", "/v1/tokens", token=second).json()["tokens"]
    assert {token["name"]: token["role"] for token in listed} == {"admin": "viewer", "root": "admin"}


def test_an_admin_that_will_expire_is_not_enough_to_revoke_the_last(forewarn: Service) -> None:
    brief = create(forewarn, name="brief", role="admin", expires="1h").json()
    assert forewarn.control("DELETE", "/v1/tokens/admin").status == 409
    assert opens(forewarn, brief["token"])
    forewarn.advance("59m59s")
    assert opens(forewarn, brief["token"])
    forewarn.advance("1s")
    assert not opens(forewarn, brief["token"])
    again = create(forewarn, name="brief", role="viewer")
    assert again.status == 201, "the name of a token that has expired is free"


def test_a_revoked_token_is_rejected_at_once_and_after_a_kill(make_service: MakeService) -> None:
    service = make_service(fleet=FLEET)
    secret = create(service, name="ci", role="operator").json()["token"]
    assert opens(service, secret)
    assert service.control("DELETE", "/v1/tokens/ci").json()["name"] == "ci"
    assert not opens(service, secret)
    service.kill()
    service.start()
    assert not opens(service, secret)
    assert create(service, name="ci", role="viewer").status == 201


def test_the_owner_of_a_token_learns_whether_it_expired_or_was_revoked(make_service: MakeService) -> None:
    service = make_service("--clock", "virtual")
    tokens = {
        name: service.control("POST", "/v1/tokens", {"name": name, "role": "viewer", **more}).json()["token"]
        for name, more in (("old", {"expires": "1h"}), ("gone", {}))
    }
    service.control("DELETE", "/v1/tokens/gone")
    service.advance(hours=2)
    service.kill()
    service.start("--clock", "virtual")
    service.advance(hours=2)  # a virtual clock starts at the system time

    def rejection(token: str) -> tuple[int, str, str]:
        answer = service.control("GET", "/v1/vms", token=token)
        return answer.status, answer.json()["type"].rpartition(":")[2], answer.json()["detail"]

    status, kind, detail = rejection(tokens["old"])
    assert (status, kind) == (401, "TokenExpired")
    assert "The token of 'old' expired on 20" in detail
    status, kind, detail = rejection(tokens["gone"])
    assert (status, kind) == (401, "TokenRevoked")
    assert "The token of 'gone' was revoked on 20" in detail
    # Everybody else learns nothing, also with a part of a token.
    for other in ("fw_invented", tokens["gone"][:-1]):
        status, kind, detail = rejection(other)
        assert (status, kind) == (401, "UnknownToken")
        assert "gone" not in detail
    assert service.request("GET", "/v1/vms", address=service.control_address).json()["type"].endswith(":BadToken")


def test_history_records_the_creator_of_a_token_and_its_actions(forewarn: Service) -> None:
    secret = create(forewarn, name="ci", role="operator").json()["token"]
    fields = forewarn.control("POST", "/v1/operations", {"cause": "restart", "vms": ["web-0"]}, secret).json()
    assert fields["operations"][0]["requested_by"] == "ci"
    forewarn.control("DELETE", "/v1/tokens/ci")
    rows = [row for row in forewarn.list_all("/v1/history") if row["kind"].startswith("token-")]
    assert [(row["kind"], row["by"], row["reason"]) for row in rows] == [
        ("token-created", "forewarn", "admin: admin"),
        ("token-created", "admin", "ci: operator"),
        ("token-revoked", "admin", "ci"),
    ]


BAD: dict[str, tuple[dict[str, Any], int, str | None, str]] = {
    "no name": ({"role": "viewer"}, 400, "/name", "is required"),
    "no role": ({"name": "x"}, 400, "/role", "is required"),
    "unknown role": ({"name": "x", "role": "vewer"}, 400, "/role", "Did you mean 'viewer'?"),
    "odd name": ({"name": "a b", "role": "viewer"}, 400, "/name", "write 1 to 64 letters"),
    "long name": ({"name": "a" * 65, "role": "viewer"}, 400, "/name", "write 1 to 64 letters"),
    "empty name": ({"name": "", "role": "viewer"}, 400, "/name", "write 1 to 64 letters"),
    "name in use": ({"name": "admin", "role": "viewer"}, 409, None, "A token named 'admin' exists"),
    "tenant of nothing": ({"name": "x", "role": "tenant"}, 400, None, "needs --group NAME"),
    "tenant of an unknown group": (
        {"name": "x", "role": "tenant", "group": "wbe"},
        404,
        "/group",
        "Did you mean 'web'?",
    ),
    "viewer of a group": ({"name": "x", "role": "viewer", "group": "web"}, 400, "/group", "only a tenant"),
    "expired": ({"name": "x", "role": "viewer", "expires": "2020-01-01"}, 400, "/expires", "this time has passed"),
    "no moment": ({"name": "x", "role": "viewer", "expires": "soon"}, 400, "/expires", "is not a time"),
    "unknown member": ({"name": "x", "role": "viewer", "grop": "web"}, 400, "/grop", "Did you mean 'group'?"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_input_is_explained_and_changes_nothing(forewarn: Service, case: str) -> None:
    fields, status, pointer, words = BAD[case]
    answer = create(forewarn, **fields)
    assert (answer.status, answer.json().get("pointer")) == (status, pointer)
    assert words in answer.json()["detail"]
    assert names(forewarn) == ["admin"]


def test_the_command_line_makes_lists_and_revokes_tokens(forewarn: Service, tmp_path: Path) -> None:
    made = run_command(forewarn, "token", "create", "ci", "--role", "operator", "--expires", "90d")
    assert (made.returncode, opens(forewarn, made.stdout.strip())) == (0, True)
    assert "cannot be shown again" in made.stderr
    file = tmp_path / "web-token"
    kept = run_command(
        forewarn, "token", "create", "web-team", "--role", "tenant", "--group", "web", "--out", str(file)
    )
    assert (kept.returncode, stat.S_IMODE(file.stat().st_mode)) == (0, 0o600)
    assert file.read_text().strip() not in kept.stdout + kept.stderr
    listed = run_command(forewarn, "token", "list").stdout
    assert "tenant of web" in listed
    assert "(in 90d)" in listed
    again = run_command(forewarn, "token", "create", "other", "--role", "viewer", "--out", str(file))
    assert (again.returncode, names(forewarn)) == (5, ["admin", "ci", "web-team"]), "what is there is not overwritten"
    unwanted = run_command(forewarn, "token", "create", "ci", "--role", "viewer", "--out", str(tmp_path / "second"))
    assert (unwanted.returncode, (tmp_path / "second").exists()) == (4, False)
    assert run_command(forewarn, "token", "revoke", "ci").returncode == 0
    unknown = run_command(forewarn, "token", "revoke", "web-taem")
    assert (unknown.returncode, "Did you mean 'web-team'?" in unknown.stderr) == (3, True)


def test_a_remote_service_is_used_with_a_token_from_a_file(make_service: MakeService, tmp_path: Path) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    service.document()
    host, port = service.control_address
    token = tmp_path / "token"
    run_command(service, "token", "create", "web-team", "--role", "tenant", "--group", "web", "--out", str(token))
    event = service.request_operation("restart", "web-0")["events"][0]["id"]
    elsewhere = {"FOREWARN_DATA": str(tmp_path / "nothing"), "FOREWARN_SERVER": f"http://{host}:{port}"}
    listed = run_command(service, "event", "list", "--token-file", str(token), **elsewhere)
    assert (listed.returncode, event[:8] in listed.stdout) == (0, True)
    approved = run_command(service, "event", "approve", event, **elsewhere, FOREWARN_TOKEN_FILE=str(token))
    assert (approved.returncode, "by web-team" in approved.stdout) == (0, True)
    refused = run_command(service, "host", "list", **elsewhere, FOREWARN_TOKEN_FILE=str(token))
    assert (refused.returncode, "The token's role is tenant" in refused.stderr) == (5, True)
    for variables, code, words in (
        ({}, 5, "Use --token-file FILE"),
        ({"FOREWARN_TOKEN_FILE": str(tmp_path / "none")}, 2, "Cannot read"),
        ({"FOREWARN_TOKEN_FILE": str(token), "FOREWARN_SERVER": "forewarn:8170"}, 2, "write it like https://"),
        ({"FOREWARN_TOKEN_FILE": str(token), "FOREWARN_SERVER": "http://127.0.0.1:1"}, 6, "No valid response"),
    ):
        said = run_command(service, "event", "list", **{**elsewhere, **variables})
        assert (said.returncode, words in said.stderr) == (code, True), said.stderr


def test_a_data_folder_that_is_typed_beats_a_server_of_the_environment(make_service: MakeService) -> None:
    one = make_service(fleet=FLEET, folder="one")
    two = make_service(fleet=FLEET.replace("web-0", "other-0"), folder="two")
    word = json.loads((Path(one.data) / "service.json").read_text())
    variables = {"FOREWARN_SERVER": word["control"], "FOREWARN_TOKEN_FILE": word["token_file"]}
    assert "web-0" in run_command(two, "vm", "list", **variables).stdout
    assert "other-0" in run_command(two, "vm", "list", "--data", two.data, **variables).stdout
    both = run_command(two, "vm", "list", "--data", two.data, "--server", word["control"])
    assert (both.returncode, "Use one of them" in both.stderr) == (2, True)


class Impostor(threading.Thread):
    """A server that is not Forewarn: it sends the same bytes to every client, and records the requests."""

    def __init__(self, said: bytes) -> None:
        super().__init__(daemon=True)
        self.got: list[bytes] = []
        self._said = said
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.start()

    def run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                self.got.append(connection.recv(65536))
                connection.sendall(self._said)


def answer_of(status: str, *headers: str, body: str = "") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", body]).encode()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "No valid response"),
        (b"", "No valid response"),
        (answer_of("200 OK", body="<html>"), "not JSON"),
        (answer_of("200 OK", body="{}"), "not from Forewarn"),
        (answer_of("200 OK", body="[]"), "not from Forewarn"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "incomplete"),
        (answer_of("502 Bad Gateway", body="<html>"), "HTTP 502, not from a control API (its default port is 8170)"),
    ],
)
def test_another_server_is_reported_as_not_forewarn(forewarn: Service, said: bytes, words: str) -> None:
    impostor = Impostor(said)
    run = run_command(forewarn, "vm", "list", FOREWARN_SERVER=impostor.url)
    assert (run.returncode, words in run.stderr, "Traceback" in run.stderr) == (6, True, False), run.stderr


def test_the_token_is_not_sent_to_a_redirect_target(forewarn: Service) -> None:
    thief = Impostor(answer_of("200 OK", body='{"vms": [], "next": null}'))
    impostor = Impostor(answer_of("302 Found", f"Location: {thief.url}/v1/vms"))
    run = run_command(forewarn, "vm", "list", FOREWARN_SERVER=impostor.url)
    assert (run.returncode, thief.url in run.stderr) == (6, True)
    assert thief.got == []


NO_ADDRESSES = ("http://[::1", "http://127.0.0.1:abc", "http://a b", "http://", "forewarn:8170", "http://x/?y")


@pytest.mark.parametrize("url", NO_ADDRESSES)
def test_an_invalid_address_is_rejected(forewarn: Service, url: str) -> None:
    run = run_command(forewarn, "vm", "list", FOREWARN_SERVER=url)
    assert (run.returncode, "write it like https://" in run.stderr) == (2, True), run.stderr


def test_an_empty_name_is_no_name(forewarn: Service) -> None:
    for words in (("vm", "show"), ("event", "show"), ("host", "show"), ("webhook", "show"), ("token", "revoke")):
        run = run_command(forewarn, *words, "")
        assert (run.returncode, "must not be empty" in run.stderr) == (2, True), run.stderr
    assert forewarn.control("GET", "/v1/vms/").status == 404


def make_certificate(
    folder: Path, name: str, key_type: trustme.KeyType = trustme.KeyType.ECDSA
) -> tuple[Path, Path, Path]:
    """A certificate with its chain, its key, and the authority to trust."""
    authority = trustme.CA()
    issued = authority.issue_cert(f"{name}.test", "127.0.0.1", key_type=key_type)
    certificate, key, root = folder / f"{name}.crt", folder / f"{name}.key", folder / f"{name}-ca.crt"
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(certificate), append=True)
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(root))
    return certificate, key, root


def test_with_a_certificate_the_api_accepts_only_tls(make_service: MakeService, tmp_path: Path) -> None:
    certificate, key, root = make_certificate(tmp_path, "forewarn")
    _, _, other = make_certificate(tmp_path, "other")
    service = make_service("--tls-certificate", str(certificate), "--tls-key", str(key), fleet=FLEET)
    word = json.loads((Path(service.data) / "service.json").read_text())
    assert word["control"].startswith("https://")
    assert run_command(service, "vm", "list").returncode == 0, "the local command line trusts the service's own file"
    elsewhere = {
        "FOREWARN_DATA": str(tmp_path / "nothing"),
        "FOREWARN_SERVER": word["control"],
        "FOREWARN_TOKEN_FILE": word["token_file"],
    }
    assert run_command(service, "vm", "list", **elsewhere, SSL_CERT_FILE=str(root)).returncode == 0
    wrong = run_command(service, "vm", "list", **elsewhere, SSL_CERT_FILE=str(other))
    assert (wrong.returncode, "certificate verify failed" in wrong.stderr) == (6, True)
    plain = run_command(
        service, "vm", "list", **{**elsewhere, "FOREWARN_SERVER": word["control"].replace("https", "http")}
    )
    assert plain.returncode == 6


def test_an_unusable_certificate_is_an_error_at_the_start(make_service: MakeService, tmp_path: Path) -> None:
    certificate, key, _ = make_certificate(tmp_path, "forewarn")
    _, other_key, _ = make_certificate(tmp_path, "other")
    for arguments in (
        ("--tls-certificate", str(tmp_path / "none")),
        ("--tls-certificate", str(certificate)),
        ("--tls-certificate", str(certificate), "--tls-key", str(other_key)),
        ("--tls-key", str(key)),
    ):
        with pytest.raises(RuntimeError, match=r"ended with 2: forewarn: .*certificate"):
            make_service(*arguments, fleet=FLEET)


@pytest.mark.parametrize("key_type", trustme.KeyType)
def test_a_renewed_certificate_is_loaded_and_an_incomplete_one_is_not(
    tmp_path: Path, key_type: trustme.KeyType
) -> None:
    certificate, key, _ = make_certificate(tmp_path, "one")
    renewed, renewed_key, root = make_certificate(tmp_path, "two", key_type)
    in_use = Certificate(str(certificate), str(key))
    trusting = ssl.create_default_context(cafile=str(root))

    def shakes_hands() -> bool:
        """Whether who trusts the second authority would speak with who has the certificate."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting.wrap_bio(to_client, to_server, server_hostname="two.test")
        server = in_use.context.wrap_bio(to_server, to_client, server_side=True)
        for _ in range(2):
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                except ssl.SSLError:
                    return False
        return True

    assert not shakes_hands()
    certificate.write_bytes(renewed.read_bytes())  # its key is still to come
    in_use.reload_if_changed()
    assert not shakes_hands()
    key.write_bytes(renewed_key.read_bytes())
    in_use.reload_if_changed()
    assert shakes_hands()
