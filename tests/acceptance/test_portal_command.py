"""forewarn portal, and the link that forewarn up prints."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from forewarn.cli.portal import portal_url
from forewarn.system.http_client import origin_of
from forewarn.testing.client import send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.testing import Service, ServiceProcess
    from forewarn.testing.client import HTTPResponse


def sign_in(link: str) -> HTTPResponse:
    """Do what the page at the link does."""
    parts = urlsplit(link)
    assert parts.path == "/portal/"
    name, _, code = parts.fragment.partition("=")
    assert name == "code"
    origin = f"{parts.scheme}://{parts.netloc}"
    body = json.dumps({"code": code}).encode()
    return send(origin_of(origin), "POST", "/v1/session", {"Origin": origin}, body)


def test_the_command_prints_a_link_that_is_valid_once(forewarn: Service) -> None:
    result = forewarn.cli("portal", "--print")
    assert (result.returncode, result.stderr) == (0, "")
    link = result.stdout.strip()
    assert link.startswith(f"{forewarn.control_url}/portal/#code=")
    assert sign_in(link).json()["name"] == "admin"
    assert sign_in(link).status == 401
    as_json = json.loads(forewarn.cli("portal", "--json").stdout)
    assert sign_in(as_json["url"]).status == 201


def test_the_command_opens_the_browser(forewarn: Service, tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o755)
    result = forewarn.cli("portal", BROWSER=f"{browser} %s")
    assert (result.returncode, result.stdout, result.stderr) == (0, "Opened the portal in a browser.\n", "")
    assert sign_in(opened.read_text()).status == 201


def test_without_a_browser_the_command_prints_the_link(forewarn: Service, tmp_path: Path) -> None:
    result = forewarn.cli("portal", BROWSER=f"{tmp_path}/none %s", PATH=str(tmp_path), DISPLAY="", WAYLAND_DISPLAY="")
    assert result.returncode == 0
    assert "Found no browser." in result.stderr
    assert sign_in(result.stdout.strip()).status == 201


def printed_link(service: ServiceProcess) -> tuple[str, str]:
    found = re.search(r"^  portal    (\S+)\n +\((.*)\)$", service.output, re.MULTILINE)
    assert found, service.output
    return found[1], found[2]


def test_the_service_prints_a_link_of_the_first_admin(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service()
    link, hint = printed_link(service)
    assert hint.startswith("valid once, for a minute; later: ")
    assert " portal" in hint
    answer = sign_in(link)
    assert (answer.status, answer.json()["name"]) == (201, "admin")


def test_the_journal_of_systemd_gets_no_code(make_service: Callable[..., ServiceProcess]) -> None:
    link, hint = printed_link(make_service(JOURNAL_STREAM="8:1"))
    assert link.endswith("/portal/")
    assert hint.startswith("sign in: ")


def test_a_service_on_all_addresses_prints_one_that_a_browser_can_open(
    make_service: Callable[..., ServiceProcess],
) -> None:
    service = make_service("--control", "0.0.0.0:0")
    link, _ = printed_link(service)
    assert link.startswith("http://127.0.0.1:")
    assert sign_in(link).status == 201


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        ("http://[::]:8170", "http://[::1]:8170/portal/"),
        ("http://10.0.0.1:8170", "http://10.0.0.1:8170/portal/"),
        ("https://forewarn.example.org/path", "https://forewarn.example.org/path/portal/"),
    ],
)
def test_the_url_of_a_page(control: str, expected: str) -> None:
    assert portal_url(control, "/portal/") == expected
