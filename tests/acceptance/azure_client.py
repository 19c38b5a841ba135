"""A client as programs for Azure are written: the address built in, its host name looked for in Resources."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

ENDPOINT = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"


def ask(body: dict[str, Any] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(ENDPOINT, data, {"Metadata": "true"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request) as answer:
        assert answer.status == 200
        content: bytes = answer.read()
        return content


def main() -> None:
    me = socket.gethostname()
    assert json.loads(ask()) == {"DocumentIncarnation": 0, "Events": []}
    forewarn = str(Path(sys.executable).with_name("forewarn"))
    subprocess.run([forewarn, "vm", "restart", me], check=True)
    mine = [event for event in json.loads(ask())["Events"] if me in event["Resources"]]
    assert [event["EventStatus"] for event in mine] == ["Scheduled"]
    assert ask({"StartRequests": [{"EventId": mine[0]["EventId"]}]}) == b""
    assert json.loads(ask())["Events"][0]["EventStatus"] == "Started"
    sys.stdout.write("approved on 169.254.169.254\n")


if __name__ == "__main__":
    main()
