"""forewarn install and uninstall: the unit of the service, judged by systemd, and its config file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from forewarn.cli import root
from forewarn.cli.install import CONFIG_FILE, DATA_FOLDER, UNIT_NAME, config_template
from forewarn.errors import BadFleet, BadOption, BadSetting, NotPermitted, UnitDiffers, UnitMasked
from forewarn.settings import SETTINGS, resolve
from forewarn.testing.client import COMMAND
from programs import need, need_root

if TYPE_CHECKING:
    from pathlib import Path

USER = "daemon"
"""A user that every machine has: tests create none."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # Only root's own user can run the program of a developer. The check of the program has its own test.
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / "units").mkdir()
    return tmp_path


def install(*arguments: str) -> str:
    """Run the command in this process. Raise its error."""
    words = ["install", "--unit-dir", "units", "--config", "etc/forewarn.toml", "--user", USER, *arguments]
    done = CliRunner().invoke(root, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def uninstall() -> str:
    return CliRunner().invoke(root, ["uninstall", "--unit-dir", "units"], catch_exceptions=False).output


def unit(folder: Path) -> str:
    return (folder / "units" / UNIT_NAME).read_text()


def analyze(*arguments: str) -> str:
    need("systemd-analyze")
    done = subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + "".join(line for line in done.stderr.splitlines(keepends=True) if UNIT_NAME in line)


# --- The unit -------------------------------------------------------------------------------------


def test_systemd_finds_nothing_wrong_with_it(folder: Path) -> None:
    install()
    assert analyze("verify", f"units/{UNIT_NAME}") == ""
    file = folder / "units" / UNIT_NAME
    file.write_text(file.read_text().replace("Type=notify", "Type=loud"))
    assert "loud" in analyze("verify", f"units/{UNIT_NAME}")


def test_it_is_exposed_as_little_as_possible(folder: Path) -> None:
    install()
    found = re.search(
        r"Overall exposure level.*: ([0-9.]+)",
        analyze("security", "--offline=true", "--no-pager", f"units/{UNIT_NAME}"),
    )
    assert found is not None
    assert float(found[1]) < 2


def test_the_unit_starts_this_program_as_the_user(folder: Path) -> None:
    said = install()
    text = unit(folder)
    assert f"ExecStart={sys.executable} -m forewarn up --config={folder}/etc/forewarn.toml\n" in text
    assert f"\nUser={USER}\n" in text
    assert "\nStateDirectory=forewarn\n" in text
    assert f"The first start writes an admin token to {DATA_FOLDER}/admin-token." in said
    assert "systemctl enable --now forewarn.service" in said


def test_another_data_folder_can_be_written(folder: Path) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "forewarn.toml").write_text(f'data = "{folder}/my data"\n')
    assert "admin-token" in install()
    assert f'ReadWritePaths="{folder}/my data"\n' in unit(folder)
    assert (folder / "my data").stat().st_mode & 0o777 == 0o700


def test_without_a_data_folder_in_the_config_the_unit_names_one(folder: Path) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "forewarn.toml").write_text("speed = 60\n")
    install()
    assert f"/etc/forewarn.toml --data={DATA_FOLDER}\n" in unit(folder)


def test_an_edited_unit_is_not_overwritten(folder: Path) -> None:
    install()
    assert "is up to date" in install()
    (folder / "units" / UNIT_NAME).write_text("# mine")
    with pytest.raises(UnitDiffers):
        install()
    assert unit(folder) == "# mine"
    install("--force")
    assert unit(folder).startswith("[Unit]\n")


def test_print_writes_nothing(folder: Path) -> None:
    assert install("--print").startswith("[Unit]\n")
    assert [path.name for path in folder.rglob("*")] == ["units"]


# --- The config file ------------------------------------------------------------------------------


