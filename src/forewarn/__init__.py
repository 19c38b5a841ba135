"""Forewarn notifies every machine before something happens to it, and lets it respond."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    """Read the version on first use. Importing importlib.metadata always would cost an idle agent memory."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import version

    return version("forewarn")
