#!/usr/bin/env python3
"""Handle Scheduled Events in one file, on Azure and with Forewarn. Standard library only.

The program polls once a second. When an event names this VM, it runs a command. If the command succeeds, it approves
the event. The command gets EVENT_ID, EVENT_TYPE and EVENT_NOT_BEFORE in its environment.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request

AZURE = "http://169.254.169.254"
POLL_SECONDS = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", default=AZURE, help="endpoint to poll (default: %(default)s, as on Azure)")
    parser.add_argument("--run", required=True, metavar="COMMAND", help="command to run before the approval")
    parser.add_argument("--once", action="store_true", help="exit after the first event")
    options = parser.parse_args()

    endpoint = options.endpoint.rstrip("/")
    me = send(f"{endpoint}/metadata/instance/compute/name?api-version=2021-02-01&format=text").decode()
    events = f"{endpoint}/metadata/scheduledevents?api-version=2020-07-01"
    print(f"{me}: polling {endpoint}", flush=True)
    handled = set()
    pause = threading.Event()
    while True:
        for event in poll(events):
            event_id = event["EventId"]
            if me in event["Resources"] and event["EventStatus"] == "Scheduled" and event_id not in handled:
                handled.add(event_id)
                prepare_and_approve(events, event, options.run)
                if options.once:
                    return 0
        pause.wait(POLL_SECONDS)


def poll(url: str) -> list:
    """Return the current events; none if the request fails."""
    try:
        return json.loads(send(url))["Events"]
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(f"poll failed, retrying: {error}", file=sys.stderr, flush=True)
        return []


def prepare_and_approve(url: str, event: dict, command: str) -> None:
    environment = {
        "EVENT_ID": event["EventId"],
        "EVENT_TYPE": event["EventType"],
        "EVENT_NOT_BEFORE": event["NotBefore"],
    }
    print(f"{event['EventType']} {event['EventId']}, not before {event['NotBefore']}", flush=True)
    done = subprocess.run(command, shell=True, env={**os.environ, **environment}, check=False)  # noqa: S602
    if done.returncode == 0:
        send(url, json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())
        print("approved", flush=True)
    else:
        print(f"not approved: the command exited with {done.returncode}", flush=True)


def send(url: str, body: "bytes | None" = None) -> bytes:
    """Send a request without a proxy: the endpoint is link-local."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, body, {"Metadata": "true"})  # noqa: S310
    with opener.open(request, timeout=130) as response:  # on Azure the first response may take two minutes
        return response.read()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (urllib.error.URLError, TimeoutError) as error:
        sys.exit(f"no response: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
