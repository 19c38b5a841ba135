"""Finding the endpoint: what is given is used; else the address that Azure has, else what DHCP says."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.agent.endpoint.address import PORTS, Endpoint, read_endpoint
from forewarn.agent.endpoint.leases import LEASES, option_245
from forewarn.errors import EndpointNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLE = "FOREWARN_ENDPOINT"
LINK_LOCAL = "169.254.169.254"
_PATIENCE = 3.0
"""Seconds for a connection. The endpoint is in the machine's own host: it is there at once, or it is not there."""


def accepts(host: str, port: int) -> bool:
    """Whether a connection can be made. Straight to there: a proxy is another machine, whose events are not ours."""
    try:
        with socket.create_connection((host, port), _PATIENCE):
            return True
    except OSError:
        return False


def find_endpoint(
    given: str = "",
    environment: Mapping[str, str] | None = None,
    root: Path = Path("/"),
    reachable: Callable[[str, int], bool] = accepts,
    *,
    given_by: str = "--endpoint",
) -> Endpoint:
    """Where to ask for Scheduled Events.

    What is given, or else FOREWARN_ENDPOINT, is used, whether it answers or not, and nothing else is tried.
    Changes nothing: it can be called again whenever there is trouble.
    """
    if given.strip():
        return read_endpoint(given, given_by)
    from_environment = (os.environ if environment is None else environment).get(VARIABLE, "")
    if from_environment.strip():
        return read_endpoint(from_environment, VARIABLE)
    port = PORTS["http"]
    if reachable(LINK_LOCAL, port):
        return Endpoint("http", LINK_LOCAL, port, "the link-local address")
    told: dict[str, Path] = {}
    for address, path in option_245(root):
        told.setdefault(address, path)
    if not told:
        clients = ", ".join(files.client for files in LEASES)
        problem = (
            f"{LINK_LOCAL} takes no connection, and no DHCP lease has option 245 (looked for in what {clients} keep)."
        )
        raise EndpointNotFound(problem=problem)
    # None that answers: the first is as good as any, and may be up again soon.
    first = next(iter(told))
    chosen = next((address for address in told if address != LINK_LOCAL and reachable(address, port)), first)
    return Endpoint("http", chosen, port, f"DHCP option 245 in {told[chosen]}")
