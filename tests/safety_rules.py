"""Safety rules of several nodes, and how to remove one: script/torture must find what happens without it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCE = Path(__file__).parents[1] / "src"
_FIRST = "stores/postgresql_migrations/0001_first.sql"


class Edit(NamedTuple):
    """A text that is in a file of the package exactly once, and what replaces it."""

    file: str
    old: str
    new: str


RULES = {
    "epoch-check": [  # a commit checks that its node leads, and nobody can take the lease before it ends
        Edit(_FIRST, "PERFORM 1 FROM lease WHERE epoch = expected FOR SHARE;\n    IF NOT FOUND THEN", "IF false THEN")
    ],
    "unique-numbers": [  # a commit whose number exists is rejected
        Edit(_FIRST, "PRIMARY KEY (number, part)", "CHECK (part > 0)"),
        Edit(_FIRST, "sequence bigint PRIMARY KEY", "sequence bigint NOT NULL"),
    ],
    "end-holder": [  # a new leader ends the connections of the last one
        Edit("stores/postgresql.py", 'self._db.named("end_holder", writer=WRITER, lease=LEASE)', "pass")
    ],
    "etag-wait": [  # a node that is behind waits for the document that the client knows
        Edit(
            "metadata/routes.py",
            "and is_newer(poll.if_none_match, page.tag):\n                return None",
            "and False: ...",
        )
    ],
    "commit-before-publish": [  # nobody sees a change that is not committed
        Edit(
            "engine/writer.py",
            "                commit = partial(self._store.commit, changes)\n",
            "                self._published = changes, self._publish(changes)\n"
            "                commit = partial(self._store.commit, changes)\n",
        ),
        Edit(
            "engine/writer.py",
            "                    self._published = changes, self._publish(changes)\n",
            "                    pass\n",
        ),
    ],
    "clock-check": [  # a node whose clock differs from the database's does not lead
        Edit(
            "nodes/node.py",
            "if not (self._abstains or self._stopping or self.clock_problem):",
            "if not (self._abstains or self._stopping):",
        )
    ],
}


def copy_without(rules: Iterable[str], folder: Path) -> Path:
    """Copy the source to a folder, and remove rules there. Returns the folder that a program imports it from."""
    target = folder / "without"
    shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns("__pycache__"))
    for rule in rules:
        for edit in RULES[rule]:
            path = target / "forewarn" / edit.file
            text = path.read_text()
            if text.count(edit.old) != 1:
                raise ValueError(f"{edit.file} has {text.count(edit.old)} times: {edit.old}")
            path.write_text(text.replace(edit.old, edit.new))
    return target
