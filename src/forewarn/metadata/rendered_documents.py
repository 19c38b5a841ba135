"""Documents rendered to bytes: once per change and api-version, on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.metadata.rendered_responses import document_response, not_modified_response
from forewarn.wire.document import entity_tag, render

if TYPE_CHECKING:
    from forewarn.engine.engine import Engine, Published
    from forewarn.wire.versions import ApiVersion


class RenderedDocument(NamedTuple):
    """A document at one api-version, with the heads of its 200 and 304 responses."""

    tag: str
    body: bytes
    ok_head: bytes
    """Head of a 200 response, up to the common headers."""
    not_modified_head: bytes
    """Head of a 304 response, up to the common headers."""


class RenderedDocuments:
    """Rendered documents by scope and api-version."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._documents: dict[str, dict[str, RenderedDocument]] = {}
        engine.subscribe(self._on_published)

    def find(self, scope: str, version: ApiVersion) -> RenderedDocument | None:
        """Return the scope's document at this api-version, or None while the scope is not enabled."""
        of_scope = self._documents.get(scope)
        page = of_scope.get(version.name) if of_scope is not None else None
        return page or self._render(scope, version)

    def _render(self, scope: str, version: ApiVersion) -> RenderedDocument | None:
        document = self._engine.document(scope)
        if not document.enabled:
            return None
        tag = entity_tag(document)
        body = render(document, version, self._engine.fleet.group_of(scope).kind)
        page = RenderedDocument(tag, body, document_response(tag, body).head, not_modified_response(tag).head)
        self._documents.setdefault(scope, {})[version.name] = page
        return page

    def _on_published(self, published: Published) -> None:
        if published.fleet:
            self._documents.clear()
        for scope in published.scopes:
            self._documents.pop(scope, None)
