"""Forewarn in the VM: the agent, and the client library that it is built on. Standard library only.

The library is had from here: Client, AsyncClient, Change, Document, Event, EndpointTrouble; and for handlers of one's
own Handler, HandlerFailed, Job. Each is imported when it is asked for: the agent does without some of them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from forewarn.agent.async_client import AsyncClient
    from forewarn.agent.changes import Change
    from forewarn.agent.client import Client
    from forewarn.agent.handlers.handler import Handler, Job
    from forewarn.errors import EndpointTrouble, HandlerFailed
    from forewarn.wire.document_reader import ToldDocument as Document
    from forewarn.wire.document_reader import ToldEvent as Event

__all__ = ["AsyncClient", "Change", "Client", "Document", "EndpointTrouble", "Event", "Handler", "HandlerFailed", "Job"]

_PLACES = {
    "AsyncClient": ("forewarn.agent.async_client", "AsyncClient"),
    "Change": ("forewarn.agent.changes", "Change"),
    "Client": ("forewarn.agent.client", "Client"),
    "Document": ("forewarn.wire.document_reader", "ToldDocument"),
    "EndpointTrouble": ("forewarn.errors", "EndpointTrouble"),
    "Event": ("forewarn.wire.document_reader", "ToldEvent"),
    "Handler": ("forewarn.agent.handlers.handler", "Handler"),
    "HandlerFailed": ("forewarn.errors", "HandlerFailed"),
    "Job": ("forewarn.agent.handlers.handler", "Job"),
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _PLACES[name]
    return getattr(import_module(module), attribute)
