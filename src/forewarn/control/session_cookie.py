"""The cookie of a session, and the check that a request with it comes from a page of this service.

A browser also sends the cookie with requests of foreign pages, unless they are of another site. SameSite=Strict counts
all ports of a host as one site, so the Origin header is checked too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from forewarn.errors import ForeignOrigin, shortened, shown

if TYPE_CHECKING:
    from starlette.types import Scope

SAFE_METHODS = frozenset(("GET", "HEAD"))
OWN_SITES = (None, "same-origin", "none")
"""Values of Sec-Fetch-Site: an older browser, a page of this service, and the user (an address that was typed in)."""
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class SentCookie(NamedTuple):
    """The cookie of a request."""

    secret: str
    scheme: str
    """The scheme of the pages that have the cookie."""


class SessionCookie:
    """The name and the attributes of the cookie.

    All ports of a host share cookies, so the name has the port that the browser uses. Nodes of one service behind one
    address therefore use the same name. A page that was loaded with HTTPS gets a cookie with the prefix `__Host-`: no
    other host and no page without TLS can set it. The service sees HTTPS by the Origin header, because a proxy in front
    of it may have the certificate.
    """

    def __init__(self, *, has_tls: bool = False) -> None:
        self._prefixes = {"https": "__Host-"} if has_tls else {"https": "__Host-", "http": ""}

    def read(self, scope: Scope) -> SentCookie | None:
        """Return the cookie of a request, if it has one."""
        cookies = cookie_parser("; ".join(Headers(scope=scope).getlist("cookie")))
        sent = (SentCookie(cookies.get(self._name(scope, scheme), ""), scheme) for scheme in self._prefixes)
        return next((cookie for cookie in sent if cookie.secret), None)

    def set_header(self, scope: Scope, scheme: str, secret: str, seconds: int) -> str:
        """Return the value of Set-Cookie. With 0 seconds, the browser forgets the cookie."""
        secure = "; Secure" if scheme == "https" else ""
        name = self._name(scope, scheme)
        return f"{name}={secret}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    def _name(self, scope: Scope, scheme: str) -> str:
        port = re.search(r":(\d+)$", _own_origin(scope, scheme), re.ASCII)
        return f"{self._prefixes[scheme]}forewarn" + (f"-{port[1]}" if port else "")

    def sign_in_scheme(self, scope: Scope) -> str:
        """Check that a page of this service sent the request to sign in. Return the scheme of the page."""
        is_secure = _origin(scope).startswith("https:") or "http" not in self._prefixes
        scheme = "https" if is_secure else "http"
        check_origin(scope, scheme)
        return scheme


def check_origin(scope: Scope, scheme: str) -> None:
    """Reject a request with a cookie that does not come from a page of this service. Raises ForeignOrigin."""
    site = Headers(scope=scope).get("sec-fetch-site")
    own = _own_origin(scope, scheme)
    if site not in OWN_SITES:
        raise ForeignOrigin(
            problem=f"The browser reports that another site sent it (Sec-Fetch-Site: {shortened(str(site))}).", own=own
        )
    if scope["method"] in SAFE_METHODS:
        return
    origin = _origin(scope)
    if origin != own:
        problem = f"It comes from {shown(origin)}." if origin else "It has no Origin header."
        raise ForeignOrigin(problem=problem, own=own)


def _origin(scope: Scope) -> str:
    values = Headers(scope=scope).getlist("origin")
    return values[0].lower() if len(values) == 1 else ""


def _own_origin(scope: Scope, scheme: str) -> str:
    host = Headers(scope=scope).get("host", "").lower().removesuffix(_DEFAULT_PORTS.get(scheme, ""))
    return f"{scheme}://{host}"
