"""The shape of the house: layers, names, who reads the time. (docs/design.md)"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from forewarn.core.fleet import HostState
from forewarn.core.happenings import HAPPENINGS
from forewarn.core.rollout import Stage

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "forewarn"
MODULES = sorted(SOURCE.rglob("*.py"))

# What each part may import of Forewarn. The first prefix that fits a module decides.
ENGINE_PARTS = {
    "agenda",
    "archive",
    "carrier",
    "hearing",
    "reports",
    "retention",
    "store_thread",
    "timekeeper",
    "vitals",
    "writer",
}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "core": {"core", "errors"},
    "wire": {"wire", "core", "errors"},
    "ports": {"core"},
    "clock": set(),
    "settings": {"core", "errors"},
    "stores": {"stores", "ports", "core", "errors"},
    "fabrics": {"fabrics", "ports", "core", "errors"},
    **{part: {*ENGINE_PARTS, "clock", "ports", "core", "errors"} for part in ("engine", *ENGINE_PARTS)},
    "faults": {"engine", "clock", "ports", "core", "errors"},
    "scenarios": {"wire", "core", "errors"},
    "play": {"play", "engine", "faults", "clock", "ports", "wire", "core", "errors"},
    "server": {
        "server",
        "play",
        "scenarios",
        "engine",
        "faults",
        "clock",
        "vitals",
        "ports",
        "wire",
        "core",
        "errors",
        "settings",
    },
    # The composition root: it alone builds clock, store and fabric.
    "assembly": {
        "server",
        "play",
        "engine",
        "faults",
        "clock",
        "stores",
        "fabrics",
        "settings",
        "ports",
        "wire",
        "core",
        "errors",
    },
    # In the VM, from a single file and on an older Python: nothing of the service.
    "agent": {"agent", "wire", "core", "errors"},
    "testing": {"testing", "assembly", "scenarios", "engine", "settings", "wire", "core", "errors"},
    "pytest_plugin": {"testing"},
    "__main__": {"agent", "cli"},
    "verify": {"verify", "clock", "core", "errors"},
    "cli": {"cli", "agent", "assembly", "verify", "server", "scenarios", "settings", "ports", "wire", "core", "errors"},
}
# What only the composition root, and who starts it, needs.
BUILDS = {"assembly", "server"}
FORBIDDEN_NAMES = {"util", "utils", "helper", "helpers", "common", "base", "misc", "manager", "types", "models"}
LONGEST = 300


def part_of(module: Path) -> str:
    return module.relative_to(SOURCE).with_suffix("").parts[0]


def imports(module: Path) -> set[str]:
    """The parts of Forewarn that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "forewarn" and len(parts) > 1 and parts[1] != "__version__":
                found.add(parts[1])
    return found


@pytest.mark.parametrize("module", [m for m in MODULES if part_of(m) != "__init__"], ids=lambda m: m.stem)
def test_arrows_point_down_only(module: Path) -> None:
    part = part_of(module)
    assert part in MAY_IMPORT, f"{part} has no place in the layers"
    assert imports(module) - {part} <= MAY_IMPORT[part]


def test_only_the_composition_root_builds() -> None:
    builders = {module.name for module in MODULES if part_of(module) == "cli" and imports(module) & BUILDS}
    assert builders == {"up.py"}


def test_no_module_has_a_name_that_says_nothing() -> None:
    names = {part for module in MODULES for part in module.relative_to(SOURCE).with_suffix("").parts}
    assert not names & FORBIDDEN_NAMES


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.stem)
def test_modules_stay_small(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("module", [m for m in MODULES if m.name != "clock.py"], ids=lambda m: m.stem)
def test_only_the_clock_reads_the_time(module: Path) -> None:
    tree = ast.parse(module.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert "time" not in {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.module != "time"
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"utcnow", "today"}
            assert not (node.attr == "now" and isinstance(node.value, ast.Name) and node.value.id == "datetime")


@pytest.mark.parametrize("script", sorted(SOURCE.rglob("*.sql")), ids=lambda path: path.stem)
def test_no_sql_reads_the_time(script: Path) -> None:
    text = script.read_text().lower()
    for word in ("now(", "current_timestamp", "current_time", "current_date", "datetime(", "julianday", "'now'"):
        assert word not in text


@pytest.mark.parametrize("module", [m for m in MODULES if part_of(m) in ("core", "wire")], ids=lambda m: m.stem)
def test_the_core_and_the_wire_do_no_input_or_output(module: Path) -> None:
    tree = ast.parse(module.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {
        "os",
        "socket",
        "logging",
        "asyncio",
        "threading",
        "subprocess",
        "pathlib",
        "sqlite3",
        "random",
    }
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"open", "print", "input"}


NOTED_BY = {"Entry": 1, "note_event": 2, "note_operation": 2, "_note": 2}
"""What writes history, and which of its arguments is the word for what has happened."""


def test_every_word_of_history_has_a_row() -> None:
    """Webhooks can be narrowed to these words: one without a row could not be asked for."""
    said = {f"host {state}" for state in HostState} | {f"rollout {stage}" for stage in Stage if not stage.live}
    for module in [module for module in MODULES if part_of(module) == "core"]:
        for call in [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]:
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in NOTED_BY:
                given = [keyword.value for keyword in call.keywords if keyword.arg == "what"]
                words = given or call.args[NOTED_BY[name] : NOTED_BY[name] + 1]
                said |= {
                    node.value
                    for word in words
                    if not isinstance(word, ast.JoinedStr)
                    for node in ast.walk(word)
                    if isinstance(node, ast.Constant) and isinstance(node.value, str)
                }
    assert said == set(HAPPENINGS)


def test_wire_names_live_only_in_the_wire() -> None:
    for module in MODULES:
        # What verifies states the wire once more, by itself: a mistake in one must not be the same mistake in both.
        if part_of(module) in ("wire", "errors", "verify"):
            continue
        strings = {
            node.value
            for node in ast.walk(ast.parse(module.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not strings & {
            "NotBefore",
            "EventId",
            "EventStatus",
            "DocumentIncarnation",
            "StartRequests",
            "Resources",
        }
