"""The agent that runs in the VM, and its client library. Standard library only.

Import the library's names from here: Client, AsyncClient, Change, Document, Event, EndpointError; and, for your own
handlers, Handler, HandlerFailed, Job. Each name is imported on first use, because the agent does not need all of them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from forewarn.agent.async_client import AsyncClient
    from forewarn.agent.changes import Change
    from forewarn.agent.client import Client
    from forewarn.agent.handlers.handler import Handler, Job
    from forewarn.errors import EndpointError, HandlerFailed
    from forewarn.wire.document_reader import EventsDocument as Document
    from forewarn.wire.document_reader import ScheduledEvent as Event

__all__ = ["AsyncClient", "Change", "Client", "Document", "EndpointError", "Event", "Handler", "HandlerFailed", "Job"]

_PLACES = {
    "AsyncClient": ("forewarn.agent.async_client", "AsyncClient"),
    "Change": ("forewarn.agent.changes", "Change"),
    "Client": ("forewarn.agent.client", "Client"),
    "Document": ("forewarn.wire.document_reader", "EventsDocument"),
    "EndpointError": ("forewarn.errors", "EndpointError"),
    "Event": ("forewarn.wire.document_reader", "ScheduledEvent"),
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
