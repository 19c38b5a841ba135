"""Sessions of the portal: signing in and out, one-time links, and requests of foreign pages."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from acceptance.feed_client import Feed
from forewarn.core.access import MAX_CHILDREN
from forewarn.system.http_client import origin_of
from forewarn.testing import Service
from forewarn.testing.client import send
from shifted_system_clock import ShiftedSystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from forewarn.testing import ServiceProcess
    from forewarn.testing.client import HTTPResponse, ServiceClient

FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
name = "web-0"
group = "web"
address = "127.0.0.1"
[[vm]]
name = "other"
address = "127.0.0.2"
"""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(FLEET) as running:
        yield running


class Browser:
    """Sends requests as a page of the portal does: with its cookie, and with the headers of a browser."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service
        self.origin = service.control_url
        self.cookie = ""
        self.expires_at = ""

    def send(self, method: str, path: str, body: Any = None, **headers: str | None) -> HTTPResponse:
        """Send a request. A header with the value None is left out; _ in a name is a hyphen."""
        sent: dict[str, str | None] = {"sec_fetch_site": "same-origin", "cookie": self.cookie or None}
        if method not in ("GET", "HEAD"):
            sent["origin"] = self.origin
        sent |= headers
        given = {name.replace("_", "-"): value for name, value in sent.items() if value is not None}
        content = None if body is None else json.dumps(body).encode()
        address = origin_of(self._service.control_url, self._service.certificate)
        response = send(address, method, path, given, content)
        if "set-cookie" in response.headers:
            self.cookie = response.headers["set-cookie"].partition(";")[0]
        return response

    def sign_in(self, **body: str) -> HTTPResponse:
        response = self.send("POST", "/v1/session", body)
        if response.status == 201:
            self.expires_at = self.send("GET", "/v1/session").json()["expires_at"]
        return response


def new_token(service: ServiceClient, name: str, role: str = "operator", **more: str) -> str:
    created = service.control("POST", "/v1/tokens", {"name": name, "role": role, **more})
    assert created.status == 201
    return str(created.json()["token"])


def new_code(service: ServiceClient, token: str | None = None) -> str:
    created = service.control("POST", "/v1/session/links", {}, token)
    assert created.status == 201
    assert created.json()["path"] == f"/portal/#code={created.json()['code']}"
    return str(created.json()["code"])


def signed_in(service: ServiceClient, token: str) -> Browser:
    browser = Browser(service)
    assert browser.sign_in(token=token).status == 201
    return browser


def sessions_of(service: ServiceClient, name: str) -> list[Any]:
    return [each for each in service.list_all("/v1/tokens?sessions=true") if each["parent"] == name]


# --- Signing in and out ---------------------------------------------------------------------------


def test_a_session_has_the_name_the_role_and_the_group_of_its_token(service: Service) -> None:
    token = new_token(service, "web-team", "tenant", group="web")
    browser = Browser(service)
    response = browser.sign_in(token=token)
    found = response.json()
    assert (found["name"], found["role"], found["group"]) == ("web-team", "tenant", "web")
    assert found["clock"] == "virtual"
    assert found["fabric"] == "simulated"
    assert found["faults_allowed"] is True
    assert found["default_api_version"] == found["api_versions"][-1] == "2020-07-01"
    assert browser.send("GET", "/v1/session").json() == found
    assert browser.send("GET", "/v1/events").status == 200
    assert browser.send("GET", "/v1/operations").status == 403
    port = service.control_address[1]
    name, value = browser.cookie.split("=")
    assert name == f"forewarn-{port}"
    cookie = response.headers["set-cookie"]
    assert cookie == f"{name}={value}; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"


def test_a_program_learns_the_same_with_its_token(service: Service) -> None:
    found = service.get_json("/v1/session")
    assert (found["name"], found["role"], found["group"], found["expires_at"]) == ("admin", "admin", None, None)


def test_history_has_the_name_of_the_token(service: Service) -> None:
    browser = signed_in(service, new_token(service, "alice"))
    request = {"cause": "restart", "vms": ["web-0"]}
    operation = browser.send("POST", "/v1/operations", request).json()["operations"][0]
    assert operation["requested_by"] == "alice"
    session = sessions_of(service, "alice")[0]["name"]
    assert browser.send("DELETE", "/v1/session").status == 200
    rows = {row["kind"]: row for row in service.list_all("/v1/history?by=alice")}
    assert rows["session-started"]["reason"].startswith(session)
    assert rows["session-ended"]["reason"] == session
    assert service.control("POST", f"/v1/operations/{operation['id']}/cancel", {}).status == 200


def test_signing_out_ends_the_session_at_once(service: Service) -> None:
    browser = signed_in(service, new_token(service, "brief"))
    cookie = browser.cookie
    response = browser.send("DELETE", "/v1/session")
    assert "Max-Age=0;" in response.headers["set-cookie"]
    assert browser.cookie.endswith("=")
    ended = browser.send("GET", "/v1/events", cookie=cookie)
    assert (ended.status, ended.json()["type"]) == (401, "urn:forewarn:SessionEnded")
    assert not sessions_of(service, "brief")


def test_only_a_session_can_sign_out(service: Service) -> None:
    response = service.control("DELETE", "/v1/session")
    assert (response.status, response.json()["type"]) == (409, "urn:forewarn:NoSession")
    assert service.control("GET", "/v1/clock").status == 200


@pytest.mark.parametrize(
    "body", [{}, {"token": ""}, {"token": "fw_a", "code": "b"}, {"token": None}, {"token": 5}, {"user": "a"}, []]
)
def test_a_wrong_body_is_rejected_with_what_is_right(service: Service, body: Any) -> None:
    response = Browser(service).send("POST", "/v1/session", body)
    assert (response.status, response.json()["title"]) == (400, "Invalid")
    assert "set-cookie" not in response.headers


def test_a_wrong_token_or_code_does_not_sign_in(service: Service) -> None:
    for body in ({"token": "fw_wrong"}, {"code": "wrong"}, {"token": new_code(service)}, {"code": service.token}):
        response = Browser(service).sign_in(**body)
        assert response.status == 401
        assert "set-cookie" not in response.headers


def test_wrong_tokens_are_delayed_also_when_signing_in(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=FLEET)
    with ThreadPoolExecutor(40) as pool:
        guesses = [pool.submit(Browser(service).sign_in, code="wrong") for _ in range(40)]
        while b"forewarn_wrong_tokens_total 40" not in service.control("GET", "/metrics").body:
            pass
        assert not all(guess.done() for guess in guesses)
        assert Browser(service).sign_in(token=service.token).status == 201  # a right one does not wait
        assert service.stop() == 0
        assert {guess.result().status for guess in guesses} == {401}


def test_the_secrets_of_sessions_and_links_are_not_bearer_tokens(service: Service) -> None:
    browser = signed_in(service, service.token)
    for secret in (browser.cookie.partition("=")[2], new_code(service)):
        assert service.control("GET", "/v1/clock", token=secret).status == 401
    cookie = browser.cookie.partition("=")[0]
    for secret in (service.token, new_code(service), "x"):
        assert browser.send("GET", "/v1/clock", cookie=f"{cookie}={secret}").status == 401


def test_a_bearer_token_takes_precedence_over_a_cookie(service: Service) -> None:
    viewer = new_token(service, "reader", "viewer")
    browser = signed_in(service, service.token)
    assert browser.send("GET", "/v1/session", authorization=f"Bearer {viewer}").json()["name"] == "reader"
    assert browser.send("GET", "/v1/session", authorization="Bearer fw_wrong").status == 401
    # A program needs no Origin.
    response = browser.send("POST", "/v1/session/links", {}, authorization=f"Bearer {viewer}", origin=None)
    assert response.status == 201


# --- The rate of one token ------------------------------------------------------------------------


def test_a_token_signs_in_only_as_often_as_people_do(service: Service) -> None:
    """Each sign-in is a row of history, which is kept for long and sent to webhooks."""
    token = new_token(service, "hasty", "tenant", group="web")
    code = new_code(service, token)
    for _ in range(200):
        response = Browser(service).send("POST", "/v1/session", {"token": token})
        if response.status != 201:
            break
    assert (response.status, response.json()["type"]) == (429, "urn:forewarn:TooManySignIns")
    assert int(response.headers["retry-after"]) > 0
    assert "set-cookie" not in response.headers
    assert Browser(service).sign_in(code=code).status == 429
    assert len(service.list_all("/v1/history?kind=session-started&by=hasty")) >= 50, "a team that shares a token"
    assert service.control("GET", "/v1/clock", token=token).status == 200
    assert Browser(service).sign_in(token=service.token).status == 201


# --- The end of a session -------------------------------------------------------------------------


def test_a_session_ends_with_its_token(service: Service) -> None:
    token = new_token(service, "leaver")
    browser, code = signed_in(service, token), new_code(service, token)
    assert service.control("DELETE", "/v1/tokens/leaver").status == 200
    assert browser.send("GET", "/v1/clock").status == 401
    assert Browser(service).sign_in(code=code).status == 401
    new_token(service, "leaver")  # another person with the same name
    assert browser.send("GET", "/v1/clock").status == 401
    assert Browser(service).sign_in(code=code).status == 401


def test_a_session_ends_when_its_token_expires(service: Service) -> None:
    token = new_token(service, "guest", expires="1h")
    browser, code = signed_in(service, token), new_code(service, token)
    service.advance("1h")
    ended = browser.send("GET", "/v1/clock")
    assert (ended.status, ended.json()["type"]) == (401, "urn:forewarn:TokenExpired")
    assert Browser(service).sign_in(token=token).status == 401
    assert Browser(service).sign_in(code=code).status == 401
    new_token(service, "guest")
    assert browser.send("GET", "/v1/clock").status == 401


def test_moving_a_virtual_clock_signs_nobody_out(service: Service) -> None:
    browser, code = signed_in(service, service.token), new_code(service)
    service.advance("30d")
    assert browser.send("GET", "/v1/clock").status == 200
    assert Browser(service).sign_in(code=code).status == 201


def test_an_admin_can_list_and_end_sessions(service: Service) -> None:
    browser = signed_in(service, new_token(service, "bob"))
    (session,) = sessions_of(service, "bob")
    assert (session["role"], session["created_by"]) == ("operator", "bob")
    assert session["name"] not in [token["name"] for token in service.list_all("/v1/tokens")]
    assert service.cli("token", "revoke", session["name"]).returncode == 0
    assert browser.send("GET", "/v1/clock").status == 401
    assert session["name"] in service.cli("history", "--kind", "session-ended").stdout
    listed = service.cli("token", "list", "--sessions").stdout
    assert "admin" in listed
    assert session["name"] not in listed


def test_links_are_not_listed(service: Service) -> None:
    new_code(service, new_token(service, "linker"))
    assert sessions_of(service, "linker") == []


def test_the_feed_of_a_session_ends_with_it(service: Service) -> None:
    browser = signed_in(service, new_token(service, "follower"))
    with Feed(service, cookie=browser.cookie) as feed:
        assert feed.answer.status == 200
        assert browser.send("DELETE", "/v1/session").status == 200
        assert [row["kind"] for row in feed.rows()] in ([], ["session-ended"])  # and then it ends


def test_the_oldest_session_of_a_token_goes_first(service: Service) -> None:
    token = new_token(service, "many")
    browsers = [signed_in(service, token) for _ in range(MAX_CHILDREN + 1)]
    assert len(sessions_of(service, "many")) == MAX_CHILDREN
    states = [browser.send("GET", "/v1/clock").status for browser in browsers[:2] + browsers[-1:]]
    assert states == [401, 200, 200]


def test_sessions_of_an_admin_do_not_replace_the_last_admin_token(service: Service) -> None:
    browser = signed_in(service, service.token)
    response = browser.send("DELETE", "/v1/tokens/admin")
    assert (response.status, response.json()["type"]) == (409, "urn:forewarn:LastAdmin")


def test_sessions_survive_a_kill_and_expire_in_real_time(
    make_service: Callable[..., ServiceProcess], tmp_path: Path
) -> None:
    clock = ShiftedSystemClock(tmp_path)
    service = make_service("--portal-session", "1h", "--clock", "virtual", fleet=FLEET, **clock.variables)
    browser = signed_in(service, service.token)
    code, late = new_code(service), new_code(service)
    service.kill()
    service.start(
        "--portal-session",
        "1h",
        "--clock",
        "virtual",
        "--control",
        browser.origin.partition("//")[2],
        **clock.variables,
    )
    assert browser.send("GET", "/v1/clock").status == 200
    clock.shift(50)
    other = Browser(service)
    assert other.sign_in(code=code).status == 201
    clock.shift(70)
    response = Browser(service).sign_in(code=late)
    assert (response.status, response.json()["type"]) == (401, "urn:forewarn:UnknownCode")
    clock.shift(3700)
    assert browser.send("GET", "/v1/clock").json()["type"] == "urn:forewarn:SessionEnded"
    assert len(sessions_of(service, "admin")) == 2
    assert browser.sign_in(token=service.token).status == 201
    assert len(sessions_of(service, "admin")) == 1  # the new one has removed those that expired


def test_a_restore_ends_all_sessions(make_service: Callable[..., ServiceProcess], tmp_path: Path) -> None:
    """A session that has ended since the backup, or a used link, must not be valid again."""
    service, file = make_service(fleet=FLEET), str(tmp_path / "backup.db")
    browser, code = signed_in(service, service.token), new_code(service)
    assert service.cli("backup", file).returncode == 0
    service.stop()
    assert service.cli("restore", file, "--yes").returncode == 0
    service.start("--control", browser.origin.partition("//")[2])
    assert browser.send("GET", "/v1/clock").status == 401
    assert Browser(service).sign_in(code=code).status == 401
    assert Browser(service).sign_in(token=service.token).status == 201


# --- What a session makes -------------------------------------------------------------------------


def link_of(browser: Browser) -> str:
    created = browser.send("POST", "/v1/session/links", {})
    assert created.status == 201
    return str(created.json()["code"])


def test_a_session_made_by_a_session_ends_when_that_one_would(service: Service) -> None:
    first = signed_in(service, new_token(service, "chain"))
    second = Browser(service)
    assert second.sign_in(code=link_of(first)).status == 201
    third = Browser(service)
    assert third.sign_in(code=link_of(second)).status == 201
    assert len({session["expires_at"] for session in sessions_of(service, "chain")}) == 1
    # A new session of the token itself has its own time.
    assert Browser(service).sign_in(code=new_code(service, new_token(service, "chain-2"))).status == 201


def test_a_link_of_a_session_is_not_valid_after_the_session(
    make_service: Callable[..., ServiceProcess], tmp_path: Path
) -> None:
    clock = ShiftedSystemClock(tmp_path)
    service = make_service("--portal-session", "1m", fleet=FLEET, **clock.variables)
    browser = signed_in(service, service.token)
    clock.shift(50)
    code = link_of(browser)
    assert browser.send("POST", "/v1/session/links", {}).json()["expires_at"] == browser.expires_at
    clock.shift(61)
    assert Browser(service).sign_in(code=code).json()["type"] == "urn:forewarn:UnknownCode"


@pytest.mark.parametrize("how", ["sign out", "revoke", "replace"])
def test_what_a_session_made_ends_with_it(service: Service, how: str) -> None:
    name = f"maker-{how.replace(' ', '-')}"
    token = new_token(service, name)
    other = signed_in(service, token)
    first, second, third = signed_in(service, token), Browser(service), Browser(service)
    assert second.sign_in(code=link_of(first)).status == 201
    assert third.sign_in(code=link_of(second)).status == 201
    codes = [link_of(browser) for browser in (first, second, third)]
    if how == "sign out":
        assert first.send("DELETE", "/v1/session").status == 200
    elif how == "revoke":
        direct = [one for one in sessions_of(service, name) if one["created_by"] == name]
        made = next(one for one in direct if one["expires_at"] == first.expires_at)
        assert service.control("DELETE", f"/v1/tokens/{made['name']}").status == 200
    else:
        assert other.send("GET", "/v1/clock").status == 200
        for _ in range(MAX_CHILDREN - 2):
            other = signed_in(service, token)
    assert [browser.send("GET", "/v1/clock").status for browser in (first, second, third)] == [401] * 3
    assert [Browser(service).sign_in(code=code).status for code in codes] == [401] * 3
    assert other.send("GET", "/v1/clock").status == 200


# --- One-time links -------------------------------------------------------------------------------


def test_a_link_is_valid_once(service: Service) -> None:
    code = new_code(service, new_token(service, "carol", "viewer"))
    browser = Browser(service)
    response = browser.sign_in(code=code)
    assert (response.status, response.json()["name"], response.json()["role"]) == (201, "carol", "viewer")
    assert Browser(service).sign_in(code=code).status == 401
    assert browser.send("GET", "/v1/clock").status == 200


def test_exactly_one_of_many_simultaneous_uses_of_a_link_succeeds(service: Service) -> None:
    code = new_code(service, new_token(service, "dave"))
    browsers = [Browser(service) for _ in range(9)]
    with ThreadPoolExecutor(len(browsers)) as pool:
        statuses = list(pool.map(lambda browser: browser.sign_in(code=code).status, browsers))
    assert sorted(statuses) == [201, *[401] * 8]
    assert len(sessions_of(service, "dave")) == 1


def test_a_used_link_stays_used_after_a_kill(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=FLEET)
    code = new_code(service)
    assert Browser(service).sign_in(code=code).status == 201
    service.kill()
    service.start()
    assert Browser(service).sign_in(code=code).status == 401


def test_a_session_can_create_a_link_of_its_token(service: Service) -> None:
    token = new_token(service, "erin")
    browser = signed_in(service, token)
    assert Browser(service).sign_in(code=link_of(browser)).json()["name"] == "erin"


# --- Foreign pages --------------------------------------------------------------------------------

UNSAFE = [
    ("POST", "/v1/operations", {"cause": "restart", "vms": ["web-0"]}),
    ("POST", "/v1/events/approve", {"all": True}),
    ("PUT", "/v1/fleet", {}),
    ("DELETE", "/v1/tokens/admin", None),
    ("DELETE", "/v1/session", None),
    ("POST", "/v1/session/links", {}),
]


def foreign_origins(own: str) -> list[str | None]:
    host, _, port = own.removeprefix("http://").partition(":")
    return [
        None,
        "",
        "null",
        "http://evil.example.org",
        f"http://{host}",
        f"http://{host}:{int(port) + 1}",
        f"https://{host}:{port}",
        f"http://{host}:{port}.evil.example.org",
        f"http://evil.example.org/{host}:{port}",
        f"http://localhost:{port}",
    ]


@pytest.mark.parametrize(("method", "path", "body"), UNSAFE)
def test_a_foreign_page_cannot_change_anything(service: Service, method: str, path: str, body: Any) -> None:
    browser = signed_in(service, service.token)
    before = service.list_all("/v1/history?order=newest")[:1]
    for origin in foreign_origins(browser.origin):
        response = browser.send(method, path, body, origin=origin, sec_fetch_site=None)
        assert (response.status, response.json()["type"]) == (403, "urn:forewarn:ForeignOrigin"), origin
    for site in ("same-site", "cross-site"):
        response = browser.send(method, path, body, sec_fetch_site=site)
        assert (response.status, site in response.json()["detail"]) == (403, True)
    assert service.list_all("/v1/history?order=newest")[:1] == before
    assert browser.send("GET", "/v1/session").status == 200


def test_a_foreign_page_cannot_sign_somebody_in(service: Service) -> None:
    for origin in foreign_origins(service.control_url)[:6]:
        response = Browser(service).send("POST", "/v1/session", {"token": service.token}, origin=origin)
        assert response.status == 403
        assert "set-cookie" not in response.headers
    response = Browser(service).send("POST", "/v1/session", {"token": service.token}, sec_fetch_site="cross-site")
    assert response.status == 403


@pytest.mark.parametrize("site", ["same-site", "cross-site", "nonsense"])
def test_a_foreign_page_cannot_read_with_the_cookie(service: Service, site: str) -> None:
    browser = signed_in(service, service.token)
    for path in ("/v1/events", "/v1/history", "/v1/session", "/v1/feed"):
        assert browser.send("GET", path, sec_fetch_site=site).status == 403


@pytest.mark.parametrize("site", ["same-origin", "none", None])
def test_the_own_pages_and_the_user_can_read(service: Service, site: str | None) -> None:
    assert signed_in(service, service.token).send("GET", "/v1/events", sec_fetch_site=site).status == 200


def test_a_page_of_another_name_cannot_use_the_cookie(service: Service) -> None:
    """DNS rebinding: the Host and the Origin have the same foreign name."""
    browser = signed_in(service, service.token)
    for method in ("GET", "POST"):
        response = browser.send(method, "/v1/session", host="evil.example.org", origin="http://evil.example.org")
        assert response.status == 421


def test_a_proxy_with_the_certificate_makes_the_cookie_secure(service: Service) -> None:
    """A proxy passes on the Host header. The service sees by the Origin that the page was loaded with HTTPS."""
    browser = Browser(service)
    browser.origin = "https://localhost"
    response = browser.send("POST", "/v1/session", {"token": service.token}, host="localhost:443")
    assert response.status == 201
    assert response.headers["set-cookie"].startswith("__Host-forewarn=")
    assert response.headers["set-cookie"].endswith("; Secure")
    assert browser.send("POST", "/v1/session/links", {}, host="localhost").status == 201
    plain = browser.send("POST", "/v1/session/links", {}, host="localhost", origin="http://localhost")
    assert plain.status == 403
    assert browser.send("DELETE", "/v1/session", host="localhost").headers["set-cookie"].endswith("; Secure")


def test_with_a_certificate_the_cookie_is_always_secure(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = tmp_path / "certificate.pem"
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    with Service(FLEET, tls_certificate=str(certificate)) as service:
        browser = Browser(service)
        assert browser.origin.startswith("https://")
        response = browser.sign_in(token=service.token)
        assert response.status == 201
        assert response.headers["set-cookie"].startswith("__Host-forewarn-")
        assert response.headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict; Secure")
        assert browser.send("GET", "/v1/clock").status == 200
        # Another web server of this host could set a cookie without the prefix.
        tossed = browser.cookie.removeprefix("__Host-")
        assert browser.send("GET", "/v1/clock", cookie=tossed).status == 401
        plain = browser.origin.replace("https", "http")
        assert browser.send("POST", "/v1/session/links", {}, origin=plain).status == 403
        assert browser.send("POST", "/v1/session", {"token": service.token}, origin=plain).status == 403
