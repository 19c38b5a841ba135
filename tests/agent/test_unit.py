"""The systemd unit that `forewarn agent install` writes: judged by systemd itself."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from forewarn.agent.cli.install import UNIT_NAME
from forewarn.agent.cli.main import main, parser_of
from forewarn.agent.cli.options import resolve_options
from forewarn.agent.config_file import read_config
from forewarn.errors import BadOption
from forewarn.system.systemd_unit import command_line, fill_in, read_unit

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and "CI" not in os.environ, reason="systemd is not installed here"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("FOREWARN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.toml").write_text("[[rule]]\n")
    (tmp_path / "units").mkdir()
    return tmp_path


def install(*arguments: str) -> int:
    return main(["install", "--config", "agent.toml", "--unit-dir", "units", *arguments])


def verify(file: Path) -> str:
    """What systemd has to say about it: nothing, if all is well."""
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout + "".join(line for line in done.stderr.splitlines(keepends=True) if UNIT_NAME in line)


def started(file: Path) -> str:
    (line,) = re.findall(r"^ExecStart=(.*)$", file.read_text(), re.MULTILINE)
    return str(line)


@needs_systemd
@pytest.mark.parametrize("arguments", [(), ("--user", "daemon"), ("--state", "kept here")])
def test_systemd_finds_nothing_wrong_with_it(folder: Path, arguments: tuple[str, ...]) -> None:
    assert install(*arguments) == 0
    assert verify(folder / "units" / UNIT_NAME) == ""


@needs_systemd
def test_systemd_analyze_finds_errors(folder: Path) -> None:
    install()
    file = folder / "units" / UNIT_NAME
    file.write_text(file.read_text().replace("KillMode=process", "KillMode=gently"))
    assert "gently" in verify(file)


@needs_systemd
def test_a_user_of_its_own_has_the_tighter_bounds(folder: Path) -> None:
    def exposure(*arguments: str) -> float:
        install("--force", *arguments)
        done = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", "--no-pager", f"units/{UNIT_NAME}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        found = re.search(r"Overall exposure level.*: ([0-9.]+)", done.stdout)
        if found is None:
            pytest.skip("this systemd cannot judge a unit that is not loaded")
        return float(found[1])

    assert exposure("--user", "daemon") < 2.5 < exposure() < 7


@needs_systemd
@pytest.mark.parametrize("name", ["plain", "with blanks", "50%25", "$HOME", "a;b", "ünï"])
def test_systemd_reads_every_path_as_it_is(folder: Path, name: str) -> None:
    """It says which program is missing: so it has understood the path."""
    program = folder / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file = folder / UNIT_NAME
    command = (str(program), "--config", f"/etc/{name}", 'it\'s \\ "odd"')
    file.write_text(fill_in(read_unit(UNIT_NAME), command, "", ""))
    assert verify(file) == ""
    program.unlink()
    assert "is not executable" in verify(file)


def test_text_that_systemd_would_expand_is_escaped() -> None:
    assert command_line(["/bin/a", "50%", 'say "x"', "c:\\d"]) == '/bin/a "50%%" "say \\"x\\"" "c:\\\\d"'
    assert command_line(["/opt/$x/a", "$y"]) == '":/opt/$x/a" "$y"'
    with pytest.raises(BadOption, match="a unit file cannot contain it"):
        command_line(["/bin/a", "two\nlines"])
    with pytest.raises(BadOption, match="systemd cannot start a program with quotes in its path"):
        command_line(["/bin/it's", "x"])


def test_all_paths_are_absolute_and_the_environment_is_complete(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "bin" / "forewarn"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", ["bin/forewarn", "agent", "install"])
    assert install("--endpoint", "http://127.0.0.1:8169", "--vm-name", "web-0", "--listen", "127.0.0.1:9169") == 0
    assert started(folder / "units" / UNIT_NAME) == (
        f"{folder}/bin/forewarn agent run --config={folder}/agent.toml"
        " --endpoint=http://127.0.0.1:8169 --vm-name=web-0 --listen=127.0.0.1:9169"
    )
    monkeypatch.setattr(sys, "argv", ["something/else"])
    assert install("--force") == 0
    assert started(folder / "units" / UNIT_NAME).startswith(f"{sys.executable} -m forewarn.agent run --config={folder}")


def test_the_state_folder_is_that_of_systemd_or_the_chosen_one(folder: Path) -> None:
    install()
    text = (folder / "units" / UNIT_NAME).read_text()
    assert "ReadWritePaths=-/var/lib/forewarn-agent\n" in text
    assert "--state" not in text
    install("--force", "--state", "kept here")
    text = (folder / "units" / UNIT_NAME).read_text()
    assert f'ReadWritePaths="{folder}/kept here"\n' in text
    assert f'"--state={folder}/kept here"' in text


def test_the_state_folder_of_the_config_is_used_by_the_unit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "agent.toml").write_text('[agent]\nstate = "kept"\n')
    assert main(["install", "--config", "etc/agent.toml", "--unit-dir", "units"]) == 0
    text = (folder / "units" / UNIT_NAME).read_text()
    assert f"ReadWritePaths={folder}/etc/kept\n" in text
    words = shlex.split(started(folder / "units" / UNIT_NAME))
    options = parser_of("run").read(words[words.index("run") + 1 :])
    assert options.config == str(folder / "etc" / "agent.toml")
    places = resolve_options(options, read_config(Path(options.config)), {})
    assert places.folder == folder / "etc" / "kept"
    assert main(["check", "etc/agent.toml"]) == 0
    assert f"State folder: {folder}/etc/kept." in capsys.readouterr().out


def test_a_state_folder_that_is_not_there_is_made(folder: Path) -> None:
    """systemd starts no unit that may write to a folder which does not exist."""
    owner = pwd.getpwnam("daemon")
    assert install("--print", "--state", "kept/here") == 0
    assert not (folder / "kept").exists()
    assert install("--user", "daemon", "--state", "kept/here") == 0
    made = (folder / "kept" / "here").stat()
    assert (stat.S_IMODE(made.st_mode), made.st_uid, made.st_gid) == (0o700, owner.pw_uid, owner.pw_gid)
    (folder / "kept" / "here").chmod(0o750)
    assert install("--force", "--state", "kept/here") == 0
    assert stat.S_IMODE((folder / "kept" / "here").stat().st_mode) == 0o750


def test_an_invalid_state_folder_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "file").touch()
    assert install("--state", "file") == 5
    assert f"Cannot create the folder {folder}/file: " in capsys.readouterr().err
    assert list((folder / "units").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--endpoint", "bogus://x"), "the scheme must be http or https, not bogus"),
        (("--endpoint", ""), "Invalid --endpoint ''"),
        (("--listen", "9169"), "Invalid --listen '9169'"),
        (("--listen", "a..b:80"), "'a..b' is not an IP address or a host name"),
    ],
)
def test_a_config_that_run_would_reject_is_not_installed(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert install(*arguments) == 2
    assert said in capsys.readouterr().err
    assert list((folder / "units").iterdir()) == []


def test_an_endpoint_of_the_config_is_checked_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "agent.toml").write_text('[agent]\nendpoint = "bogus://x"\n')
    assert install() == 2
    assert capsys.readouterr().err.startswith("forewarn: agent.toml:2: agent.endpoint: ")


def test_a_value_that_looks_like_an_option_is_a_value(folder: Path) -> None:
    assert install("--vm-name=-x", "--state=--y") == 0
    words = shlex.split(started(folder / "units" / UNIT_NAME))
    assert parser_of("run").read(words[words.index("run") + 1 :]).vm_name == "-x"


def test_an_existing_unit_is_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "units" / UNIT_NAME
    assert install() == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Wrote units/{UNIT_NAME}.\n")
    assert "systemctl daemon-reload" in said
    assert "systemctl enable --now forewarn-agent.service" in said
    assert install() == 0
    assert "is up to date" in capsys.readouterr().out
    file.write_text("# somebody's own")
    assert install() == 4
    assert "exists with different content" in capsys.readouterr().err
    assert file.read_text() == "# somebody's own"
    assert install("--force") == 0
    assert file.read_text() != "# somebody's own"
    assert [path.name for path in (folder / "units").iterdir()] == [UNIT_NAME]


def test_print_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install("--print") == 0
    assert capsys.readouterr().out.startswith("[Unit]\n")
    assert list((folder / "units").iterdir()) == []


def test_a_config_that_is_wrong_is_not_installed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "agent.toml").write_text("[[rule]]\nonn = 1\n")
    assert install() == 2
    assert capsys.readouterr().err.startswith("forewarn: agent.toml:2: ")
    assert list((folder / "units").iterdir()) == []


@needs_systemd
@pytest.mark.parametrize("name", ["forewarn.service", UNIT_NAME])
def test_the_units_of_the_package_are_valid_as_they_are(tmp_path: Path, name: str) -> None:
    """They start the program that a package of a distribution would install."""
    (tmp_path / name).write_text(read_unit(name))
    done = subprocess.run(["systemd-analyze", "verify", tmp_path / name], capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if name in line]
    assert len(lines) == 1, lines
    assert "Command /usr/bin/forewarn is not executable" in lines[0]


def test_uninstall_removes_the_unit_and_names_what_stays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install("--user", "daemon", "--state", "kept %here") == 0
    capsys.readouterr()
    assert main(["uninstall", "--unit-dir", "units"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"Removed units/{UNIT_NAME}. If it is running, stop it:",
        f"  systemctl stop {UNIT_NAME}",
        "  systemctl daemon-reload",
        "Not removed:",
        f"  config: {folder}/agent.toml",
        "  user: daemon",
        f"  data: {folder}/kept %here",
    ]
    assert list((folder / "units").iterdir()) == []
    assert (folder / "kept %here").is_dir()
    assert main(["uninstall", "--unit-dir", "units"]) == 0
    assert "does not exist" in capsys.readouterr().out
