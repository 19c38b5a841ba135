"""The access log: one line for each request, in the same form for the metadata service and the control API."""

from __future__ import annotations

from forewarn.system.logs import get_logger

_log = get_logger(__name__)


def log_access(
    plane: str, caller: str, address: str, method: str, path: str, status: int, size: int, seconds: float
) -> None:
    """Log a request. `caller` is the name of the VM or of the token; empty if it is unknown.

    The path has no query and `size` is that of the body of the response.
    """
    _log.info(
        "http_request",
        "Request.",
        plane=plane,
        caller=caller or None,
        address=address,
        method=method,
        path=path,
        status=status,
        bytes=size,
        seconds=round(seconds, 6),
    )
