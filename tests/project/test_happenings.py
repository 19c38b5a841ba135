"""Every kind that the core writes to history has a row in HISTORY_KINDS."""

from __future__ import annotations

import ast
from pathlib import Path

from forewarn.core.history import HISTORY_KINDS, HOST_STATE_KINDS, ROLLOUT_END_KINDS

ROOT = Path(__file__).parents[2]
NOTES = {"record_event", "record_operation", "_record_rollout"}
TABLES = {
    "HOST_STATE_KINDS": set(HOST_STATE_KINDS.values()),
    "ROLLOUT_END_KINDS": set(ROLLOUT_END_KINDS.values()),
}
"""Kinds that depend on a state."""


def said() -> set[str]:
    """The words of history that stand in the sources of the core."""
    found: set[str] = set()
    for module in sorted((ROOT / "src" / "forewarn" / "core").glob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "HistoryEntry":
                words = [keyword.value for keyword in node.keywords if keyword.arg == "kind"] or node.args[1:2]
            else:
                words = node.args[2:3] if name in NOTES else []
            for word in words:
                found |= texts(word)
    return found


def texts(node: ast.expr) -> set[str]:
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.IfExp(body=body, orelse=otherwise):
            return texts(body) | texts(otherwise)
        case ast.Subscript(value=ast.Attribute(attr=table)):
            return TABLES[table]
        case _:  # handed on by one of the functions above
            return set()


def test_whatever_history_says_is_known() -> None:
    words = said()
    assert len(words) > 20
    assert words <= set(HISTORY_KINDS)
