"""Whatever history can say has a row in HISTORY_KINDS, and in the reference."""

from __future__ import annotations

import ast
from pathlib import Path

from forewarn.core.fleet import HostState
from forewarn.core.history import HISTORY_KINDS
from forewarn.core.rollouts import RolloutStatus

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
NOTES = {"note_event", "note_operation", "_note"}
PLACES: dict[str, list[str]] = {
    "state": list(HostState),
    "HostState.IN_SERVICE": [HostState.IN_SERVICE],
    "status": [RolloutStatus.DONE, RolloutStatus.STOPPED],
}
"""What stands in the words that are put together."""


def said() -> set[str]:
    """The words of history that stand in the sources of the core."""
    found: set[str] = set()
    for module in sorted((ROOT / "src" / "forewarn" / "core").glob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "Entry":
                words = [keyword.value for keyword in node.keywords if keyword.arg == "what"] or node.args[1:2]
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
        case ast.JoinedStr(values=[ast.Constant(value=str(start)), ast.FormattedValue(value=value)]):
            return {f"{start}{place}" for place in PLACES[ast.unparse(value)]}
        case _:  # handed on by one of the functions above
            return set()


def test_whatever_history_says_is_known() -> None:
    words = said()
    assert len(words) > 20
    assert words <= set(HISTORY_KINDS)


def test_every_happening_is_in_the_reference() -> None:
    wanted = [f"| `{what.replace(' ', '-')}` | {says} |" for what, says in HISTORY_KINDS.items()]
    missing = [row for row in wanted if row not in REFERENCE]
    assert not missing, "\n".join(missing)
