"""The generated parts of the documentation are current, its examples are valid, and its files are formatted."""

from __future__ import annotations

import html
import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from doc_pages import ROOT, blocks
from forewarn.cli import NOUNS
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.history import HISTORY_KINDS
from forewarn.core.operations import CAUSES
from forewarn.errors import EXIT_CODES
from forewarn.files.fleet_file import parse_fleet
from forewarn.settings import SETTINGS, resolve
from forewarn.wire.versions import API_VERSIONS
from programs import need

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE = ROOT / "docs" / "reference"
DIAGRAM = ROOT / "docs" / "architecture.dot"
SVG = ROOT / "docs" / "architecture.svg"


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)


def test_the_generated_parts_are_current() -> None:
    done = run(sys.executable, ROOT / "script" / "reference", "--check")
    assert done.returncode == 0, done.stderr


def test_every_file_is_formatted() -> None:
    done = run(ROOT / "script" / "format", "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("settings.md", SETTINGS),
        ("events.md", EVENT_TYPES),
        ("events.md", CAUSES),
        ("events.md", [kind.replace(" ", "-") for kind in HISTORY_KINDS]),
        ("metadata-service.md", [row[0] for row in API_VERSIONS]),
    ],
)
def test_every_name_has_a_row(page: str, names: list[str]) -> None:
    text = (REFERENCE / page).read_text()
    assert not [name for name in names if f"\n| `{name}` |" not in text]


def test_every_family_of_errors_has_its_exit_code() -> None:
    text = (REFERENCE / "cli.md").read_text()
    wanted = [f"\n| `{family.__name__}` | {code} |" for family, code in EXIT_CODES.items()]
    assert not [row for row in wanted if row not in text]


def example(page: str) -> str:
    """The TOML blocks of a page, as one file."""
    return "\n".join(block.text for block in blocks(REFERENCE / page) if block.language == "toml")


def test_the_example_of_the_fleet_file_is_valid() -> None:
    fleet = parse_fleet(example("fleet-file.md"), "fleet-file.md")
    assert fleet.vms["workers_99"].group == "workers"


def test_the_example_of_the_settings_file_is_valid(tmp_path: Path) -> None:
    config = tmp_path / "forewarn.toml"
    config.write_text(example("settings.md"))
    found, wanted = resolve({}, {}, str(config)), tomllib.loads(example("settings.md"))
    settle = found["settle"].value
    assert {cause: f"{settle[cause].total_seconds() / 60:g}m" for cause in wanted["settle"]} == wanted["settle"]
    assert found["description"].value.items() >= wanted["description"].items()


# --- Man pages ------------------------------------------------------------------------------------


def test_every_command_has_a_man_page_that_groff_accepts(tmp_path: Path) -> None:
    need("groff")
    assert run(sys.executable, ROOT / "script" / "man_pages.py", tmp_path / "man").returncode == 0
    pages = sorted((tmp_path / "man").iterdir())
    assert [page.name for page in pages] == sorted(["forewarn.1", *(f"forewarn-{noun}.1" for noun in NOUNS)])
    for page in pages:
        done = run("groff", "-man", "-Tutf8", "-ww", page)
        assert (done.stderr, done.returncode) == ("", 0), page
        assert "Forewarn manual" in done.stdout


# --- The diagram ----------------------------------------------------------------------------------


def test_every_label_of_the_diagram_is_in_the_picture() -> None:
    labels = re.findall(r'label="([^"]+)"', DIAGRAM.read_text())
    lines = {line for label in labels for line in label.split("\\n")}
    shown = set(map(html.unescape, re.findall(r"<text[^>]*>([^<]+)</text>", SVG.read_text())))
    assert lines
    assert lines == shown, "run: script/diagram"


def test_the_diagram_renders(tmp_path: Path) -> None:
    need("dot")
    picture = tmp_path / "picture.svg"
    done = run(ROOT / "script" / "diagram", picture)
    assert done.returncode == 0, done.stderr
    assert "Metadata service" in picture.read_text()
