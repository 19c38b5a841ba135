"""Render the Scheduled Events document, and parse approvals (docs/explanation/contract.md, sections 2 and 3)."""

from __future__ import annotations

import json
import re
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from forewarn.core.events import EventStatus
from forewarn.core.fleet import GroupKind
from forewarn.errors import BadStartRequests

if TYPE_CHECKING:
    from forewarn.core.events import Document, Event
    from forewarn.wire.versions import ApiVersion


_TAG = re.compile(r"([0-9]{1,15})\.([0-9]{1,15})\.([0-9a-f]{8})")
"""An ETag without its quotes. A client can send anything."""


def render(document: Document, version: ApiVersion, kind: str) -> bytes:
    """Render the document for an api-version: one line of compact JSON, with fields in Azure's order."""
    events = [_render_event(event, version, kind) for event in document.events if event.type in version.event_types]
    whole = {"DocumentIncarnation": document.incarnation, "Events": events}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()


def _render_event(event: Event, version: ApiVersion, kind: str) -> dict[str, Any]:
    # The first preview has the underscore only for IaaS, not for cloud services.
    prefix = "_" if version.underscore and kind != GroupKind.CLOUD_SERVICE else ""
    fields = {
        "EventId": event.id.upper(),
        "EventStatus": event.status.value,
        "EventType": event.type,
        "ResourceType": "VirtualMachine",
        "Resources": [prefix + name for name in event.resources],
        "NotBefore": format_datetime(event.not_before, usegmt=True) if event.status is EventStatus.SCHEDULED else "",
        "Description": event.description,
        "EventSource": event.source.value,
        "DurationInSeconds": -1 if event.duration is None else round(event.duration.total_seconds()),
    }
    return {name: value for name, value in fields.items() if name in version.fields}


def entity_tag(document: Document) -> str:
    """Return the ETag: enabling, incarnation, and a checksum of the scope.

    Incarnations restart with each enabling, and an old `0` must not match. A VM can move to another scope, and a tag of
    its old scope must not match either. Tags of a scope are ordered: see `is_newer`.
    """
    return f'"{document.enabling}.{document.incarnation}.{crc32(document.scope.encode()):08x}"'


def tag_matches(if_none_match: str, tag: str) -> bool:
    """Return whether an If-None-Match matches this tag: quoted, bare, weak, in a list, or `*`."""
    bare = tag.strip('"')
    for candidate in if_none_match.split(","):
        text = candidate.strip(" \t")
        if text == "*" or text.removeprefix("W/") in (tag, bare):
            return True
    return False


def is_newer(if_none_match: str, tag: str) -> bool:
    """Return whether an If-None-Match has a tag of a later document of the same scope than this tag."""
    known = _parse_tag(tag)
    return known is not None and max(_tags_of_scope(if_none_match, known.scope), default=known) > known


def newest_tag(if_none_match: str, tag: str) -> str:
    """Return the tag of the latest document in an If-None-Match, of the scope of this tag. `is_newer` must be true."""
    newest = max(_tags_of_scope(if_none_match, tag.strip('"').rpartition(".")[2]))
    return f'"{newest.enabling}.{newest.incarnation}.{newest.scope}"'


class _Tag(NamedTuple):
    enabling: int
    incarnation: int
    scope: str


def _tags_of_scope(if_none_match: str, scope: str) -> list[_Tag]:
    found = map(_parse_tag, if_none_match.split(","))
    return [tag for tag in found if tag is not None and tag.scope == scope]


def _parse_tag(text: str) -> _Tag | None:
    """Return the parts of a tag; None: it is not from this service."""
    found = _TAG.fullmatch(text.strip(" \t").removeprefix("W/").strip('"'))
    return _Tag(int(found[1]), int(found[2]), found[3]) if found else None


def parse_start_requests(body: bytes) -> list[str]:
    """Return the event ids of an approval, in lower case as in the core.

    DocumentIncarnation and unknown members are ignored.
    """
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadStartRequests(problem="The body is not JSON.") from error
    if not isinstance(parsed, dict):
        raise BadStartRequests(problem="The body is not a JSON object.")
    requests = parsed.get("StartRequests")
    if not isinstance(requests, list) or not requests:
        raise BadStartRequests(problem="StartRequests is missing, empty or not an array.")
    ids = []
    for request in requests:
        event_id = request.get("EventId") if isinstance(request, dict) else None
        if not isinstance(event_id, str):
            raise BadStartRequests(problem="A start request has no EventId that is a string.")
        ids.append(event_id.lower())
    return ids
