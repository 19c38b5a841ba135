"""What keeps the agent small: no TLS in memory as long as nobody speaks it."""

from __future__ import annotations

import sys
from typing import Any


def defer_tls() -> None:
    """Have http.client without ssl, until something asks for its HTTPSConnection.

    The endpoint speaks plain HTTP, and ssl is a fifth of the agent's memory. http.client allows for a Python that has
    no ssl; here it has none yet. For the agent's own process: it must be called before http.client is loaded.
    """
    if "http.client" in sys.modules or "ssl" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # how an import is made to fail
    try:
        import http.client
    finally:
        del sys.modules["ssl"]
    plain: Any = http.client

    def load(name: str) -> Any:
        if name != "HTTPSConnection":
            raise AttributeError(f"module 'http.client' has no attribute {name!r}")
        from importlib import reload

        del plain.__getattr__
        before = dict(vars(plain))
        reload(plain)
        vars(plain).update(before)  # whoever has its classes goes on to see the same ones
        return plain.HTTPSConnection

    plain.__getattr__ = load
