"""The scenarios page lists every scenario and every key of a scenario file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from forewarn.core.scenarios import ACTIONS, ExpectedVMState, WaitCondition
from forewarn.files.scenario_file import EXPECT_KEYS, FAULT_KEYS, FILE_KEYS, NEEDS_KEYS, STEP_KEYS, parse_scenario
from forewarn.scenarios import library

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "scenarios.md").read_text()
REFERENCE = (ROOT / "docs" / "reference" / "events.md").read_text()


def table(heading: str) -> list[str]:
    """Return the first cells of the table whose first column has this heading."""
    rows = [*PAGE.partition(f"\n| {heading} |")[2].splitlines()[2:], ""]
    end = next(index for index, row in enumerate(rows) if not row.startswith("|"))
    return [row.split("|")[1].strip().strip("`[]") for row in rows[:end]]


def test_every_bundled_scenario_is_listed() -> None:
    assert sorted(table("name")) == library.names()


@pytest.mark.parametrize(
    ("heading", "keys"),
    [
        ("key", FILE_KEYS),
        ("key of `[needs]`", NEEDS_KEYS),
        ("key of a step", STEP_KEYS),
        ("key of `expect`", EXPECT_KEYS),
    ],
)
def test_every_key_is_listed_and_no_other(heading: str, keys: tuple[str, ...]) -> None:
    assert sorted(table(heading)) == sorted(keys)


def test_every_value_is_listed() -> None:
    words = (*ExpectedVMState, *WaitCondition, *FAULT_KEYS[1:], *ACTIONS)
    missing = [word for word in words if f"`{word}`" not in PAGE and f"| `{word}` |" not in REFERENCE]
    assert not missing, missing


def test_the_example_is_a_scenario() -> None:
    text = PAGE.partition("```toml\n")[2].partition("```")[0]
    assert tomllib.loads(text)
    assert len(parse_scenario(text, "example", "example.toml").steps) == 6
