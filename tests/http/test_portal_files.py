"""The files of the portal: paths, media types, entity tags and the headers that restrict a browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from forewarn.portal.pages import FOLDER
from forewarn.system.http_client import origin_of
from forewarn.testing import Service
from forewarn.testing.client import send
from golden.exchange import Line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.testing.client import HTTPResponse

FILES = [path for path in sorted(FOLDER.rglob("*")) if path.is_file() and path.name != "index.html"]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service() as running:
        yield running


def get(service: Service, path: str, method: str = "GET", **headers: str) -> HTTPResponse:
    """Send a request without a token."""
    return send(origin_of(service.control_url), method, path, headers)


@pytest.mark.parametrize("path", ["/", "/portal"])
def test_the_address_of_the_service_leads_to_the_portal(service: Service, path: str) -> None:
    response = get(service, path)
    assert (response.status, response.headers["location"]) == (307, "portal/")


def version_of(service: Service) -> str:
    """The version of the files, as the page names it."""
    found = re.search(r'src="/portal/static/([0-9a-f]+)/app.js"', get(service, "/portal/").body.decode())
    assert found is not None
    return found[1]


@pytest.mark.parametrize("path", ["/portal/", "/portal/fleet", "/portal/vms/web-0.example.org", "/portal/a/b/c"])
def test_every_page_is_the_same_file(service: Service, path: str) -> None:
    response = get(service, path)
    assert (response.status, response.body) == (200, get(service, "/portal/").body)
    assert response.headers["content-type"] == "text/html; charset=utf-8"


def test_the_page_lists_every_module_with_its_version(service: Service) -> None:
    """A browser loads them at once, instead of one after the other."""
    listed = re.findall(r'rel="modulepreload" href="([^"]+)"', get(service, "/portal/").body.decode())
    modules = [path.relative_to(FOLDER) for path in FILES if path.suffix == ".js"]
    assert listed == [f"/portal/static/{version_of(service)}/{module}" for module in modules]


def test_every_file_is_served_with_its_media_type_and_a_tag(service: Service) -> None:
    expected = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    version = version_of(service)
    for path in FILES:
        place = f"/portal/static/{version}/{path.relative_to(FOLDER)}"
        response = get(service, place)
        assert (response.status, response.body) == (200, path.read_bytes())
        assert response.headers["content-type"].startswith(expected.get(path.suffix, "image/"))
        again = get(service, place, **{"If-None-Match": response.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        assert again.headers["etag"] == response.headers["etag"]


def test_a_browser_keeps_a_file_of_this_version_and_asks_for_those_of_another(service: Service) -> None:
    kept = get(service, f"/portal/static/{version_of(service)}/app.js")
    assert kept.headers["cache-control"] == "public, max-age=31536000, immutable"
    other = get(service, "/portal/static/0123456789abcdef/app.js")
    assert (other.body, other.headers["cache-control"]) == (kept.body, "no-cache")


def test_a_file_that_has_changed_is_sent_again(service: Service) -> None:
    for tags in ('"other"', 'W/"other", "third"', "etag"):
        assert get(service, "/portal/", **{"If-None-Match": tags}).status == 200
    tag = get(service, "/portal/").headers["etag"]
    for tags in (f'"other", {tag}', f"W/{tag}", "*"):
        assert get(service, "/portal/", **{"If-None-Match": tags}).status == 304


def test_every_response_restricts_the_browser(service: Service) -> None:
    for path in ("/portal/", "/portal/static/other/app.js"):
        headers = get(service, path).headers
        assert headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
            "font-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )
        assert headers["cache-control"] == "no-cache"
    # Also the other routes, redirects and errors.
    for path in ("/portal/", "/portal/static/none.js", "/", "/v1/vms", "/healthz", "/nothing"):
        headers = get(service, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
    assert service.control("GET", "/v1/vms").headers["cache-control"] == "no-store"


def test_head_has_the_headers_of_get_and_no_body(service: Service) -> None:
    whole, head = get(service, "/portal/"), get(service, "/portal/", "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["etag"] == whole.headers["etag"]
    assert int(head.headers["content-length"]) == len(whole.body)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/portal/", "/portal/static/x/app.js"])
def test_the_files_can_only_be_read(service: Service, method: str, path: str) -> None:
    response = get(service, path, method)
    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    [
        "/portal/static/../pages.py",
        "/portal/static/..%2fpages.py",
        "/portal/static/%2e%2e/pages.py",
        "/portal/static/..%5cpages.py",
        "/portal/static/%252e%252e%252fpages.py",
        "/portal/static//etc/passwd",
        "/portal/static/index.html%00.js",
        "/portal/static/",
        "/portal/static/none.js",
        "/portal/static/app.js",
        "/portal/static/x/index.html",
        "/portal/static/x/APP.JS",
        "/portal/static/x/../../pages.py",
        "/portal/static/x//etc/passwd",
    ],
)
def test_nothing_outside_of_the_folder_is_served(service: Service, path: str) -> None:
    with Line(service, address=service.control_address) as line:  # as it is: a client would normalize it
        line.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        response = line.read_response()
    assert response.status == 404
    assert b"def " not in response.body
    assert b"root:" not in response.body


def test_a_page_of_another_name_cannot_read_the_portal(service: Service) -> None:
    """DNS rebinding: the name of a foreign page can point to this machine."""
    for path in ("/", "/portal/", "/portal/static/x/app.js"):
        assert get(service, path, Host="evil.example.org").status == 421
