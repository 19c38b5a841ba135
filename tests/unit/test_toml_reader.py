"""TOML files of any content need work and memory that grow with their size. The tests count calls and bytes."""

from __future__ import annotations

import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from forewarn.errors import BadFleet
from forewarn.files import toml_reader
from forewarn.files.fleet_file import MAX_VMS, parse_fleet
from forewarn.files.toml_reader import MAX_KEY_PARTS, MAX_PIECE, MAX_SEARCHED, TomlFile, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

SOLO = '[[vm]]\nname = "solo"\n'


def error_in(text: str) -> BadFleet:
    with pytest.raises(BadFleet) as caught:
        parse_fleet(text, "fleet.toml")
    return caught.value


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions are called, of Python and of C."""
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def lines_run(work: Callable[[], object]) -> int:
    """Return how many lines of Python are run, also in loops that call nothing."""
    lines = 0

    def count(_: FrameType, event: str, __: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- The check before tomllib -----------------------------------------------------------------------

TOO_LONG = "x" * (MAX_PIECE + 1)
LONG_PIECES = {
    "comment": (f"# {TOO_LONG}\n", 3),
    "string": (f'size = "{TOO_LONG}"\n', 3),
    "literal string": (f"size = '{TOO_LONG}'\n", 3),
    "long string": (f'\nsize = """\n{TOO_LONG}"""\n', 4),
    "long literal string": (f"size = '''\n{TOO_LONG}'''\n", 3),
    "string of escapes": ('size = "' + "\\\\" * MAX_PIECE + '"\n', 3),
    "string of quotes": ('size = """' + '\\"' * MAX_PIECE + '"""\n', 3),
    "number": (f"first = {'1' * (MAX_PIECE + 1)}\n", 3),
    "key": (f"{TOO_LONG} = 1\n", 3),
    "spaces": (f"size = {' ' * (MAX_PIECE + 1)}1\n", 3),
}


@pytest.mark.parametrize(("added", "line"), LONG_PIECES.values(), ids=LONG_PIECES)
def test_a_piece_that_is_too_long_is_rejected(added: str, line: int) -> None:
    error = error_in(SOLO + added)
    assert str(error).startswith(f"fleet.toml:{line}: TOML: ")
    assert f"more than {MAX_PIECE} characters" in str(error)


@pytest.mark.parametrize("dot", [".", " . ", '."b".', ".'b' . "])
@pytest.mark.parametrize("form", ["{} = 1\n", "[{}]\n", "[[{}]]\n", "tags = {{ {} = 1 }}\n", "{}"])
def test_a_key_with_too_many_parts_is_rejected(form: str, dot: str) -> None:
    error = error_in(SOLO + form.format(dot.join("a" * (MAX_KEY_PARTS + 1))))
    assert str(error).startswith("fleet.toml:3: TOML: ")
    assert f"more than {MAX_KEY_PARTS} parts" in str(error)


def test_what_looks_long_but_is_not_is_accepted() -> None:
    many = MAX_PIECE // 2
    keys = ", ".join(['"a.b c.d"'] * many)
    text = (
        f"# {'.' * many}\n# it's\n" * 3
        + SOLO
        + f"public_keys = [{keys}]\n"
        + f"# {'1.5, ' * 1000}\n"
        + "\n" * (2 * MAX_PIECE)
        + 'user_data = """'
        + "\\n" * 1000
        + '""""\n'
        + f"custom_data = '''{'.' * 60_000}'''\n"
    )
    vm = parse_fleet(text, "fleet.toml").vms["solo"]
    assert (len(vm.public_keys), len(vm.user_data), len(vm.custom_data)) == (many, 1001, 60_000)


def test_numbers_with_many_dots_in_one_line_are_no_key() -> None:
    assert TomlFile(f"x = [{'1.5, ' * 100}]\n[a.b]\ny.z = 1.5", "x").load()["a"] == {"b": {"y": {"z": 1.5}}}


def test_a_file_with_too_many_dots_in_keys_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toml_reader, "MAX_DOTS", 100)
    keys = [f"a.b{number} = '1.2.3' # 1.2.3\n" for number in range(101)]
    assert toml_reader.check_pieces("".join(keys[:100])) is None
    assert str(error_in("".join(keys))) == (
        "fleet.toml:101: TOML: The file has more than 100 dots in keys. Write tables inline: {a = 1, b = 2}."
    )


@pytest.mark.parametrize("text", ["x = \"it's\n", 'x = "\\', "x = '''", 'x = """a\\"', "x = '\ny = '" * 1000])
def test_an_open_string_is_explained_by_the_decoder(text: str) -> None:
    assert "more than" not in str(error_in(text))


# --- The search for lines ---------------------------------------------------------------------------

STRINGS = {
    "characters": '"""{}"""'.format,
    "escapes": lambda text: '"""{}"""'.format(text.replace("x", "\\\\")),
    "quotes": lambda text: '"""{}"""'.format(text.replace("xx", '\\""')),
    "one line": '"{}"'.format,
    "escapes in one line": lambda text: '"{}"'.format(text.replace("x", "\\\\")),
}


