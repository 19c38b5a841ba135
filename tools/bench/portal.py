"""The portal: the first view of a large fleet, a change until it is visible, and what open pages cost the service."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING

from tools.bench.poll import ROUND_SECONDS, Target, response_bytes
from tools.bench.processes import LOAD_CORE, SERVER_CORE, program
from tools.bench.report import Outcome, Row, at_least, below, spread
from tools.bench.service import POLLER, Service, fleet_text
from tools.bench.wrk import Wrk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page
    from tools.bench.context import Context

VMS = 10_000
PAGES = 10
IDLE_SECONDS = 5
"""Also the time in which a browser finishes its work on a new page, before polls are measured."""
SQUARES = f"() => document.querySelectorAll('.groups a.vm').length === {VMS}"
EVENTS = "() => document.querySelectorAll('tr.event').length"


def measure(context: Context) -> Outcome:
    service = Service(context.processes, context.folder("portal"), fleet_text(VMS))
    service.start("--clock", "virtual")
    with _browser({SERVER_CORE, LOAD_CORE}) as browser:
        first = [_first_view(browser, service) for _ in range(context.rounds)]
        context.log(f"portal: first view of {VMS:,} VMs {median(first):.2f} s")
        change = _changes(browser, service, 3 * context.rounds)
        context.log(f"portal: a change is visible after {median(change) * 1000:.0f} ms")
    with _browser({LOAD_CORE}) as browser:
        idle, ratios, rates = _open_pages(context, browser, service)
    service.stop()
    without, with_pages = (median(values) for values in zip(*rates, strict=True))
    rows = [
        below(f"portal: first view of {VMS:,} VMs", median(first), "s", 1, f"maximum {max(first):.2f} s"),
        below("portal: a change is visible", median(change) * 1000, "ms", 200, f"maximum {max(change) * 1000:.0f} ms"),
        Row(f"portal: CPU of the service, {PAGES} idle pages", f"{idle[1]:.2f} %", f"without {idle[0]:.2f} %"),
        at_least(
            f"polls/s with {PAGES} open pages", f"{with_pages:,.0f}", f"without {without:,.0f}", median(ratios), 0.95
        ),
    ]
    raw = {"first_view_seconds": spread(first), "change_seconds": spread(change), "polls_ratio": spread(ratios)}
    return Outcome(rows, raw)


@contextmanager
def _browser(cores: set[int]) -> Iterator[Browser]:
    """Run Chromium on these cores."""
    from playwright.sync_api import sync_playwright

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # programs that are started inherit it
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program("chromium"), args=arguments)
            yield browser
            browser.close()
    finally:
        os.sched_setaffinity(0, before)


def _open(browser: Browser, service: Service, path: str) -> Page:
    """Sign in with a one-time link, in a browser without a cache, and open a page."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    link = service.control().call("POST", "/v1/session/links", {})["path"]
    page.goto(service.control_url + link)
    page.get_by_role("heading", name="Now").wait_for()
    if path:
        page.goto(f"{service.control_url}/portal/{path}")
    return page


def _first_view(browser: Browser, service: Service) -> float:
    """Return the seconds from the navigation until all VMs are in the page and the next frame is painted."""
    page = _open(browser, service, "")
    page.goto("about:blank")
    started = time.perf_counter()
    page.goto(f"{service.control_url}/portal/fleet", wait_until="commit")
    page.wait_for_function(SQUARES, polling="raf")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    seconds = time.perf_counter() - started
    page.context.close()
    return seconds


def _changes(browser: Browser, service: Service, number: int) -> list[float]:
    """Return the seconds from each request for a restart until the event is in the list."""
    page = _open(browser, service, "")
    control = service.control()
    found = []
    for _ in range(number):
        started = time.perf_counter()
        operation = control.call("POST", "/v1/operations", {"cause": "restart", "vms": [POLLER]})["operations"][0]
        page.wait_for_function(f"{EVENTS} === 1", polling="raf")
        found.append(time.perf_counter() - started)
        control.call("POST", f"/v1/operations/{operation['id']}/cancel", {})
        page.wait_for_function(f"{EVENTS} === 0", polling="raf")
    page.context.close()
    return found


def _open_pages(
    context: Context, browser: Browser, service: Service
) -> tuple[list[float], list[float], list[tuple[float, float]]]:
    """Return the idle CPU in percent without and with open pages; and the polls per second, with their ratios."""
    wrk = Wrk(context.processes, service.folder)
    target = Target(service, service.metadata, "", response_bytes(service.metadata, ""))
    target.load(wrk, 1)  # warm-up
    idle: list[tuple[float, float]] = []
    rates: list[tuple[float, float]] = []
    for _ in range(context.rounds):
        idle_without = _idle_percent(service)
        without = target.load(wrk, ROUND_SECONDS).per_second
        pages = [_open(browser, service, "fleet" if each % 2 else "") for each in range(PAGES)]
        for page in pages[1::2]:
            page.wait_for_function(SQUARES)
        idle.append((idle_without, _idle_percent(service)))
        rates.append((without, target.load(wrk, ROUND_SECONDS).per_second))
        for page in pages:
            page.context.close()
        context.log(f"portal: {rates[-1][1]:,.0f} polls/s with {PAGES} pages, without {without:,.0f}")
    return [median(values) for values in zip(*idle, strict=True)], [after / before for before, after in rates], rates


def _idle_percent(service: Service) -> float:
    before = service.cpu_seconds()
    time.sleep(IDLE_SECONDS)
    return (service.cpu_seconds() - before) / IDLE_SECONDS * 100