def test_the_config_file_shows_every_setting_with_its_default(tmp_path: Path) -> None:
    file = tmp_path / "forewarn.toml"
    file.write_text(config_template())
    defaults = {name: str(value) for name, value in resolve({}, {}, str(file)).items()}
    assert defaults.pop("data") == DATA_FOLDER
    lines = config_template().splitlines()
    shown = [line.removeprefix("# ") if re.match(r"# (\[|[a-z_-]+ = )", line) else line for line in lines]
    file.write_text("\n".join(shown))
    values = {name: str(value) for name, value in resolve({}, {}, str(file)).items()}
    assert values.pop("data") == DATA_FOLDER
    assert values.pop("description") == "host-update=Host server is undergoing maintenance."
    defaults.pop("description")
    assert values == defaults
    named = {line.partition(" ")[0].strip("[]") for line in shown if line and not line.startswith("#")}
    assert named >= set(SETTINGS)


def test_an_existing_config_file_stays(folder: Path) -> None:
    assert f"Wrote {folder}/etc/forewarn.toml." in install()
    file = folder / "etc" / "forewarn.toml"
    assert file.stat().st_mode & 0o777 == 0o644
    file.write_text("speed = 60\n")
    assert "forewarn.toml." not in install("--force").splitlines()[0]
    assert file.read_text() == "speed = 60\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [("speed = 0\n", BadSetting), ('fleet = "fleet.toml"\n', BadFleet), ('log_level = "x"', BadSetting)],
)
def test_a_config_that_the_service_would_reject_is_not_installed(
    folder: Path, text: str, error: type[Exception]
) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "forewarn.toml").write_text(text)
    (folder / "fleet.toml").write_text("[[vm]]\nnamme = 1\n")
    with pytest.raises(error):
        install()
    assert list((folder / "units").iterdir()) == []


# --- The user -------------------------------------------------------------------------------------


def test_without_root_a_missing_user_is_an_error_with_the_command(folder: Path) -> None:
    with pytest.raises(BadOption, match=r"there is no such user\. As root, run: useradd --system .* no-such-user"):
        install("--user", "no-such-user")
    assert [path.name for path in folder.rglob("*")] == ["units"]


def test_a_program_that_the_user_cannot_run_is_not_installed(tmp_path: Path) -> None:
    need_root()
    (tmp_path / "units").mkdir()
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    program = hidden / "forewarn"
    program.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    code = f"import sys; sys.argv[0] = {str(program)!r}; from forewarn.__main__ import main; main()"
    words = ["install", "--user", USER, "--unit-dir", f"{tmp_path}/units", "--config", f"{tmp_path}/c.toml"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"this user cannot run {program}: Permission denied. Install Forewarn where every user" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hidden", "units"]


# --- Removal --------------------------------------------------------------------------------------


def test_uninstall_removes_the_unit_and_names_what_stays(folder: Path) -> None:
    install()
    (folder / "units" / "multi-user.target.wants").mkdir()
    (folder / "units" / "multi-user.target.wants" / UNIT_NAME).symlink_to(folder / "units" / UNIT_NAME)
    said = uninstall()
    assert said.splitlines() == [
        f"Removed units/{UNIT_NAME}. If it is running, stop it:",
        f"  systemctl stop {UNIT_NAME}",
        "  systemctl daemon-reload",
        "Not removed:",
        f"  config: {folder}/etc/forewarn.toml",
        f"  user: {USER}",
        f"  data: {DATA_FOLDER}",
    ]
    assert list((folder / "units").rglob("*.service")) == []
    assert (folder / "etc" / "forewarn.toml").exists()
    assert uninstall() == f"units/{UNIT_NAME} does not exist, so there is nothing to remove.\n"


def test_a_masked_unit_stays_masked(folder: Path) -> None:
    (folder / "units" / UNIT_NAME).symlink_to("/dev/null")
    for command in (install, uninstall):
        with pytest.raises(UnitMasked):
            command()
    assert (folder / "units" / UNIT_NAME).is_symlink()


def test_a_folder_that_cannot_be_written_is_named(folder: Path) -> None:
    with pytest.raises(NotPermitted, match=f"Cannot write nowhere/{UNIT_NAME}: No such file or directory.*--unit-dir"):
        install("--unit-dir", "nowhere")


def test_the_defaults_are_the_usual_places() -> None:
    done = CliRunner().invoke(root, ["install", "--print", "--config", CONFIG_FILE])
    assert f"--config={CONFIG_FILE}" in done.output
