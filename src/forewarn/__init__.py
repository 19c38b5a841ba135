"""Forewarn: every machine is told before something happens to it, and may answer."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    """The version is looked up when it is asked for: that costs an agent at rest memory for nothing."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import version

    return version("forewarn")
