"""The config of an agent, as values. `reading` makes them of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from datetime import timedelta

    from forewarn.agent.handlers.handler import Handler
    from forewarn.agent.policy.rule import Rule


class NamedHandler(NamedTuple):
    """One `[handler.NAME]`."""

    name: str
    kind: str
    timeout: timedelta
    handler: Handler
    table: dict[str, Any]
    """As it is written: kept beside what it has prepared, so that it can undo that when the config has changed."""

    def does(self, action: str) -> str:
        """In words that follow 'would'; empty: nothing."""
        try:
            return str(self.handler.describe(action) or "")
        except Exception as error:  # noqa: BLE001 - code of others
            return f"do what it cannot describe ({type(error).__name__}: {error})"


class Member(NamedTuple):
    """Another agent, or this one."""

    vm: str
    host: str
    port: int


class PeersSettings(NamedTuple):
    """The `[peers]` of a config."""

    listen: tuple[str, int]
    secret: bytes
    members: tuple[Member, ...]
    """By VM name; this machine may be among them."""
    silence: timedelta
    """Who has not answered for so long is silent, and the next in line takes over."""


class Config(NamedTuple):
    """All that an agent is told by its file."""

    source: str = "(no config)"
    endpoint: str = ""
    vm_name: str = ""
    state: str = ""
    listen: tuple[str, int] | None = None
    """Where metrics and health are served; None: nowhere."""
    rules: tuple[Rule, ...] = ()
    handlers: dict[str, NamedHandler] = {}  # noqa: RUF012 - never changed
    peers: PeersSettings | None = None
