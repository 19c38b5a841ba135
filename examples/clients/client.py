#!/usr/bin/env python3
"""Handle Azure Scheduled Events, on Azure and with Forewarn. Python 3.8 or newer, standard library only.

The program polls. For each event that names this VM, it prepares, approves, and reports the start and the end.
"""

import argparse
import http.client
import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.parse

AZURE = "http://169.254.169.254"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
KNOWN_TYPES = {"Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"}
FIRST_TIMEOUT = 130  # on Azure, the response to the first GET can take two minutes
OLDER_SECONDS = 10  # a lower incarnation that stays this long is a new count; before, it may be an old document


class Client:
    def __init__(self, options):
        self.options = options
        self.endpoint = urllib.parse.urlsplit(options.endpoint)
        self.name = options.name
        self.incarnation = -1  # of the last document; -1: none yet
        self.older_since = None
        self.tracked = {}  # events of this VM by EventId
        self.problem = ""  # the last one, so that it is reported once

    def run(self):
        while not self.name:
            self.name = (self.request("GET", NAME) or "").strip()
            if not self.name:
                time.sleep(self.options.interval)
        print(f"polling {self.options.endpoint} as {self.name}", flush=True)
        while True:
            document = self.poll()
            if document is not None:
                if self.is_new(document["DocumentIncarnation"]):
                    self.handle(document["Events"])
                self.approve()
            time.sleep(self.options.interval)

    def request(self, method, path, body=None):
        """Return the text of a response with status 200; None after any failure, which the next poll retries."""
        timeout = max(self.options.timeout, FIRST_TIMEOUT if self.incarnation < 0 else 0)
        connection = http.client.HTTPConnection(self.endpoint.netloc, timeout=timeout)  # never uses a proxy
        try:
            connection.request(method, path, body, {"Metadata": "true", "Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
            problem = "" if response.status == 200 else f"status {response.status}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            text, problem = "", str(error) or type(error).__name__
        finally:
            connection.close()
        self.report(method, problem)
        return None if problem else text

    def report(self, method, problem):
        """Print a problem when it begins, not at each poll."""
        said = f"retrying {method}: {problem}"
        if problem and said != self.problem:
            self.problem = said
            print(said, file=sys.stderr, flush=True)
        elif not problem and self.problem.startswith(f"retrying {method}:"):
            self.problem = ""

    def poll(self):
        """Return the current document; None if there is none."""
        text = self.request("GET", EVENTS)
        if text is None:
            return None
        try:
            document = json.loads(text)
            valid = isinstance(document["DocumentIncarnation"], int)
            for event in document["Events"]:
                fields = (event["EventId"], event["EventType"], event["EventStatus"], event.get("NotBefore", ""))
                valid = valid and all(isinstance(field, str) for field in fields)
                valid = valid and isinstance(event["Resources"], list)
        except (ValueError, TypeError, KeyError, AttributeError):
            valid = False
        if not valid:
            self.report("GET", "malformed document" if text else "empty document")
            return None
        return document

    def is_new(self, incarnation):
        """Return whether to read this document: it has another incarnation than the last one, and is not old."""
        if incarnation >= self.incarnation:
            self.older_since = None
        elif self.older_since is None:
            self.older_since = time.monotonic()
        if self.older_since is not None and time.monotonic() - self.older_since < OLDER_SECONDS:
            return False
        changed = incarnation != self.incarnation
        self.incarnation, self.older_since = incarnation, None
        return changed

    def handle(self, events):
        mine = {event["EventId"]: event for event in events if self.name in event["Resources"]}
        for event_id in [known for known in self.tracked if known not in mine]:
            say("ended", self.tracked.pop(event_id))
        for event_id, event in mine.items():
            known = self.tracked.setdefault(event_id, {**event, "EventStatus": "", "ready": False, "sent": -math.inf})
            if known["EventStatus"] == event["EventStatus"]:
                continue
            known["EventStatus"] = event["EventStatus"]
            if event["EventType"] not in KNOWN_TYPES:
                say("ignored", event, "unknown event type")
            elif event["EventStatus"] == "Started":
                say("started", event)
            elif event["EventStatus"] == "Scheduled":
                say("scheduled", event, f"not before {event.get('NotBefore')}")
                known["ready"] = self.prepare(event)

    def prepare(self, event):
        """Prepare this VM, once for each event. Return whether to approve the event."""
        if self.options.run:
            details = {"EVENT_ID": event["EventId"], "EVENT_TYPE": event["EventType"]}
            details["EVENT_NOT_BEFORE"] = event.get("NotBefore", "")
            code = subprocess.Popen(self.options.run, shell=True, env={**os.environ, **details}).wait()  # noqa: S602
            if code != 0:
                say("not approved", event, f"the command ended with {code}")
                return False
        say("prepared", event)
        if len(event["Resources"]) > 1:  # an approval starts the event for all of them
            say("not approved", event, "it names other VMs too")
            return False
        return True

    def approve(self):
        """Approve prepared events; again if an event is still Scheduled after a while."""
        for event_id, known in self.tracked.items():
            is_due = time.monotonic() - known["sent"] >= self.options.repeat
            if known["ready"] and known["EventStatus"] == "Scheduled" and is_due:
                body = json.dumps({"StartRequests": [{"EventId": event_id}]})
                if self.request("POST", EVENTS, body) is not None:
                    known["sent"] = time.monotonic()
                    say("approved", known)


def say(step, event, detail=""):
    print(f"{step} {event['EventType']} {event['EventId']}" + (f": {detail}" if detail else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    endpoint = os.environ.get("FOREWARN_ENDPOINT") or AZURE
    parser.add_argument("--endpoint", default=endpoint, help="default: FOREWARN_ENDPOINT, or Azure's address")
    parser.add_argument("--name", help="name of this VM in events (default: ask the endpoint)")
    parser.add_argument("--run", metavar="COMMAND", help="command that prepares this VM")
    parser.add_argument("--interval", type=float, default=1, help="seconds between polls (default: 1)")
    parser.add_argument("--timeout", type=float, default=10, help="seconds to wait for data (default: 10)")
    parser.add_argument("--repeat", type=float, default=60, help="seconds until the same approval again (default: 60)")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    options = parser.parse_args()
    if not options.endpoint.startswith("http://"):
        parser.error(f"--endpoint {options.endpoint}: write http://HOST or http://HOST:PORT")
    Client(options).run()


if __name__ == "__main__":
    main()
