"""Filters of lists and of history: shell patterns, and names that can never match."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forewarn.control.paging import prefix_hint, single_match
from forewarn.core.access import Role, api_tokens
from forewarn.core.shell_patterns import check_patterns, matcher, quoted
from forewarn.errors import (
    BadParameter,
    StoreFailed,
    UnknownEvent,
    UnknownHost,
    UnknownResource,
    UnknownVM,
    nearest,
    shown,
)
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forewarn.control.slices import Slices
    from forewarn.core.access import Token
    from forewarn.core.events import Event
    from forewarn.core.fleet import VM, Fleet
    from forewarn.core.operations import Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.engine.engine import Engine

_COMPARED_AT_ONCE = 1000
"""Comparisons of a name with a pattern, at up to 10 microseconds each, between two turns of other requests."""


async def matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match one of the patterns, in their order. Other requests get their turn in between."""
    check_patterns(patterns)
    matches, found = matcher(patterns, frozenset(names)), list[str]()
    size = max(1, _COMPARED_AT_ONCE // len(patterns))
    for start in range(0, len(names), size):
        found += filter(matches, names[start : start + size])
        await asyncio.sleep(0)
    return found


def vm_pattern(fleet: Fleet, caller: Token, text: str) -> str:
    """Return the pattern for the VMs of a filter. The name of a VM that the caller sees means this VM only."""
    if text in fleet.vms and caller.group in ("", fleet.vms[text].group):
        return quoted(text)
    check_patterns([text])
    return text


def one_of(name: str, text: str, known: Iterable[str]) -> str:
    """Return the matching word of a list, in any letter case; empty if none is given."""
    words = {word.lower(): word for word in known}
    if text and text.lower() not in words:
        problem = f"{shown(text)} is not one of {', '.join(words.values())}.{nearest(text, words.values())}"
        raise BadParameter(parameter=name, problem=problem, allowed=list(words.values()))
    return words[text.lower()] if text else ""


async def find_event(engine: Engine, caller: Token, event_id: str) -> Event:
    """Return the event with this id, in any letter case, or an unambiguous prefix of it."""
    prefix = event_id.lower()
    found = await engine.records.events_by_prefix(prefix, caller.group, caller.generation)
    if one := single_match(found):
        return one
    live = (event.id for event in engine.live_events() if caller.sees(event))
    raise UnknownEvent(event_id=event_id, hint=prefix_hint(found, prefix, live))


async def find_operation(engine: Engine, operation_id: str) -> Operation:
    """Return the operation with this id, or an unambiguous prefix of it."""
    prefix = operation_id.lower()
    found = await engine.records.operations_by_prefix(prefix)
    if one := single_match(found):
        return one
    live = (operation.id for operation in engine.live_operations())
    raise UnknownResource(what="operation", name=operation_id, hint=prefix_hint(found, prefix, live))


async def find_rollout(engine: Engine, rollout_id: str) -> Rollout:
    """Return the rollout with this id, or an unambiguous prefix of it."""
    prefix = rollout_id.lower()
    found = await engine.records.rollouts_by_prefix(prefix)
    if one := single_match(found):
        return one
    live = (rollout.id for rollout in engine.live_rollouts())
    raise UnknownResource(what="rollout", name=rollout_id, hint=prefix_hint(found, prefix, live))


def find_vm(fleet: Fleet, caller: Token, name: str) -> VM:
    """Return the VM of that name. For a tenant, VMs of other groups do not exist."""
    if caller.group:
        known = fleet.members(caller.group)
        if name not in known:
            raise UnknownVM(name=name, hint=nearest(name, known))
    return fleet.vm(name)


def visible_groups(caller: Token, requested: Iterable[str]) -> tuple[str, ...]:
    """Return the groups of a filter; empty: all groups. For a tenant, other groups do not exist."""
    groups, own = tuple(dict.fromkeys(requested)), caller.group
    for group in groups if own else ():
        if group != own:
            raise UnknownResource(what="group", name=group, hint=nearest(group, [own]))
    return (own,) if own else groups


class NameCheck:
    """Rejects names that neither the fleet nor history has: such a filter could never match.

    A deleted VM is still in history. A tenant gets the same error for an unknown VM and for a VM of another group. The
    hints name only what the caller may see.
    """

    def __init__(self, engine: Engine, slices: Slices, caller: Token) -> None:
        self._engine = engine
        self._slices = slices
        self._own = caller.group if caller.role is Role.TENANT else ""
        self._generation = caller.generation
        self._lists_tokens = caller.role is Role.ADMIN

    async def vm(self, name: str) -> None:
        fleet = self._engine.fleet
        known = fleet.members(self._own) if self._own else fleet.vms
        if name and name not in known and not await self._in_history(HistoryFilter(vm=name)):
            raise UnknownVM(name=name, hint=nearest(name, known))

    async def groups(self, names: Iterable[str]) -> None:
        fleet = self._engine.fleet
        for name in names:
            own_group = name in fleet.vms and fleet.vms[name].group == name
            if name in fleet.groups or own_group or await self._in_history(HistoryFilter(groups=(name,))):
                continue
            fleet.known_group(name)  # raises

    async def host(self, name: str) -> None:
        fleet = self._engine.fleet
        if name and not fleet.has_host(name) and not await self._in_history(HistoryFilter(host=name)):
            raise UnknownHost(name=name, hint=nearest(name, fleet.host_names()))

    async def author(self, name: str) -> None:
        """Check the name of a token or a VM that made a change."""
        tokens = [token.name for token in api_tokens(self._engine.draft())] if self._lists_tokens else []
        known = [*tokens, *(self._engine.fleet.members(self._own) if self._own else self._engine.fleet.vms)]
        if name and name not in known and not await self._in_history(HistoryFilter(by=name)):
            raise UnknownResource(what="user, token or VM", name=name, hint=nearest(name, known))

    async def _in_history(self, filters: HistoryFilter) -> bool:
        visible = filters._replace(groups=(self._own,), after=self._generation) if self._own else filters
        try:
            found = await self._engine.records.history(visible._replace(newest=True, limit=1))
        except StoreFailed:  # it may be there
            return True
        if not found:  # a hint follows, which is work
            await self._slices.turn()
        return bool(found)
