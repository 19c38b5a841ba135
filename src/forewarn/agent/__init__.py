"""Forewarn in the VM: the agent, and the client library that it is built on. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forewarn.agent.handlers.handler import Handler, Job
    from forewarn.errors import HandlerFailed

__all__ = ["Handler", "HandlerFailed", "Job"]

_WHERE = {
    "Handler": "forewarn.agent.handlers.handler",
    "HandlerFailed": "forewarn.errors",
    "Job": "forewarn.agent.handlers.handler",
}


def __getattr__(name: str) -> Any:
    """Each name is loaded when it is asked for: an agent at rest holds nothing that it does not use."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # see above

    return getattr(import_module(_WHERE[name]), name)
