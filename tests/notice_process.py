"""A notice world whose service is a process that is killed at any moment, with an operator's program as its fabric.

The time is virtual, and does not pass while a program runs. So work that a step starts goes on until the next step that
lets time pass, and requests, fleet files and kills fall into the middle of it.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from forewarn.ports import WorkOrder
from forewarn.testing import ServiceProcess
from notice_world import Refused, World

if TYPE_CHECKING:
    from pathlib import Path

    from notice_world import Step, Variant

PROGRAM = """#!/bin/sh
# The work of an order is done once, however often it is given.
test "$1" != inspect || {{ echo '{{"running": true, "boots": 1}}'; exit; }}
cd "{folder}" && read -r order || exit 75
operation=${{order#*'"operation": "'}}
operation=${{operation%%'"'*}}
test ! -e "done-$operation" || {{ cat "done-$operation"; exit; }}
test -p "go-$operation" || mkfifo "go-$operation"
echo "$order" >here
read -r hosts <"go-$operation"
echo "$hosts"
"""
LONGEST_WAIT_SECONDS = 60


class ProcessWorld(World):
    """The service in its own process."""

    def __init__(self, variant: Variant) -> None:
        super().__init__(variant)
        self._work = self._root / "work"
        self._work.mkdir()
        (self._work / "program").write_text(PROGRAM.format(folder=self._work))
        (self._work / "program").chmod(0o755)
        os.mkfifo(self._work / "here")
        self._here = os.open(self._work / "here", os.O_RDWR)
        self._gates: list[int] = []
        self._orders: dict[str, WorkOrder] = {}
        """Orders in progress."""
        self._choosing: set[str] = set()
        """Operations for which the fabric chooses the hosts."""
        self._arrived = threading.Condition()
        self._flows = False
        """Whether orders are done at once."""
        self._process = ServiceProcess(self._root / "service")
        self._reader = threading.Thread(target=self._read_orders, name="orders", daemon=True)
        self._reader.start()

    def close(self) -> None:
        try:
            os.write(self._here, b"\n")
            self._reader.join(LONGEST_WAIT_SECONDS)
            for operation in [*self._orders]:
                self._open_gate(operation, {})
            if self._process.process is not None:
                self._process.kill()
        finally:
            for gate in (self._here, *self._gates):
                os.close(gate)
            super().close()

    # --- The service ------------------------------------------------------------------------------------

    @property
    def _folder(self) -> Path:
        return self._root / "service" / "data"

    def _start(self) -> None:
        arguments = ("--fleet", str(self._root / "fleet.toml"), "--clock", "virtual", "--inactivity-timeout", "3660d")
        fabric = ("--fabric", "command", "--fabric-command", str(self._work / "program"))
        self.stopping = False
        try:
            self._process.start(*arguments, *fabric)
        except RuntimeError as error:
            self._process.process = None
            raise Refused(str(error)) from error
        self._token = self._process.token
        self._serving.set()
        self._settle()
        self._observe()

    def _stop(self, *, kill: bool = False) -> None:
        self._serving.clear()
        self._process.kill() if kill else self._process.stop()
        self._forget_connections()

    def _reload(self) -> None:
        assert self._process.process is not None
        before = self._process.output.count("\n")
        self._process.process.send_signal(signal.SIGHUP)
        for _ in range(LONGEST_WAIT_SECONDS * 100):
            new = "".join(self._process.output.splitlines(keepends=True)[before:])
            if "Reload failed" in new:
                raise Refused(new)
            if "Reload completed" in new:
                return
            self.request("GET", "/v1/clock")
        raise AssertionError("the service does not reload")

    def _settle(self) -> None:
        """Wait until every order that the service has given is known."""
        for _ in range(LONGEST_WAIT_SECONDS):
            todo = self.request("GET", "/v1/operations?todo=true&limit=1000")["operations"]
            missing = {one["id"] for one in todo if one["verb"] and one["executed_at"] is None} - self._orders.keys()
            if not missing:
                break
            with self._arrived:
                self._arrived.wait_for(partial(missing.issubset, self._orders), 1)
        else:
            raise AssertionError(f"the program did not start for {missing}")
        shown = self.request("GET", "/v1/clock")
        self._note_time(shown)

    # --- Work -------------------------------------------------------------------------------------------

    def _read_orders(self) -> None:
        text = b""
        while True:
            text += os.read(self._here, 65536)
            *lines, text = text.split(b"\n")
            for line in lines:
                if not line:
                    return
                given = json.loads(line)
                order = WorkOrder(
                    given["operation"],
                    tuple(given["vms"]),
                    cause=given["cause"],
                    host=given["host"] or "",
                    moves=tuple(given["moves"].items()),
                )
                self._begin(order, moves=given["verb"] in ("migrate", "redeploy"))

    def _begin(self, order: WorkOrder, *, moves: bool) -> None:
        for _ in range(LONGEST_WAIT_SECONDS):
            self._serving.wait(LONGEST_WAIT_SECONDS)
            try:
                # The time of the service stands still while a program runs.
                self.work_started(order, datetime.fromisoformat(self.request("GET", "/v1/clock")["now"]))
            except (OSError, http.client.HTTPException):  # it was killed
                self._control.pop(threading.get_ident(), None)
                continue
            break
        if moves and self.variant.chooses:
            self._choosing.add(order.operation)
        with self._arrived:
            self._orders[order.operation] = order
            self._arrived.notify_all()
        if self._flows:
            self._end(order)

    def _end(self, order: WorkOrder) -> None:
        hosts = self.choose_hosts(order) if order.operation in self._choosing else {}
        now = datetime.fromisoformat(self.request("GET", "/v1/clock")["now"])
        self.work_ended(order, now, hosts)
        self._open_gate(order.operation, hosts)
        self._orders.pop(order.operation, None)

    def _open_gate(self, operation: str, hosts: dict[str, str]) -> None:
        text = json.dumps({"hosts": hosts}) + "\n"
        (self._work / f"done-{operation}").write_text(text)
        self._gates.append(os.open(self._work / f"go-{operation}", os.O_RDWR))
        os.write(self._gates[-1], text.encode())

    # --- Steps --------------------------------------------------------------------------------------------

    def _do_advance(self, seconds: int) -> None:
        self._flows = True
        try:
            for order in [*self._orders.values()]:
                self._end(order)
            self._advance_clock(0)
            self._observe()
            super()._do_advance(seconds)
        finally:
            self._flows = False

    def _do_kill_during(self, count: int, *step: Any) -> None:
        """Kill the service while it executes a step, after so many other requests."""
        fleet = {name: dict(keys) for name, keys in self._fleet.items()}
        thread = threading.Thread(target=self._attempt, args=(step,))
        thread.start()
        for _ in range(count):
            self.request("GET", "/v1/clock")
        self._serving.clear()
        self._process.kill()
        thread.join()
        self._forget_connections()
        self._start_with_file(fleet)

    def _attempt(self, step: Step) -> None:
        name, *arguments = step
        with suppress(OSError, http.client.HTTPException, Refused):
            getattr(self, f"_do_{name.replace(' ', '_')}")(*arguments)

    def _do_fabric_fails(self, count: int) -> None:
        """Nothing: the program does not fail."""

    def _do_work_takes(self, minutes: int) -> None:
        """Nothing: work takes until the next step that lets time pass."""
