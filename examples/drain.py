#!/usr/bin/env python3
"""A handler of Scheduled Events in one file, for Azure and for Forewarn: standard library only.

Polls once a second; when an event names this machine, runs a command, and approves the event when the
command has succeeded. The command has the event in its environment: EVENT_ID, EVENT_TYPE, EVENT_NOT_BEFORE.
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
    parser.add_argument("--endpoint", default=AZURE, help="where to ask (default: %(default)s, as on Azure)")
    parser.add_argument("--run", required=True, metavar="COMMAND", help="what to run before approving")
    parser.add_argument("--once", action="store_true", help="stop after the first event")
    options = parser.parse_args()

    endpoint = options.endpoint.rstrip("/")
    me = ask(f"{endpoint}/metadata/instance/compute/name?api-version=2021-02-01&format=text").decode()
    events = f"{endpoint}/metadata/scheduledevents?api-version=2020-07-01"
    print(f"{me}: watching {endpoint}", flush=True)
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
    """The events; none when the endpoint has a bad moment, which it may."""
    try:
        return json.loads(ask(url))["Events"]
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(f"asking again: {error}", file=sys.stderr, flush=True)
        return []


def prepare_and_approve(url: str, event: dict, command: str) -> None:
    environment = {
        "EVENT_ID": event["EventId"],
        "EVENT_TYPE": event["EventType"],
        "EVENT_NOT_BEFORE": event["NotBefore"],
    }
    print(f"{event['EventType']} {event['EventId']}, not before {event['NotBefore']}", flush=True)
    done = subprocess.run(command, shell=True, env={**os.environ, **environment}, check=False)  # noqa: S602 - one's own
    if done.returncode == 0:
        ask(url, json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())
        print("approved", flush=True)
    else:
        print(f"not approved: the command ended with {done.returncode}", flush=True)


def ask(url: str, body: "bytes | None" = None) -> bytes:
    """Never through a proxy: the endpoint is link-local."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, body, {"Metadata": "true"})  # noqa: S310
    with opener.open(request, timeout=130) as answer:  # the first call may take two minutes on Azure
        return answer.read()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (urllib.error.URLError, TimeoutError) as error:
        sys.exit(f"no answer: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
