"""The structure of the source: layers, names, and the modules that read the time. (docs/explanation/design.md)"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.core.fleet import HostState
from forewarn.core.history import HISTORY_KINDS, HOST_STATE_KINDS, ROLLOUT_END_KINDS
from forewarn.core.rollouts import RolloutStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "forewarn"
MODULES = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
CLOCKS = {SOURCE / "clock.py", SOURCE / "agent" / "clock.py"}
SCRIPTS = sorted(SOURCE.rglob("*.sql"))

# From top to bottom. A part may import parts of lower layers, and of its own layer only itself.
LAYERS = (
    ("cli", "testing", "pytest_plugin"),
    ("assembly",),
    ("portal",),
    ("control",),
    ("metadata", "delivery", "nodes"),
    ("engine",),
    ("settings", "clock", "ports"),
    ("files", "wire", "system"),
    ("core",),
    ("errors",),
)
LAYER_OF = {part: number for number, layer in enumerate(LAYERS) for part in layer}
# Parts beside the layers, and all that each may import. Only `assembly` imports stores and fabrics.
BESIDE: dict[str, set[str]] = {
    "stores": {"stores", "ports", "files", "wire", "system", "core", "errors"},
    "fabrics": {"fabrics", "ports", "files", "wire", "system", "core", "errors"},
    # In the VM, from a single file and on an older Python: nothing of the service.
    "agent": {"agent", "wire", "system", "files.toml_reader", "core.durations", "core.event_types", "errors"},
    # A client of the control API.
    "scenarios": {"scenarios", "clock", "files", "wire", "core", "errors"},
    # States the contract a second time, on purpose.
    "verify": {"verify", "clock", "errors"},
    "__main__": {"agent", "cli", "system"},
}
ALSO = {
    "cli": {"agent", "scenarios", "verify"},
    "assembly": {"stores", "fabrics"},
    "pytest_plugin": {"testing"},
    "testing": {"scenarios"},
}


def may_import(part: str, module: str) -> bool:
    """Whether a part may import a module, whose name begins with its part."""
    imported = module.partition(".")[0]
    if part in BESIDE:
        return imported in BESIDE[part] or ".".join(module.split(".")[:2]) in BESIDE[part]
    if imported == part or imported in ALSO.get(part, ()):
        return True
    return imported in LAYER_OF and LAYER_OF[imported] > LAYER_OF[part]


# What only the composition root, and who starts it, needs.
BUILDS = {"assembly", "control", "engine"}
FORBIDDEN_NAMES = {"util", "utils", "helper", "helpers", "common", "base", "misc", "manager", "types", "models"}
INPUT_AND_OUTPUT = {
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
SQL_TIME = (
    "now(",
    "clock_timestamp",
    "current_timestamp",
    "current_time",
    "current_date",
    "datetime(",
    "julianday",
    "'now'",
)
WIRE_NAMES = {
    "NotBefore",
    "EventId",
    "EventStatus",
    "DocumentIncarnation",
    "StartRequests",
    "Resources",
}


def part_of(module: Path) -> str:
    return module.relative_to(SOURCE).with_suffix("").parts[0]


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def imported(module: Path) -> Iterator[tuple[str, int]]:
    """The full name of everything that a module imports, with the line."""
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def imported_modules(module: Path) -> Iterator[tuple[str, int]]:
    """The modules of Forewarn that a module imports, with what it takes from them and the line."""
    for name, line in imported(module):
        package, _, rest = name.partition(".")
        if package == "forewarn" and rest not in ("", "__version__", "vendored.tomllib"):
            yield rest, line


def report(violations: list[str]) -> str:
    return "\n".join([f"{len(violations)} violations:", *violations])


def test_there_are_modules_and_scripts_to_check() -> None:
    assert {part_of(module) for module in MODULES} - {"__init__"} == {*LAYER_OF, *BESIDE}
    assert SCRIPTS


def test_imports_point_down_only() -> None:
    violations = [
        f"{place(module, line)}: {part_of(module)} imports {name}"
        for module in MODULES
        if part_of(module) != "__init__"
        for name, line in imported_modules(module)
        if not may_import(part_of(module), name)
    ]
    assert not violations, report(violations)


def test_only_the_composition_root_builds() -> None:
    builders = {
        module.name
        for module in MODULES
        if part_of(module) == "cli"
        and not BUILDS.isdisjoint(name.partition(".")[0] for name, _ in imported_modules(module))
    }
    # The others work on the store itself, which only the composition root knows.
    assert builders == {"up.py", "backup.py", "restore.py", "database.py"}


def test_no_module_has_a_meaningless_name() -> None:
    names = {part for module in MODULES for part in module.relative_to(SOURCE).with_suffix("").parts}
    assert not names & FORBIDDEN_NAMES


HANDLES = {"Event", "Group", "VM"}
"""Classes of the test kit that act on the thing of the core with the same name, for example `vm.poll()`."""


def test_class_names_are_unique() -> None:
    places: dict[str, list[Path]] = {}
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    repeated = {name for name, modules in places.items() if len(modules) > 1}
    violations = [f"{name}: {', '.join(place(module, 1) for module in places[name])}" for name in repeated - HANDLES]
    assert not violations, report(violations)
    for name in HANDLES:
        assert sorted(part_of(module) for module in places[name]) == ["core", "testing"]


def time_readings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """What in a module reads the time, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and "time" in {alias.name for alias in node.names}:
            yield "imports time", node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield "imports from time", node.lineno
        if isinstance(node, ast.Attribute) and (
            node.attr in {"utcnow", "today"}
            or (node.attr == "now" and isinstance(node.value, ast.Name) and node.value.id == "datetime")
        ):
            yield f"uses {ast.unparse(node)}", node.lineno


