"""The fleet of the golden requests, and services with the same state."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forewarn.testing import ServiceProcess
from golden.exchange import DATE, Line, Reply
from golden.rows import APP_0, DEFAULT, FULL, LENIENT, OTHER, QUIET, WEB_0

if TYPE_CHECKING:
    from pathlib import Path

    from golden.rows import Row

FLEET = f"""
[[group]]
name = "web"
kind = "availability-set"
update_domains = 2

[[group]]
name = "app"
kind = "scale-set"

[[host]]
name = "shared"

[[vm]]
name = "web-0"
group = "web"
address = "{WEB_0}"

[[vm]]
name = "web-1"
group = "web"
address = "127.0.0.2"

[[vm]]
name = "quiet"
address = "{QUIET}"

[[vm]]
name = "app_0"
group = "app"
host = "shared"
address = "{APP_0}"

[[vm]]
name = "app_1"
group = "app"
address = "127.0.0.5"

[[vm]]
name = "fresh"
address = "127.0.0.6"

[[vm]]
name = "other"
host = "shared"
address = "{OTHER}"

[[vm]]
name = "full"
address = "{FULL}"
hostname = "full0"
priority = "spot"
size = "Standard_D2s_v5"
zone = "2"
location = "westeurope"
user_data = "size: größe"
custom_data = "#cloud-config"
public_keys = ["ssh-ed25519 AAAA ops@example.org", "ssh-rsa 0"]
[vm.tags]
team = "shop"
role = "front"
"""

RULES = {
    DEFAULT: (),
    LENIENT: ("--preview-versions", "true", "--post-without-header", "true"),
}
_NOT_BEFORE = re.compile(rb'"NotBefore":"' + DATE + rb'"')


@dataclass
class World:
    """Services with the same state, one per set of settings."""

    ids: dict[str, str]
    tags: dict[str, str]
    services: dict[str, ServiceProcess]

    def send_on_new_connections(self, row: Row, times: int) -> list[Reply]:
        """Send the request over new connections. Return the responses."""
        return [reply for _ in range(times) for reply in self.send_on_one_connection(row, 1)]

    def send_on_one_connection(self, row: Row, times: int) -> list[Reply]:
        """Send the request repeatedly over one connection, if it stays open. Return the responses."""
        with Line(self.services[row.rules], row.source) as line:
            data = self._fill(row)
            return [line.exchange(data) for _ in range(1 if row.closes else times)]

    def _fill(self, row: Row) -> bytes:
        """Return the request with real values instead of placeholders."""
        filled = row.request_bytes
        for name, event_id in self.ids.items():
            filled = filled.replace(f"<{name}>".encode(), event_id.upper().encode())
            filled = filled.replace(f"<{name} lower>".encode(), event_id.encode())
        tag = self.tags.get(row.source, '""')
        filled = filled.replace(b"<tag>", tag.encode()).replace(b"<bare tag>", tag.strip('"').encode())
        head, _, body = filled.partition(b"\r\n\r\n")
        if b"chunked" in head and body != row.body:
            return head + b"\r\n\r\n" + _chunked(body)
        return re.sub(rb"Content-Length: [0-9]+", b"Content-Length: %d" % len(body), head) + b"\r\n\r\n" + body

    def named(self, reply: Reply) -> bytes:
        """Return the response with placeholders instead of real values."""
        text = reply.unmeasured
        for name, event_id in self.ids.items():
            text = text.replace(event_id.upper().encode(), f"<{name}>".encode())
            text = text.replace(event_id.encode(), f"<{name} lower>".encode())
        return _NOT_BEFORE.sub(b'"NotBefore":"<not before>"', text)

    def approved(self, name: str) -> bool:
        event = self.services[DEFAULT].get_json(f"/v1/events/{self.ids[name]}")
        return event["approved_at"] is not None

    def stop(self) -> None:
        for service in self.services.values():
            service.kill()


def _chunked(body: bytes) -> bytes:
    """Encode the chunks again, with the sizes after filling in the placeholders."""
    parts = [part for part in body.split(b"\r\n")[1::2] if part]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def build(folder: Path) -> World:
    """Create the state once, and start every service from a copy of it."""
    (folder / "fleet.toml").write_text(FLEET)
    first = ServiceProcess(folder / "first")
    first.folder.mkdir()
    arguments = ("--fleet", str(folder / "fleet.toml"), "--clock", "virtual")
    first.start(*arguments)
    try:
        for source in (WEB_0, QUIET, APP_0, OTHER):
            first.document(source=source)
        ids = _events(first)
        tags = {source: first.request(source=source).headers["etag"] for source in (WEB_0, QUIET, APP_0)}
    finally:
        code = first.stop()
    assert code == 0
    services = {}
    for rules, settings in RULES.items():
        place = folder / rules
        shutil.copytree(first.folder, place)
        services[rules] = ServiceProcess(place).start(*arguments, *settings)
    return World(ids, tags, services)


def _events(service: ServiceProcess) -> dict[str, str]:
    """Create the events. Return their ids by placeholder name."""
    told = service.request_operation("restart", "web-0")["events"][0]["id"]
    started = service.request_operation("restart", "app_1")["events"][0]["id"]
    service.control("POST", f"/v1/events/{started}/approve")
    ended = service.request_operation("restart", "other")["events"][0]["id"]
    service.control("POST", f"/v1/events/{ended}/cancel")
    # These wait for another group's approval, so that an approval by their own group does not start them.
    waiting = service.request_operation("host-update", host="shared")["events"]
    untouched = service.request_operation("emergency-repair", host="shared")["events"]
    found = {"told": told, "started": started, "ended": ended}
    for name, events in (("waiting", waiting), ("untouched", untouched)):
        found[name] = next(event["id"] for event in events if event["group"] == "app")
    assert len(set(found.values())) == 5, json.dumps(found)
    return found
