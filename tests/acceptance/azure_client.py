"""A client that works like Microsoft's published Python samples for Scheduled Events.

- The address is built in, `Metadata: true` and an api-version go with every request, and no proxy is used.
- It knows itself by its host name, and looks for that in Resources. (From the first sample.)
- It polls until DocumentIncarnation is another than the last one; the last one is the text "-1" at first, which no
  document has. It polls with If-None-Match, a bare 0 at first, and the ETag it was given from then on; 304 is
  the document that it has. (The samples pause for a second between polls. Here nothing takes a second.)
- All events of a document are looked at together. One that is Started is logged. One that a user has asked for, or
  a Freeze of less than nine seconds, is approved by a POST with the same header and version, and with If-None-Match,
  which must do no harm there. Any other would be handled.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ENDPOINT = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"


class Client:
    """What such a program knows from one poll to the next."""

    def __init__(self) -> None:
        self.me = socket.gethostname()
        self.tag = "0"
        self.document: dict[str, Any] = {"DocumentIncarnation": "-1", "Events": []}
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, body: dict[str, Any] | None = None) -> bytes | None:
        """Return the body of the response, or None if nothing is new."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(ENDPOINT, data, {"Metadata": "true", "If-None-Match": self.tag})
        try:
            with self.opener.open(request) as answer:
                assert answer.status == 200
                self.tag = answer.headers.get("ETag", self.tag)
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as answer:
            if answer.code != 304:
                raise
            return None

    def poll(self) -> None:
        """Until there is another document."""
        last = self.document["DocumentIncarnation"]
        while self.document["DocumentIncarnation"] == last:
            content = self.ask()
            if content is not None:
                self.document = json.loads(content)

    def approve(self, event: dict[str, Any]) -> None:
        assert self.ask({"StartRequests": [{"EventId": event["EventId"]}]}) == b""

    def handle(self) -> list[str]:
        """What was done about each event."""
        done = []
        for event in self.document["Events"]:
            concerned = "this host" if self.me in event["Resources"] else "others"
            if event["EventStatus"] == "Started":
                done.append(f"{event['EventType']} of {concerned} has started")
            elif event["EventSource"] == "User" or (
                event["EventType"] == "Freeze" and 0 <= int(event["DurationInSeconds"]) < 9
            ):
                self.approve(event)
                done.append(f"{event['EventType']} of {concerned} not before {event['NotBefore']}: approved")
            else:
                done.append(f"{event['EventType']} of {concerned}: to be handled")
        return done


def main() -> None:
    client = Client()
    client.poll()
    assert client.document == {"DocumentIncarnation": 0, "Events": []}
    assert client.handle() == []
    assert client.ask() is None
    forewarn = str(Path(sys.executable).with_name("forewarn"))
    subprocess.run([forewarn, "vm", "restart", client.me], check=True)
    client.poll()
    [done] = client.handle()
    assert done.startswith("Reboot of this host not before ")
    assert done.endswith(" GMT: approved")
    client.poll()
    assert client.handle() == ["Reboot of this host has started"]
    sys.stdout.write("approved on 169.254.169.254\n")


if __name__ == "__main__":
    main()