def test_only_the_clock_reads_the_time() -> None:
    violations = [
        f"{place(module, line)}: {what}"
        for module, tree in MODULES.items()
        if module not in CLOCKS
        for what, line in time_readings(tree)
    ]
    assert not violations, report(violations)


WRITES_TIME = {
    "core/durations.py": "the one home",
    "wire/document_reader.py": "NotBefore as any endpoint writes it",
    "wire/versions.py": "an api-version is a date",
}


def time_formats(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the calls in a module that parse or format a time, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"isoformat", "fromisoformat", "strftime", "strptime"}:
            yield f"uses {node.attr}", node.lineno
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None and "%" in ast.unparse(node):
            yield f"formats {ast.unparse(node.value)}", node.lineno


def test_times_are_parsed_and_formatted_in_one_place() -> None:
    violations = [
        f"{place(module, line)}: {what}; use core/durations.py"
        for module, tree in MODULES.items()
        if part_of(module) != "verify" and module.relative_to(SOURCE).as_posix() not in WRITES_TIME
        for what, line in time_formats(tree)
    ]
    assert not violations, report(violations)


CHANGING = {"add", "append", "clear", "discard", "extend", "pop", "popitem", "remove", "setdefault", "update"}
"""Methods of collections that change them."""


def state_changes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Where a module changes what it reaches through the state or a new draft of the engine."""

    def reaches_state(node: ast.AST) -> bool:
        text = ast.unparse(node).replace("request.state.", "")  # that is the web framework's
        return ".state." in text or "state." in text.split("(")[0] or "engine.draft()." in text

    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
            targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target]
            yield from ((ast.unparse(target), node.lineno) for target in targets if reaches_state(target))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
            yield from ((ast.unparse(node.func), node.lineno) for _ in range(reaches_state(node.func.value)))


def test_only_the_writer_changes_the_state() -> None:
    changing = ast.parse(
        "def f(): self._writer.state.last_seen.update(x); engine.draft().webhook_deliveries.lost[name] += 1"
    )
    assert len(list(state_changes(changing))) == 2
    violations = [
        f"{place(module, line)}: {what}"
        for module, tree in MODULES.items()
        if part_of(module) not in ("core", "agent") and module != SOURCE / "engine" / "writer.py"
        for what, line in state_changes(tree)
    ]
    assert not violations, report(violations)


def test_no_sql_reads_the_time() -> None:
    violations = [
        f"{place(script, number)}: {word}"
        for script in SCRIPTS
        if script.name != "postgresql_nodes.sql" and script.parent.name != "postgresql_migrations"  # the lease
        for number, line in enumerate(script.read_text().lower().splitlines(), 1)
        for word in SQL_TIME
        if word in line
    ]
    assert not violations, report(violations)


def test_the_core_and_the_wire_do_no_input_or_output() -> None:
    violations = []
    for module, tree in MODULES.items():
        if part_of(module) not in ("core", "wire"):
            continue
        violations += [
            f"{place(module, line)}: imports {name}"
            for name, line in imported(module)
            if name.partition(".")[0] in INPUT_AND_OUTPUT
        ]
        violations += [
            f"{place(module, node.lineno)}: calls {node.func.id}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if node.func.id in {"open", "print", "input"}
        ]
    assert not violations, report(violations)


KIND_ARGUMENT = {
    "HistoryEntry": 1,
    "operation_entry": 1,
    "record_event": 2,
    "record_operation": 2,
    "_record_rollout": 2,
    "DatabaseChange": 0,
}
"""The functions that write history, and the position of their argument `kind`."""
KINDS_BY_STATE = {"HOST_STATE_KINDS": HOST_STATE_KINDS.values(), "ROLLOUT_END_KINDS": ROLLOUT_END_KINDS.values()}
"""Tables in which the core looks up a kind."""


def kinds_in(argument: ast.expr) -> set[str]:
    """Return the history kinds that an argument can have. An unknown table is a KeyError."""
    match argument:
        case ast.Constant(value=str(kind)):
            return {kind}
        case ast.IfExp(body=body, orelse=otherwise):
            return kinds_in(body) | kinds_in(otherwise)
        case ast.Subscript(value=ast.Attribute(attr=table)) | ast.Subscript(value=ast.Name(id=table)):
            return set(KINDS_BY_STATE[table])
        case _:  # a variable: the call that sets it is checked instead
            return set()


def test_history_kinds_lists_exactly_the_kinds_that_are_written() -> None:
    """Webhooks filter by these kinds, so a kind that is not listed could not be selected."""
    assert set(HOST_STATE_KINDS) == set(HostState)
    assert set(ROLLOUT_END_KINDS) == {status for status in RolloutStatus if not status.live}
    written: set[str] = set()
    for tree in [tree for module, tree in MODULES.items() if part_of(module) in ("core", "stores")]:
        for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in KIND_ARGUMENT:
                position = KIND_ARGUMENT[name]
                keywords = [keyword.value for keyword in call.keywords if keyword.arg == "kind"]
                for argument in keywords or call.args[position : position + 1]:
                    written |= kinds_in(argument)
    assert written == set(HISTORY_KINDS)


def test_wire_names_live_only_in_the_wire() -> None:
    # verify states the wire a second time, on purpose: a mistake in one must not be the same mistake in both.
    violations = [
        f"{place(module, node.lineno)}: {node.value!r}"
        for module, tree in MODULES.items()
        if part_of(module) not in ("wire", "errors", "verify")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in WIRE_NAMES
    ]
    assert not violations, report(violations)


LOG_LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
EVENT_NAME = re.compile("[a-z][a-z0-9]*(_[a-z0-9]+)+")


def log_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Every call of a module's EventLogger, which is called `_log`."""
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if isinstance(node.value.func, ast.Name) and node.value.func.id == "get_logger"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert names <= {"_log"}, names
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and (node.func.value.id, node.func.attr) in {(name, level) for name in names for level in LOG_LEVELS}
        ):
            yield node


