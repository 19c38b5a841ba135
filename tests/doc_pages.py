"""The pages of the documentation: their blocks of code, and the commands that a reader types.

A block whose first line is a comment with the name of a file is that file. Any other `sh` block has commands. A comment
before a block changes that: `<!-- not run: REASON -->`, `<!-- run by TEST -->`, `<!-- expected to fail -->`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT_BEFORE = re.compile(r"<!-- ([^>]*) -->\s*\Z")
_FILE_NAME = re.compile(r"(?:#|//) (\S+\.\w+)\n")


class Block(NamedTuple):
    """A fenced block, with the comment right before it."""

    language: str
    text: str
    comment: str

    @property
    def file_name(self) -> str:
        """The name of the file that the block is; empty if it is none."""
        found = _FILE_NAME.match(self.text)
        return found[1] if found else ""

    @property
    def is_run(self) -> bool:
        return self.language == "sh" and not self.file_name and not self.comment.startswith(("not run:", "run by "))


class Session(NamedTuple):
    """The commands from one start of a service to the next."""

    page: Path
    number: int
    setup: list[str]
    """What the block with the start of the service has before it."""
    service: str
    """Starts the service; empty if the page starts none before these commands."""
    commands: list[str]

    def __str__(self) -> str:
        return f"{self.page.stem}-{self.number}"


def pages() -> list[Path]:
    """README.md and all pages of docs/."""
    return [README, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    return blocks_in(page.read_text())


def blocks_in(text: str) -> list[Block]:
    found = []
    for fence in _FENCE.finditer(text):
        comment = _COMMENT_BEFORE.search(text[: fence.start()])
        found.append(Block(fence[1], fence[2], comment[1] if comment else ""))
    return found


def files(page: Path) -> dict[str, str]:
    """The files of a page, by their names."""
    return {block.file_name: block.text for block in blocks(page) if block.file_name}


def sessions(page: Path) -> list[Session]:
    """What a reader types, one session for each service that is started."""
    found = [Session(page, 0, [], "", [])]
    for block in blocks(page):
        lines = block.text.splitlines() if block.is_run else []
        services = [line for line in lines if line.startswith(("script/server", "forewarn up"))]
        assert len(services) <= 1, "one service at a time"
        if services:
            first = lines.index(services[0])
            found.append(Session(page, len(found), lines[:first], services[0], lines[first + 1 :]))
        elif block.comment == "expected to fail":
            found[-1].commands.extend([*lines[:-1], f"if {lines[-1]}; then exit 99; fi"])
        else:
            found[-1].commands.extend(lines)
    return [each for each in found if each.service or each.commands]
