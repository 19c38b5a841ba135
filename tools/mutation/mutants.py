"""The mutation operators: every small change that can be made to a file.

Libraries exist (cosmic-ray, mutmut), but they do not remove statements, they mutate messages for people, and they
bring a test runner and many dependencies. So the operators are defined here.
"""

from __future__ import annotations

import ast
import copy
import difflib
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Change: TypeAlias = tuple[str, ast.AST, str]
"""The operator, the node to replace, and the new text."""

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
TYPING_CALLS = {"cast", "TypeVar", "NewType", "ParamSpec", "getLogger", "get_logger"}
LOGGERS = {"_log", "logger", "logging", "warnings"}
FOR_PEOPLE = {"__repr__", "__str__"}
NAMES_ONLY = {"__slots__", "__all__", "__match_args__"}


@dataclass(frozen=True)
class Mutant:
    """One change of one file. Offsets count bytes, lines start at 1."""

    path: str
    """Relative to the package, like core/windows.py."""
    operator: str
    line: int
    last_line: int
    start: int
    end: int
    text: str
    names: tuple[str, ...] = ()
    """The names that the statement defines, for code that runs at import."""

    @property
    def id(self) -> str:
        content = f"{self.path} {self.start} {self.end} {self.text}"
        return hashlib.sha256(content.encode()).hexdigest()[:8]

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def compiles(self, source: bytes) -> bool:
        try:
            compile(self.apply(source), self.path, "exec", dont_inherit=True)
        except SyntaxError:
            return False
        return True

    def diff(self, source: bytes) -> str:
        before, after = (text.decode().splitlines() for text in (source, self.apply(source)))
        lines = difflib.unified_diff(before, after, self.path, self.path, lineterm="", n=2)
        return "\n".join(lines)


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """All mutants of this file, in the order of the file."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: dict[tuple[int, int, str], Mutant] = {}
    for names, (operator, node, text) in _walk(ast.parse(source), "", ()):
        start, end = _span(node, starts)
        line, last_line = node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined] # all have a position
        mutant = Mutant(path, operator, line, last_line, start, end, text, names)
        if source[start:end].decode() != text:
            found.setdefault((start, end, text), mutant)
    return sorted(found.values(), key=lambda mutant: (mutant.start, mutant.end, mutant.text))


def _span(node: ast.AST, starts: list[int]) -> tuple[int, int]:
    place: ast.expr = node  # type: ignore[assignment] # only nodes with a position are replaced
    return starts[place.lineno - 1] + place.col_offset, starts[(place.end_lineno or 0) - 1] + (
        place.end_col_offset or 0
    )


def _walk(node: ast.AST, function: str, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Change]]:
    """Yields the changes of this node and its children. `names` is what a statement outside functions defines."""
    if _skipped(node):
        return
    if isinstance(node, Function):
        function, names = getattr(node, "name", "lambda"), ()
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.ClassDef) and not function:
        names = _defined(node) or names
    # Almost every test fails without a field that __init__ sets, so such a mutant shows nothing.
    if function != "__init__" or not isinstance(node, ast.Assign | ast.AnnAssign):
        yield from ((names, change) for change in _changes(node))
    for child in _children(node):
        yield from _walk(child, function, names)


def _defined(node: ast.Assign | ast.AnnAssign | ast.ClassDef) -> tuple[str, ...]:
    if isinstance(node, ast.ClassDef):
        return (node.name,)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return tuple(target.id for target in targets if isinstance(target, ast.Name))


def _skipped(node: ast.AST) -> bool:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return True
        case ast.Expr(value=ast.Constant()):  # a docstring, or the dots of a protocol
            return True
        case ast.FunctionDef(name=name):
            return name in FOR_PEOPLE
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in NAMES_ONLY
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in TYPING_CALLS:
            return True
        case (
            ast.Call(func=ast.Attribute(value=ast.Name(id=name)))
            | ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name))))
        ):
            return name in LOGGERS
    return False


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The children to mutate: not annotations, decorators, base classes, or the text of an error."""
    if isinstance(node, ast.Raise):
        return
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "bases", "type", "pattern"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def _changes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.stmt():
            yield from _of_statement(node)
        case ast.Compare(ops=[operation], left=left, comparators=[right]):
            for other in COMPARISONS[type(operation)]:
                yield "compare", node, ast.unparse(ast.Compare(left, [other()], [right]))
        case ast.BoolOp(op=operation, values=values):
            other_operation = ast.And() if isinstance(operation, ast.Or) else ast.Or()
            yield "and-or", node, f"({ast.unparse(ast.BoolOp(other_operation, values))})"
            for at in range(len(values)):
                rest = values[:at] + values[at + 1 :]
                kept = rest[0] if len(rest) == 1 else ast.BoolOp(operation, rest)
                yield "drop-operand", node, f"({ast.unparse(kept)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "drop-not", node, f"({ast.unparse(operand)})"
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in ARITHMETIC:
            if not isinstance(left, ast.Constant) or not isinstance(
                left.value, str | bytes
            ):  # else it formats a template
                yield "arithmetic", node, f"({ast.unparse(ast.BinOp(left, ARITHMETIC[type(operation)](), right))})"
        case ast.IfExp(test=test):
            yield "condition", test, "True"
            yield "condition", test, "False"
        case ast.Constant():
            yield from _of_constant(node)
        case ast.Call(func=ast.Name(id=name) as function) if name in CALLS:
            yield "call", function, CALLS[name]
        case ast.Call(keywords=keywords):
            for keyword in keywords:
                if keyword.arg is not None:
                    fewer = copy.copy(node)
                    fewer.keywords = [other for other in keywords if other is not keyword]
                    yield "drop-keyword", node, ast.unparse(fewer)
        case ast.comprehension(ifs=[test]):
            yield "condition", test, "True"


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    match node:
        case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Return(value=None):
            yield "remove", node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AnnAssign(target=ast.Attribute()):
            yield "remove", node, "pass"
        case ast.Break():
            yield "loop", node, "continue"
        case ast.Continue():
            yield "loop", node, "break"
        case ast.If(test=test):
            yield "condition", test, "True"
            yield "condition", test, "False"
        case ast.While(test=test):
            yield "condition", test, "False"
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return", value, "None"
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        other = ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)
        yield "arithmetic", node, ast.unparse(other)


def _of_constant(node: ast.Constant) -> Iterator[Change]:
    match node.value:
        case bool() as flag:
            yield "constant", node, repr(not flag)
        case int() | float() as number:
            yield "constant", node, repr(number + 1)
        case str() as text if text and not any(
            character.isspace() for character in text
        ):  # text with spaces is a message for people
            yield "constant", node, repr("x" + text)
        case bytes() as octets if octets.strip():
            yield "constant", node, repr(b"x" + octets)
