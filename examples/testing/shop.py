#!/usr/bin/env python3
"""A sample application: a shop that keeps its orders in memory and handles Scheduled Events.

It has two handlers. The careful handler leaves the pool of the load balancer, saves its orders, and then approves. It
ignores events of other VMs, returns to the pool after an event, and retries when the endpoint fails. The careless
handler does none of this: it is a typical first version. `test_shop.py` passes only with the careful handler.
"""

import argparse
import http.client
import json
import os
import threading
import urllib.error
import urllib.request
from pathlib import Path

ENDPOINT = os.environ.get("FOREWARN_ENDPOINT", "http://169.254.169.254")
EVENTS = f"{ENDPOINT}/metadata/scheduledevents?api-version=2020-07-01"
POLL_SECONDS = float(os.environ.get("POLL_SECONDS", "1"))


class Shop:
    """The application. It writes its state to a file, which a load balancer (or a test) can read."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._orders = 3
        self._saved = 0
        self.in_pool = True
        self._write()

    def leave_pool(self) -> None:
        self.in_pool = False
        self._write()

    def join_pool(self) -> None:
        self.in_pool = True
        self._write()

    def save(self) -> None:
        self._saved = self._orders
        self._write()

    def _write(self) -> None:
        temporary = self._state.with_suffix(".new")
        temporary.write_text(json.dumps({"in_pool": self.in_pool, "orders": self._orders, "saved": self._saved}))
        temporary.replace(self._state)


def careful(shop: Shop, document: dict, me: str) -> None:
    mine = [event for event in document["Events"] if me in event["Resources"]]
    if not mine:
        if not shop.in_pool:
            shop.join_pool()
        return
    for event in mine:
        short = event["EventType"] == "Freeze" and 0 <= event["DurationInSeconds"] <= 10
        if not short and shop.in_pool:
            shop.leave_pool()
            shop.save()
        if event["EventStatus"] == "Scheduled" and len(event["Resources"]) == 1:
            approve(event)  # an event of several VMs would start for all of them


def careless(shop: Shop, document: dict, _: str) -> None:
    for event in document["Events"]:
        approve(event)
        shop.leave_pool()


def approve(event: dict) -> None:
    send(json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())


def send(body: "bytes | None" = None) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the endpoint is link-local
    with opener.open(urllib.request.Request(EVENTS, body, {"Metadata": "true"}), timeout=5) as response:  # noqa: S310
        return response.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="file to write the state of the shop to")
    parser.add_argument("--handler", choices=["careful", "careless"], default="careful")
    options = parser.parse_args()
    shop, me = Shop(options.state), os.environ["FOREWARN_VM_NAME"]
    pause = threading.Event()
    handle = careful if options.handler == "careful" else careless
    endpoint_errors = (OSError, ValueError, http.client.HTTPException)
    expected = endpoint_errors if options.handler == "careful" else urllib.error.HTTPError
    while True:
        try:
            handle(shop, json.loads(send()), me)
        except expected as error:  # any other error ends the program
            print(f"retrying: {error}", flush=True)
        pause.wait(POLL_SECONDS)


if __name__ == "__main__":
    main()
