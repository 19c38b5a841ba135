"""script/release: it builds from the last commit, twice with the same bytes, and everything that it builds works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from forewarn.agent.cli.bundle import agent_files
from programs import installed_pythons

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, folder: Path = ROOT, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_a_release_has_its_files_and_each_of_them_works(tmp_path: Path) -> None:
    """The script itself installs and runs each file. It fails if a second build has other bytes."""
    output = tmp_path / "dist"
    run(ROOT / "script" / "release", output)
    names = {file.name for file in output.iterdir()}
    wheel = next(output.glob("forewarn_agent-*.whl"))
    version = wheel.name.split("-")[1]
    assert names == {
        f"forewarn-{version}-py3-none-any.whl",
        f"forewarn-{version}.tar.gz",
        f"forewarn_agent-{version}-py3-none-any.whl",
        "forewarn-agent.pyz",
        "SHA256SUMS",
    }
    assert run("sha256sum", "--check", "SHA256SUMS", folder=output).count(": OK\n") == len(names) - 1
    with zipfile.ZipFile(wheel) as zipped:
        zipped.extractall(tmp_path / "agent")
        files = {name for name in zipped.namelist() if not name.startswith("forewarn_agent-")}
        metadata = zipped.read(f"forewarn_agent-{version}.dist-info/METADATA").decode()
    assert files == {*agent_files(), "forewarn/py.typed"}
    assert "Requires-Python: >=3.10\n" in metadata
    assert "Requires-Dist" not in metadata
    check_install_page(tmp_path, output)
    policy = ROOT / "examples" / "agent" / "first.toml"
    start = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'agent')!r})\nfrom forewarn.agent.__main__ import main; main()"
    )
    for python in installed_pythons().values():
        assert "1. " in run(python, "-I", "-S", "-c", start, "check", policy)


def check_install_page(folder: Path, packages: Path) -> None:
    """Run commands of docs/install.md in a clone with dist/, each with an environment and a home of its own.

    From the table, it runs each tool with another source. All nine commands would take minutes.
    """
    git_url = f"git+file://{ROOT}@{run('git', 'rev-parse', 'HEAD').strip()}"
    run("git", "clone", "--quiet", ROOT, folder / "clone")
    (folder / "clone" / "dist").symlink_to(packages)
    run(sys.executable, "-m", "venv", folder / "tools")
    run(folder / "tools" / "bin" / "pip", "install", "--quiet", "pipx", "uv")
    page = (ROOT / "docs" / "install.md").read_text()
    commands = re.findall(r"`((?:pip|pipx|uv tool) install [^`]+)`", page)
    assert len(commands) == 9
    chosen = ("pip install git+URL", "pipx install dist/forewarn-*.whl", "uv tool install .")
    assert set(chosen) <= set(commands)
    for number, command in enumerate([*chosen, "pipx install dist/forewarn_agent-*.whl"]):
        assert command in page
        home = folder / f"home-{number}"
        home.mkdir()
        if command.startswith("pip "):
            run(sys.executable, "-m", "venv", home / "environment")
        program = "forewarn-agent" if "agent" in command else "forewarn"
        script = f"{command.replace('git+URL', git_url)} && {program} --version"
        bins = [home / "environment" / "bin", home / ".local" / "bin", folder / "tools" / "bin"]
        variables = {
            "HOME": str(home),
            "PATH": ":".join([*map(str, bins), os.environ["PATH"]]),
            "UV_PYTHON": sys.executable,
            "PIPX_DEFAULT_PYTHON": sys.executable,
        }
        assert "forewarn, version " in run("bash", "-c", script, folder=folder / "clone", **variables), command


def test_the_agent_of_its_own_package_accepts_the_word_agent() -> None:
    for words in ([], ["agent"]):
        assert run(sys.executable, "-m", "forewarn.agent", *words, "--version").startswith("forewarn, version ")
