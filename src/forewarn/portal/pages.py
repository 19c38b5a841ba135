"""Serves the files of the portal at /portal/. They are public: everything that needs a token comes from /v1.

The pages route on the client, so every path outside of /portal/static/ returns the same page. The page names the
version of all files in their paths, so that browsers keep them. It lists all modules, so that browsers load them at
once.
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
KEEP = "public, max-age=31536000, immutable"
VERSION, MODULE = "VERSION", "MODULE"
"""Words in the page: the version of the files, and the path of a module in a line that is repeated for each one."""

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


def complete_page(text: str, version: str, modules: list[str]) -> str:
    """Return the page with the version and the modules."""
    lines = []
    for line in text.replace(VERSION, version).splitlines():
        lines += [line.replace(MODULE, module) for module in modules] if MODULE in line else [line]
    return "\n".join([*lines, ""])


class Portal:
    """The files, each read once."""

    def __init__(self) -> None:
        self._files = read_files()
        self.version = sha256("".join(file.tag for file in self._files.values()).encode()).hexdigest()[:16]
        modules = [name for name in self._files if name.endswith(".js")]
        content = complete_page(self._files[PAGE].content.decode(), self.version, modules).encode()
        self._page = self._files.pop(PAGE)._replace(content=content, tag=f'"{self.version}"')

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
        return _response(request, self._page)

    async def file(self, request: Request) -> Response:
        """Return a file. A page of another release, during an upgrade of several nodes, gets it for this time only."""
        version, _, name = request.path_params["path"].partition("/")
        found = self._files.get(name)
        if found is None:
            raise UnknownPath(path=request.url.path, hint=" The portal has no such file.")
        return _response(request, found, {"cache-control": KEEP} if version == self.version else {})


def _response(request: Request, file: PortalFile, headers: dict[str, str] | None = None) -> Response:
    sent = {"content-security-policy": CONTENT_SECURITY_POLICY, **(headers or {})}
    return tagged_response(request, file.content, file.tag, file.media_type, sent)