def test_log_events_have_literal_snake_case_names_with_one_meaning() -> None:
    violations = []
    messages: dict[str, set[str]] = {}
    for module, tree in MODULES.items():
        for call in log_calls(tree):
            name = call.args[0] if call.args else None
            value = name.value if isinstance(name, ast.Constant) else None
            if not isinstance(value, str) or not EVENT_NAME.fullmatch(value):
                violations.append(f"{place(module, call.lineno)}: the event name is not a snake_case literal")
            elif len(call.args) != 2:
                violations.append(f"{place(module, call.lineno)}: {value} has no message")
            else:
                messages.setdefault(value, set()).add(ast.unparse(call.args[1]))
    violations += [f"{name} has {len(found)} messages: {found}" for name, found in messages.items() if len(found) > 1]
    assert messages
    assert not violations, report(violations)


PRINTS = {SOURCE / "system" / "printable.py", SOURCE / "cli" / "output.py"}
AROUND = re.compile(r"\.buffer\b|__std(out|err)__|os\.write\(\s*[12]\b|/dev/(tty|stdout|stderr)|\bConsole\(")
"""Ways to print that get around the escaping of control characters."""


def test_nothing_prints_around_the_escaping() -> None:
    violations = [
        place(module, number)
        for module in MODULES
        if part_of(module) in ("cli", "agent", "verify", "system") and module not in PRINTS
        for number, line in enumerate(module.read_text().splitlines(), 1)
        if AROUND.search(line) and "stdin" not in line and "O_NOCTTY" not in line  # which writes nothing
    ]
    assert not violations, report(violations)
