"""The examples of the pages on the test kit and on CI, and the sample application, run as a user would run them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from doc_pages import ROOT, files
from namespace import IN_NAMESPACE

PAGES = (ROOT / "docs" / "reference" / "test-kit.md", ROOT / "docs" / "how-to" / "ci.md")
SHOP = ROOT / "examples" / "testing"
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")


def example_files() -> dict[str, str]:
    """Every block that begins with the name of a file."""
    return {name: text for page in PAGES for name, text in files(page).items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in example_files().items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The environment of a machine without any settings."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("FOREWARN_", "PYTEST_"))}
    return subprocess.run(
        command, cwd=folder, env={**ours, **variables}, capture_output=True, text=True, timeout=120, check=False
    )


def test_every_file_of_the_pages_is_run() -> None:
    run_here = {"test_notice.py", "test_app.py", "app.py", "test_settings.py", "test_async.py", "test_process.py"}
    assert set(example_files()) == run_here | {"test_with_unittest.py", "app.mjs", "fleet.toml", "check.sh"}


@pytest.mark.parametrize(
    "name", ["test_notice.py", "test_app.py", "test_settings.py", "test_async.py", "test_process.py"]
)
def test_the_examples_for_pytest_pass(folder: Path, name: str) -> None:
    done = run(folder, *PYTEST, name)
    assert done.returncode == 0, done.stdout


def test_the_example_for_unittest_passes(folder: Path) -> None:
    done = run(folder, sys.executable, "-W", "error", "-m", "unittest", "-v", "test_with_unittest")
    assert done.returncode == 0, done.stderr
    assert "Ran 1 test" in done.stderr


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_example_in_another_language_runs(folder: Path) -> None:
    """In a network namespace of its own, because its ports are fixed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = f"{sys.executable} {ROOT / 'tests' / 'namespace.py'} && cd {folder} && . ./check.sh"
    places = dict.fromkeys(("HOME", "XDG_DATA_HOME", "FOREWARN_RUNTIME_DIR"), str(folder / "home"))
    done = run(folder, *IN_NAMESPACE, "bash", "-euc", script, PATH=path, **places)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"approved_by": "web-0"' in done.stdout


def test_the_tests_of_the_sample_application_pass_for_the_careful_handler() -> None:
    done = run(SHOP, *PYTEST, SHOP)
    assert done.returncode == 0, done.stdout


def test_they_fail_for_the_careless_one() -> None:
    """Each of them: a test that a careless handler passes would say nothing."""
    done = run(SHOP, *PYTEST, SHOP, SHOP_HANDLER="careless")
    assert done.returncode == 1, done.stdout
    assert "passed" not in done.stdout
    assert "ERROR " not in done.stdout


IMPORTED = """
import sys
def test_nothing():
    assert not [name for name in sys.modules if name.startswith("forewarn.")] != ["forewarn.pytest_plugin"]
    assert "uvicorn" not in sys.modules
"""


def test_the_plugin_costs_nothing_where_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "test_unused.py").write_text(IMPORTED)
    done = run(tmp_path, *PYTEST, "test_unused.py")
    assert done.returncode == 0, done.stdout


def test_the_plugin_shows_its_fixtures_and_its_marker(tmp_path: Path) -> None:
    fixtures, markers = run(tmp_path, *PYTEST, "--fixtures").stdout, run(tmp_path, *PYTEST, "--markers").stdout
    assert "forewarn -- " in fixtures
    assert "forewarn_async -- " in fixtures
    assert "@pytest.mark.forewarn(fleet=None, **settings)" in markers


SIDE_BY_SIDE = """
import pytest

@pytest.mark.parametrize("number", range(12))
def test_one_of_many(forewarn, number):
    vm = forewarn.vm("web-0")
    event = vm.restart()
    forewarn.advance(minutes=15)
    assert [shown.id for shown in vm.poll().events] == [event.id]
"""


def test_tests_that_run_side_by_side_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "test_many.py").write_text(SIDE_BY_SIDE)
    done = run(tmp_path, *PYTEST, "-n", "3", "test_many.py")
    assert done.returncode == 0, done.stdout
    assert "12 passed" in done.stdout
