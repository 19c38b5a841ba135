"""Every command of README.md and docs/ runs in its order, and prints what the text says.

The commands run in their own network namespace, because they use fixed ports and 169.254.169.254.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from doc_pages import README, ROOT, Session, blocks, files, pages, sessions
from namespace import IN_NAMESPACE

if TYPE_CHECKING:
    from pathlib import Path

ACTIVATE = ". .venv/bin/activate"
"""A contributor's own .venv is not the project's: the tests activate the one that script/setup names."""


class Promise(NamedTuple):
    """What the page says about the output of a command: the command, counted from 1 where it comes several times."""

    page: str
    command: str
    nth: int
    shows: str
    """A regular expression."""


POLL = "curl -s -H Metadata:true 'http"
PROMISES = [
    Promise("README.md", POLL, 1, r'"Events":\[\]'),
    Promise("README.md", POLL, 2, r'"EventStatus":"Scheduled","EventType":"Reboot"'),
    Promise("README.md", POLL, 3, r'"EventStatus":"Started"'),
    Promise("README.md", POLL, 4, r'"Events":\[\]'),
    Promise("README.md", "forewarn vm show web-0", 1, r"(?m)^host +(?!rack-1-a\b)\S+"),
    Promise("README.md", "forewarn history --event", 1, r"approved.*web-0"),
    Promise("README.md", "forewarn agent status", 1, "approved"),
    Promise("hosts.md", "forewarn rollout start", 1, "rack-1-b"),
    Promise("private-cloud.md", "curl -s --interface 127.0.0.11", 2, '"EventType":"Reboot"'),
    Promise("private-cloud.md", "curl -s --interface 127.0.0.21", 2, r'"Events":\[\]'),
    Promise("private-cloud.md", "curl -s --interface 127.0.0.11", 3, "304"),
    Promise("private-cloud.md", "forewarn token list", 1, "shop-team"),
    Promise("private-cloud.md", "forewarn history", 1, "shop-0"),
    Promise("hosts.md", "forewarn event explain", 1, "approv"),
    Promise("hosts.md", "forewarn event show", 1, "(?i)started"),
    Promise("hosts.md", "forewarn history --event", 1, "completed"),
    Promise("hosts.md", "cat orders.log", 1, '"verb": ?"reboot".*"mail"'),
    Promise("tutorial.md", "pytest -q test_first.py", 1, "1 passed"),
    Promise("tutorial.md", "pytest -q test_app.py", 1, "2 passed"),
    Promise("tutorial.md", "if pytest -q test_app.py", 1, "1 failed"),
    Promise("api.md", "forewarn token list", 1, "web-team"),
    Promise("faults.md", "forewarn fault list", 1, "429.*slow"),
    Promise("scenarios.md", "forewarn scenario run live-migration", 1, "(?i)passed"),
    Promise("scenarios.md", "forewarn scenario run rolling-update", 1, "(?i)passed"),
    Promise("backup.md", "forewarn backup", 1, "Backed up data to .*backup.db: [0-9]+ VMs"),
    Promise("backup.md", "forewarn restore", 1, "Restored copy from backup.db"),
    Promise("ci.md", "forewarn scenario run", 1, "(?i)passed|as expected"),
]

ALL_SESSIONS = [session for page in pages() for session in sessions(page)]


def run(session: Session, folder: Path) -> dict[str, list[str]]:
    """Run the commands; the outputs of each."""
    environment = subprocess.run([ROOT / "script" / "setup"], capture_output=True, text=True, check=True).stdout.strip()
    start = [
        f"{session.service} >{folder}/service.log 2>&1 &",
        "service=$!",
        "trap 'kill $service' EXIT",
        f"grep -q '^Try in another' <(tail -n +1 -F --pid=$service {folder}/service.log)",
    ]
    script = "\n".join(
        [
            "set -euo pipefail",
            f"cd {ROOT}",
            ACTIVATE.replace(".venv", environment),
            f"cd {ROOT if session.page == README else folder}",
            f"{sys.executable} {ROOT / 'tests' / 'namespace.py'}",
            *session.setup,
            *(start if session.service else ()),
            *(
                f"printf '\\n@@{number}\\n'\n{command}"
                for number, command in enumerate(session.commands)
                if command != ACTIVATE
            ),
        ]
    )
    if session.page != README:  # whose commands are typed in the project's folder
        for name, text in files(session.page).items():
            (folder / name).write_text(text)
        (folder / "examples").symlink_to(ROOT / "examples")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("FOREWARN_", "PYTEST_"))}
    result = subprocess.run(
        [*IN_NAMESPACE, "bash", "-c", script],
        env={
            **ours,
            "HOME": str(folder),
            "XDG_DATA_HOME": str(folder / "share"),
            "FOREWARN_RUNTIME_DIR": str(folder / "run"),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    log = (folder / "service.log").read_text() if session.service else ""
    assert result.returncode == 0, f"{result.stdout}\n{log}"
    assert "Traceback" not in result.stdout + log
    outputs: dict[str, list[str]] = {}
    for number, text in re.findall(r"^@@(\d+)\n(.*?)(?=^@@|\Z)", result.stdout, re.MULTILINE | re.DOTALL):
        outputs.setdefault(session.commands[int(number)], []).append(text)
    return outputs


@pytest.mark.parametrize("session", ALL_SESSIONS, ids=str)
def test_every_command_runs_and_shows_what_the_page_says(session: Session, tmp_path: Path) -> None:
    outputs = run(session, tmp_path)
    for promise in promises(session):
        shown = [text for command, texts in outputs.items() if command.startswith(promise.command) for text in texts]
        text = shown[promise.nth - 1]
        assert re.search(promise.shows, text, re.DOTALL), f"{promise}\n{text}"


def promises(session: Session) -> list[Promise]:
    """Those about this session: the first of its page that has the command."""
    found = []
    for promise in PROMISES:
        same_page = [each for each in ALL_SESSIONS if each.page.name == promise.page]
        having = [each for each in same_page if any(line.startswith(promise.command) for line in each.commands)]
        if having and having[0] == session:
            found.append(promise)
    return found


def test_every_promise_is_about_a_command() -> None:
    checked = [promise for session in ALL_SESSIONS for promise in promises(session)]
    assert sorted(checked) == sorted(PROMISES)


def test_every_program_of_a_page_is_a_file_or_names_its_test() -> None:
    wrong = []
    for page in pages():
        for block in blocks(page):
            if block.comment.startswith("run by "):
                test = block.comment.removeprefix("run by ").partition(",")[0]
                assert (ROOT / test).exists(), block.comment
            elif block.language in ("python", "js") and not block.file_name:
                wrong.append(f"{page.relative_to(ROOT)}: {block.text[:60]!r}")
    assert not wrong, "\n".join(wrong)


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < 150
