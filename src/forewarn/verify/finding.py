"""Section 7 of the contract: the endpoint under the names that clients find it by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.verify.check import Mark, Rules
from forewarn.verify.endpoint import NEWEST, at
from forewarn.verify.sight import read

if TYPE_CHECKING:
    from forewarn.verify.stage import Stage

rules = Rules(7, "finding")


@rules("path-of-a-library", Mark.OBSERVED, "One library writes the path /metadata/scheduledEvents.")
def path_of_a_library(stage: Stage) -> None:
    read(stage.here.ask(target=at(NEWEST, "/metadata/scheduledEvents")))


@rules("path-in-any-case", Mark.ASSUMED, "Letter case of the path means nothing.")
def path_in_any_case(stage: Stage) -> None:
    read(stage.here.ask(target=at(NEWEST, "/Metadata/SCHEDULEDEVENTS")))


@rules("any-host", Mark.OBSERVED, "The endpoint is found by an address from DHCP too: the header Host means nothing.")
def any_host(stage: Stage) -> None:
    for host in ("10.0.0.4", "metadata.example", "10.0.0.4:8080"):
        read(stage.here.ask(host=host))


@rules("no-host", Mark.ASSUMED, "A request of HTTP/1.0 without Host is served.")
def no_host(stage: Stage) -> None:
    read(stage.here.ask(protocol="1.0", host=None))


@rules("no-redirect", Mark.ASSUMED, "Who asks at the address gets the answer there, without being sent elsewhere.")
def no_redirect(stage: Stage) -> None:
    reply = stage.here.ask()
    reply.must(not 300 <= reply.status < 400 or reply.status == 304, "an answer, no redirect")
