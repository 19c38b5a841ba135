"""Every error has a message that it can be raised with, and can be copied and sent to another process."""

from __future__ import annotations

import copy
import pickle
import string
import subprocess
import sys
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import pytest

from forewarn import errors
from forewarn.errors import BadDuration, EndpointThrottled, ForewarnError

if TYPE_CHECKING:
    from collections.abc import Iterator


def subclasses(kind: type[ForewarnError]) -> Iterator[type[ForewarnError]]:
    for subclass in kind.__subclasses__():
        if subclass.__module__ == errors.__name__:
            yield subclass
            yield from subclasses(subclass)


def raised(kind: type[ForewarnError]) -> ForewarnError:
    names = {name for _, name, _, _ in string.Formatter().parse(kind.message) if name}
    names |= {
        name for name, parameter in signature(kind).parameters.items() if parameter.kind is Parameter.KEYWORD_ONLY
    }
    return kind(**dict.fromkeys(names, 3))  # fits every format


def test_every_error_has_a_message_of_its_own() -> None:
    kinds = list(subclasses(ForewarnError))
    assert len(kinds) > 100
    for kind in kinds:
        assert str(raised(kind)).strip(), kind
        assert "  " not in kind.message, kind
        assert "message" in vars(kind), f"{kind} has the message of its family"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])  # noqa: S301
def test_a_copy_is_the_same_error(again: type) -> None:
    for kind in subclasses(ForewarnError):
        error = raised(kind)
        found = again(error)
        assert type(found) is kind
        assert str(found) == str(error)
        assert vars(found) == vars(error)


def test_a_copy_keeps_extra_attributes_of_the_error() -> None:
    error = EndpointThrottled(problem="is busy", retry_after=7.0)
    assert pickle.loads(pickle.dumps(error)).retry_after == error.retry_after  # noqa: S301


def test_a_relayed_error_can_be_copied() -> None:
    assert str(copy.copy(BadDuration.relayed("in other words"))) == "in other words"


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("reboot", ["rebalance", "redeploy", "restart"], "restart"),
        ("Restart", ["Freeze", "Reboot"], "Reboot"),
        ("rm", ["create", "list", "revoke"], "revoke"),
        ("--preempt", ["--evict", "--yes"], "--evict"),
        ("ls", ["list", "show"], "list"),
        ("move", ["evict", "migrate"], "migrate"),
        ("vn", ["event", "vm"], "vm"),
        ("wbe-0", ["db-0", "web-0"], "web-0"),
        ("postgres", ["restart", "web-0"], ""),
        ("kitchen", ["cancel", "approve"], ""),
        ("reboot", ["webhook", "vm"], ""),
        ("--actor", ["--last", "--limit"], ""),
        ("--event", ["--server", "--since"], ""),
        ("--vm", ["--server", "--service"], ""),
        ("server", ["service", "vm"], "service"),
    ],
)
def test_the_nearest_name_knows_typos_and_synonyms(word: str, known: list[str], hint: str) -> None:
    assert errors.nearest(word, known) == (f" Did you mean {hint!r}?" if hint else "")


class CountedName(str):
    """A name that counts the characters that are compared."""

    __slots__ = ()
    compared = 0

    def lower(self) -> str:
        CountedName.compared += len(self)
        return super().lower()


@pytest.mark.parametrize("length", [10, 80, 5000])
@pytest.mark.parametrize("word", ["web-x", "a" * 80, "ab" * 50, "x" * 1_000_000])
def test_the_work_for_a_hint_is_limited(word: str, length: int) -> None:
    CountedName.compared = 0
    read = []
    names = (CountedName(f"{number:05}".rjust(length, "a")) for number in range(50_000) if not read.append(number))  # type: ignore[func-returns-value]
    errors.nearest(word, names)
    assert CountedName.compared <= 20_000
    assert len(read) <= 10_000


def test_a_hint_compares_each_character_of_a_name_once() -> None:
    """So the work is the number of characters: bits of one number stand for the word."""
    steps = 0

    def count(_: object, event: str, __: object) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    similarity = errors._similarity_to("ab" * 50)
    sys.settrace(count)
    try:
        similarity("ba" * 40)
    finally:
        sys.settrace(None)
    assert steps <= 3 * 80 + 10


def test_messages_survive_without_docstrings() -> None:
    program = "from forewarn.errors import BadDuration; print(BadDuration(text='soon'))"
    printed = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == f"{BadDuration(text='soon')}\n"
    assert "'soon'" in printed
