"""Serves the files of the portal at /portal/. They are public: everything that needs a token comes from /v1.

The pages route on the client, so every path outside of /portal/static/ returns the same page.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from forewarn.control.entity_tags import tagged_response
from forewarn.errors import UnknownPath

if TYPE_CHECKING:
    from starlette.requests import Request

FOLDER = Path(__file__).parent / "static"
PAGE = "index.html"

MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
"""By the end of a file's name. The tables of the system differ between machines. Starlette adds the charset."""

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "font-src 'none'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)


class PortalFile(NamedTuple):
    """A file of the portal, in memory."""

    content: bytes
    media_type: str
    tag: str


def read_files(folder: Path = FOLDER) -> dict[str, PortalFile]:
    """Read all files of a folder, by their path in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            tag = f'"{sha256(content).hexdigest()[:32]}"'
            found[path.relative_to(folder).as_posix()] = PortalFile(content, MEDIA_TYPES[path.suffix], tag)
    return found


class Portal:
    """The files, each read once."""

    def __init__(self) -> None:
        self._files = read_files()

    def routes(self) -> list[Route]:
        return [
            Route("/", self.redirect),
            Route("/portal", self.redirect),
            Route("/portal/static/{path:path}", self.file),
            Route("/portal/{path:path}", self.page),
        ]

    async def redirect(self, _: Request) -> Response:
        """Redirect to the portal. A relative URL, because the client controls the Host header."""
        return RedirectResponse("portal/")

    async def page(self, request: Request) -> Response:
        return self._response(request, PAGE)

    async def file(self, request: Request) -> Response:
        return self._response(request, request.path_params["path"])

    def _response(self, request: Request, name: str) -> Response:
        found = self._files.get(name)
        if found is None:
            raise UnknownPath(path=request.url.path, hint=" The portal has no such file.")
        headers = {"content-security-policy": CONTENT_SECURITY_POLICY}
        return tagged_response(request, found.content, found.tag, found.media_type, headers)
