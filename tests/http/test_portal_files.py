"""The files of the portal: paths, media types, entity tags and the headers that restrict a browser."""

from __future__ import annotations

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

PAGE = (FOLDER / "index.html").read_bytes()


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


@pytest.mark.parametrize("path", ["/portal/", "/portal/fleet", "/portal/vms/web-0.example.org", "/portal/a/b/c"])
def test_every_page_is_the_same_file(service: Service, path: str) -> None:
    response = get(service, path)
    assert (response.status, response.body) == (200, PAGE)
    assert response.headers["content-type"] == "text/html; charset=utf-8"


def test_every_file_is_served_with_its_media_type_and_a_tag(service: Service) -> None:
    expected = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    for path in FOLDER.rglob("*"):
        if path.is_file():
            response = get(service, f"/portal/static/{path.relative_to(FOLDER)}")
            assert (response.status, response.body) == (200, path.read_bytes())
            assert response.headers["content-type"].startswith(expected.get(path.suffix, "image/"))
            again = get(
                service, f"/portal/static/{path.relative_to(FOLDER)}", **{"If-None-Match": response.headers["etag"]}
            )
            assert (again.status, again.body) == (304, b"")
            assert again.headers["etag"] == response.headers["etag"]


def test_a_file_that_has_changed_is_sent_again(service: Service) -> None:
    for tags in ('"other"', 'W/"other", "third"', "etag"):
        assert get(service, "/portal/", **{"If-None-Match": tags}).status == 200
    tag = get(service, "/portal/").headers["etag"]
    for tags in (f'"other", {tag}', f"W/{tag}", "*"):
        assert get(service, "/portal/", **{"If-None-Match": tags}).status == 304


def test_every_response_restricts_the_browser(service: Service) -> None:
    for path in ("/portal/", "/portal/static/index.html"):
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
    assert int(head.headers["content-length"]) == len(PAGE)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/portal/", "/portal/static/index.html"])
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
        "/portal/static/INDEX.HTML",
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
    for path in ("/", "/portal/", "/portal/static/index.html"):
        assert get(service, path, Host="evil.example.org").status == 421