@pytest.mark.parametrize("quoted", STRINGS.values(), ids=STRINGS)
def test_the_search_needs_no_more_memory_than_the_text(quoted: Callable[[str], str]) -> None:
    text = f"a = {quoted('x' * 50_000)}\nb = 1\n"
    assert lines_of(text, [("b",)]) == [2]
    assert peak_of(lambda: lines_of(text, [("b",)])) < 2 * len(text)


SHAPES = {
    "escapes": lambda size: 'a = "' + "\\\\" * size + '"\nb = 1\n',
    "escaped quotes": lambda size: 'a = """' + '\\"' * size + '"""\nb = 1\n',
    "strings": lambda size: "a = [" + '"x",' * size + "]\nb = 1\n",
    "array": lambda size: "a = [" + "[]," * size + "]\nb = 1\n",
    "tables": lambda size: "[[a]]\n" * size + "b = 1\n",
    "keys": lambda size: "".join(f"a{number} = 1\n" for number in range(size)),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("work", [lambda text: lines_of(text, [("z",)]), toml_reader.check_pieces])
def test_work_grows_with_the_size_of_the_text(shape: Callable[[int], str], work: Callable[[str], object]) -> None:
    small, large = (calls_of(lambda size=size: work(shape(size))) for size in (1000, 4000))  # type: ignore[misc]
    assert large < 4.5 * small


def test_a_mistake_in_a_large_file_has_no_line() -> None:
    filler = "# filler\n" * (MAX_SEARCHED // 9 + 1)
    assert str(error_in(filler + SOLO + 'host = "a"\n')) == ("fleet.toml: vm \"solo\".host: No [[host]] is named 'a'.")
    twice = str(error_in(filler + SOLO + SOLO))
    assert "line" not in twice.replace("filler", "")
    assert "'solo' is already used by vm \"solo\"." in twice
    group = '[[group]]\nname = "web"\nkind = "scale-set"\n'
    assert "'web' is already used. Names must be unique." in str(error_in(filler + SOLO + group + group))
    assert str(error_in(filler + "x = [")).startswith(f"fleet.toml:{filler.count(chr(10)) + 1}: TOML: ")


# --- Fleets -----------------------------------------------------------------------------------------

SET = '[[group]]\nname = "g{0}"\nkind = "scale-set"\neviction_policy = "delete"\n'
SPOT = '[[vm]]\ngroup = "g{0}"\ncount = 2\npriority = "spot"\n'
FLEETS = {
    "groups with an eviction policy": lambda size: "".join((SET + SPOT).format(number) for number in range(size)),
    "hosts of a set": lambda size: (
        '[[host]]\nname = "a"\n[[vm]]\nname = "v{n}"\n' + f"count = {size}\nhosts = [" + '"a",' * size + "]\n"
    ),
}


@pytest.mark.parametrize("fleet", FLEETS.values(), ids=FLEETS)
def test_work_grows_with_the_size_of_the_fleet(fleet: Callable[[int], str]) -> None:
    lines: list[int] = []
    for size in (50, 200):
        text = fleet(size)
        lines.append(lines_run(lambda text=text: parse_fleet(text, "fleet.toml")))  # type: ignore[misc]
    assert lines[1] < 4.5 * lines[0]


def test_vms_of_a_set_share_the_list_of_their_hosts() -> None:
    small, large = (
        peak_of(lambda text=text: parse_fleet(text, "fleet.toml"))  # type: ignore[misc]
        for text in map(FLEETS["hosts of a set"], (50, 200))
    )
    assert large < 6 * small


def test_a_document_is_freed_item_by_item() -> None:
    """So that no call frees millions of objects, which holds the interpreter lock."""
    inner: list[object] = [[], {"a": [1, 2]}]
    document = {"x": inner, "y": {"z": inner}, "text": "abc"}
    toml_reader.free(document)
    assert (document, inner) == ({}, [])


def test_a_fleet_has_a_maximum_of_vms() -> None:
    half = MAX_VMS // 2 + 1
    text = "".join(f'[[vm]]\nname = "{letter}{{n}}"\ncount = {half}\n' for letter in "ab")
    assert str(error_in(text)) == (
        f'fleet.toml:6: vm "b{{n}}".count: The fleet has at most {MAX_VMS} VMs. With this set it has {2 * half}.'
    )


@pytest.mark.parametrize("key", ["name", "group", "address", "listen", "priority", "zone", "location"])
def test_an_error_repeats_little_of_a_long_value(key: str) -> None:
    name = "" if key == "name" else 'name = "solo"\n'
    text = "y\u200b" + "x" * 100_000
    assert len(str(error_in(f'[[vm]]\n{name}{key} = "{text}"\n'))) < 500
    assert len(str(error_in(f'[[vm]]\n{name}{"z" * 100_000} = "{text}"\n'))) < 1000
