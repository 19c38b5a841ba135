"""Documents as bytes, rendered once per change and version, when first asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.metadata.replies import document_reply, unchanged_reply
from forewarn.wire.document import entity_tag, render

if TYPE_CHECKING:
    from forewarn.engine.engine import Engine, Published
    from forewarn.wire.versions import ApiVersion


class Page(NamedTuple):
    """A document in one version: whole answers but for the common headers."""

    tag: str
    body: bytes
    found_head: bytes
    """An answer with the document, up to where the common headers go."""
    unchanged_head: bytes
    """A 304, up to where the common headers go."""


class Pages:
    """The document of every group that has asked, per version."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pages: dict[str, dict[str, Page]] = {}
        engine.subscribe(self._on_published)

    def page(self, group: str, version: ApiVersion) -> Page | None:
        """What the group is told in this version; None while its service is not enabled."""
        of_group = self._pages.get(group)
        page = of_group.get(version.name) if of_group is not None else None
        return page or self._render(group, version)

    def _render(self, group: str, version: ApiVersion) -> Page | None:
        document = self._engine.document(group)
        if not document.enabled:
            return None
        tag = entity_tag(document)
        body = render(document, version, self._engine.fleet.group(group).kind)
        page = Page(tag, body, document_reply(tag, body).head, unchanged_reply(tag).head)
        self._pages.setdefault(group, {})[version.name] = page
        return page

    def _on_published(self, published: Published) -> None:
        if published.fleet:
            self._pages.clear()
        for group in published.groups:
            self._pages.pop(group, None)
