"""Settings: what each kind of value takes, and which source wins."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from forewarn.cli import root
from forewarn.cli.settings import command
from forewarn.control.settings import SettingControl
from forewarn.core.webhooks import AllowedNetworks
from forewarn.errors import BadConfigFile, BadSetting, BadSettings, UnknownSetting
from forewarn.settings import (
    PER_NODE,
    SETTINGS,
    SETTLING,
    SHARED,
    Setting,
    Value,
    default_name,
    resolve,
    without_password,
)
from forewarn.testing import Service
from forewarn.testing.running_service import read_settings

if TYPE_CHECKING:
    from pathlib import Path

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def no_user_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


def test_every_setting_is_either_shared_between_nodes_or_of_one_node() -> None:
    assert sorted((*SHARED, *PER_NODE)) == sorted(SETTINGS)


LISTS = {"NETWORKS": ("10.0.0.0/8", "192.168.7.0/24"), "NAMES": ("one.example.org", "two.example.org")}


@pytest.mark.parametrize("setting", [s for s in SETTINGS.values() if s.metavar in LISTS], ids=lambda s: s.name)
def test_an_option_with_a_list_can_be_repeated(setting: Setting) -> None:
    first, second = LISTS[setting.metavar]
    result = CliRunner().invoke(command, ["--json", setting.option, first, setting.option, second])
    assert json.loads(result.stdout)[setting.name]["value"] == f"{first}, {second}"


def test_a_flag_beats_a_variable_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('speed = 2\nclock = "virtual"\n')
    variables = {"FOREWARN_SPEED": "3", "FOREWARN_CONFIG": str(file)}
    values = resolve({"speed": "4"}, variables)
    assert (values["speed"].value, values["speed"].origin) == (4.0, "--speed")
    values = resolve({}, variables)
    assert (values["speed"].value, values["speed"].origin) == (3.0, "FOREWARN_SPEED")
    values = resolve({}, {}, str(file))
    assert (values["speed"].value, values["speed"].origin) == (2.0, str(file))
    assert values["clock"].value == "virtual"
    values = resolve({}, {})
    assert (values["speed"].value, values["speed"].origin) == (1.0, "default")


def test_the_users_own_file_is_read_when_it_is_there(tmp_path: Path) -> None:
    file = tmp_path / "config" / "forewarn" / "forewarn.toml"
    file.parent.mkdir(parents=True)
    file.write_text("rate_limit = 0\n")
    assert resolve({}, {})["rate_limit"] == (0.0, str(file))


def test_the_default_data_folder_belongs_to_the_user(tmp_path: Path) -> None:
    assert resolve({}, {})["data"].value == str(tmp_path / "share" / "forewarn")
    assert resolve({}, {"FOREWARN_DATA": ""})["data"].value == str(tmp_path / "share" / "forewarn")
    assert resolve({"data": ":memory:"}, {})["data"].value == ":memory:"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("/var/lib/forewarn", "forewarn"),
        ("/srv/web shop/", "web-shop"),
        ("/srv/.hidden", "hidden"),
        ("/srv/Straße", "Stra-e"),
        ("/srv/" + "x" * 200, "x" * 50),
        ("/srv/---", "forewarn"),
        ("/", "forewarn"),
    ],
)
def test_the_default_name_comes_from_the_data_folder(data: str, name: str) -> None:
    assert default_name(data) == name
    assert resolve({"name": name}, {})["name"].value == name


def test_the_default_name_in_memory_comes_from_the_process() -> None:
    assert default_name(":memory:") == f"memory-{os.getpid()}"


@pytest.mark.parametrize(
    ("name", "text", "value", "shown"),
    [
        ("inactivity_timeout", "90m", timedelta(minutes=90), "1h30m"),
        ("preview_versions", "yes", True, "true"),
        ("preview_versions", "OFF", False, "false"),
        ("speed", "0.5", 0.5, "0.5"),
        ("metadata", "[::1]:80", "[::1]:80", "[::1]:80"),
        ("fabric", "manual", "manual", "manual"),
        ("webhook_private_networks", "", AllowedNetworks(), ""),
        ("webhook_private_networks", "all", AllowedNetworks(everything=True), "all"),
        ("first_get_delay", "0.5s", timedelta(seconds=0.5), "0s"),
        ("max_pending_user_operations", "3", 3, "3"),
    ],
)
def test_values(name: str, text: str, value: object, shown: str) -> None:
    found = resolve({name: text}, {})[name]
    assert found.value == value
    assert str(found) == shown


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("inactivity_timeout", "0s", "must be at least 1s"),
        ("inactivity_timeout", "a while", "14m50s"),
        ("preview_versions", "maybe", "must be true or false"),
        ("speed", "0", "from 0.001"),
        ("speed", "nan", "from 0.001"),
        ("rate_limit", "-1", "from 0"),
        ("metadata", "localhost", "HOST:PORT"),
        ("metadata", ":80", "HOST:PORT"),
        ("metadata", "::1:80", "[::1]:8169"),
        ("metadata", "127.0.0.1:²", "HOST:PORT"),
        ("control", "127.0.0.1:65536", "HOST:PORT"),
        ("clock", "sundial", "must be system or virtual"),
        ("webhook_private_networks", "localhost", "10.0.0.0/8, 127.0.0.1/32; or all"),
        ("max_pending_user_operations", "-1", "from 0 to 1,000,000"),
        ("max_pending_user_operations", "1000001", "from 0 to 1,000,000"),
        ("lease", "2m", "must be at most 60s"),
        ("clock", "virtuel", "must be system or virtual. Did you mean 'virtual'?"),
        ("fabric", "comand", "Did you mean 'command'?"),
        ("settle", "restrat=1m", "Did you mean 'restart'?"),
        ("settle", "rebalance=1m", "'rebalance' is not a cause whose events start"),
        ("settle", "restart", "must be CAUSE=DURATION, for example restart=10m"),
        ("settle", "restart=1m,", "must be CAUSE=DURATION, for example restart=10m"),
        ("settle", "restart=soon", "14m50s"),
    ],
)
def test_an_invalid_value_is_an_error_with_its_source_and_the_allowed_values(name: str, text: str, words: str) -> None:
    with pytest.raises(BadSetting, match=SETTINGS[name].variable) as caught:
        resolve({}, {SETTINGS[name].variable: text})
    assert words in str(caught.value)


def test_all_invalid_values_are_reported_at_once() -> None:
    with pytest.raises(BadSettings) as caught:
        resolve({"clock": "virtuel"}, {"FOREWARN_SPEED": "fast"})
    first, *others = str(caught.value).splitlines()
    assert first == "2 settings are not valid:"
    assert ["clock = 'virtuel' (from --clock)" in others[0], "(from FOREWARN_SPEED)" in others[1]] == [True, True]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("sped = 1\n", UnknownSetting),
        ("speed = \n", BadConfigFile),
        (f"rate_limit = 0x{'f' * 9000}\n", BadSetting),
        ("sped = 1\nspeed = 0\n", BadSettings),
    ],
    ids=["unknown", "no TOML", "many digits", "two mistakes"],
)
def test_a_wrong_file(tmp_path: Path, text: str, error: type[Exception]) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text)
    with pytest.raises(error, match=str(file)):
        resolve({}, {}, str(file))


# --- Settle times ---------------------------------------------------------------------------------------


def test_settle_times_of_several_sources_are_merged(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('[settle]\nrestart = "1m"\nredeploy = "2m"\nhost-update = 180\n')
    usual = resolve({}, {})["settle"]
    assert usual.origin == "default"
    assert usual.value == SETTLING
    assert resolve({"settle": str(usual)}, {})["settle"].value == SETTLING
    variables = {"FOREWARN_CONFIG": str(file), "FOREWARN_SETTLE": "restart=4m, redeploy=5m"}
    found = resolve({"settle": "restart=6m"}, variables)["settle"]
    assert found.origin == f"--settle, FOREWARN_SETTLE, {file}"
    changed = {"restart": 6 * MINUTE, "redeploy": 5 * MINUTE, "host-update": 3 * MINUTE}
    assert found.value == {**SETTLING, **changed}
    assert str(found).startswith("restart=6m,redeploy=5m,reimage=10m,image-upgrade=10m,host-update=3m,")


@pytest.mark.parametrize("text", ['settle = "restart=1m"\n', "settle = 5\n"])
def test_settle_times_in_a_file_are_a_table(tmp_path: Path, text: str) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text)
    with pytest.raises(BadSetting, match=r'must be a table: \[settle\], followed by lines like restart = "10m"'):
        resolve({}, {}, str(file))


def test_the_kit_takes_settle_times_by_cause() -> None:
    found = read_settings({"settle": {"restart": "0s", "redeploy": MINUTE, "delete": 30}})["settle"]
    assert found == {**SETTLING, "restart": 0 * MINUTE, "redeploy": MINUTE, "delete": MINUTE / 2}


def test_the_command_line_takes_settle_times_one_by_one() -> None:
    given = ["--settle", "restart=1m", "--settle", "delete=2m", "--settle", "restart=3m"]
    shown = CliRunner().invoke(command, [*given, "--json"]).output
    assert json.loads(shown)["settle"]["value"].startswith("restart=3m,redeploy=10m,")
    assert json.loads(shown)["settle"]["from"] == "--settle"


def test_descriptions_of_several_sources_are_merged(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('[description]\nhost-update = "File, with = and comma"\neviction = "Old"\nrebalance = ""\n')
    variables = {"FOREWARN_CONFIG": str(file), "FOREWARN_DESCRIPTION": "eviction=New\nscale-in=Fewer, please"}
    found = resolve({"description": "scale-in=Fewest"}, variables)["description"]
    expected = {"host-update": "File, with = and comma", "eviction": "New", "rebalance": "", "scale-in": "Fewest"}
    assert found.value == expected
    assert resolve({"description": str(found)}, {})["description"].value == expected
    assert resolve({}, {})["description"].value == {}
    assert str(resolve({}, {})["description"]) == ""
    assert read_settings({"description": expected})["description"] == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("restart=x", "'restart' is not a cause of the platform"),
        ("host-updat=x", "Did you mean 'host-update'?"),
        ("x", "must be CAUSE=TEXT"),
        (f"host-update={'x' * 257}", "at most 256"),
        ("host-update=a\tb", "control characters"),
    ],
)
def test_a_bad_description_is_an_error(text: str, words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        resolve({"description": text}, {})


def test_descriptions_in_a_file_are_a_table(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('description = "x"\n')
    with pytest.raises(BadSetting, match=r"must be a table: \[description\], followed by lines like host-update = "):
        resolve({}, {}, str(file))


def test_the_command_line_takes_descriptions_one_by_one() -> None:
    given = ["--description", "scale-in=One, two", "--description", "eviction=Three"]
    shown = CliRunner().invoke(command, [*given, "--json"]).output
    assert json.loads(shown)["description"]["value"] == "scale-in=One, two\neviction=Three"
    assert "scale-in=One, two; eviction=Three" in CliRunner().invoke(command, given).output


# --- Unknown names --------------------------------------------------------------------------------------


def test_an_unknown_setting_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('inactivity_timeot = "3m"\n')
    with pytest.raises(UnknownSetting) as caught:
        resolve({}, {}, str(file))
    expected = "Unknown setting 'inactivity_timeot' (in {}). Did you mean 'inactivity_timeout'?"
    assert str(caught.value) == expected.format(file)
    arguments: dict[str, Any] = {"inactivity_timeot": "3m"}
    with pytest.raises(UnknownSetting) as caught:
        Service(**arguments)
    assert str(caught.value) == expected.format("Service(...)")
    for words in (["up", "--inactivity-timeot", "3m"], ["settings", "--inactivity-timeot=3m"]):
        result = CliRunner().invoke(root, words)
        assert result.exit_code == 2
        assert "No such option '--inactivity-timeot'. Did you mean '--inactivity-timeout'?" in result.output


def test_a_settle_time_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text("\n".join(f'settle.{cause} = "3m"' for cause in SETTLING))
    assert resolve({}, {}, str(file))["settle"].value == dict.fromkeys(SETTLING, 3 * MINUTE)


@pytest.mark.parametrize(
    ("database", "shown"),
    [
        ("postgresql://db.example.org/forewarn", "postgresql://db.example.org/forewarn"),
        ("postgresql://me:s3cret@db:5432/forewarn", "postgresql://me:***@db:5432/forewarn"),
        ("postgresql://me:s3/cr@et@db/forewarn", "postgresql://me:***@db/forewarn"),
        ("postgresql://db/forewarn?user=me&password=s3cret&sslmode=require", None),
        ("host=db user=me password=s3cret", None),
        ("host=db password='s3cret with blanks' user=me", None),
        ("host=db password = s3cret user=me", "host=db password = *** user=me"),
        ("host=db password='a\\' s3cret' user=me", "host=db password=*** user=me"),
        ("host=db password=a\\ s3cret user=me", "host=db password=*** user=me"),
        ("host=db passfile=/etc/pgpass user=me", "host=db passfile=/etc/pgpass user=me"),
        ("host=db password=a s3cret user = me", "host=db password=*** user = me"),
        ("postgresql//me:s3cret@db/forewarn", None),
        ("postgresql://db/forewarn?pasword=s3cret", None),
    ],
)
def test_the_password_of_a_database_is_never_shown(database: str, shown: str | None) -> None:
    found = without_password(database)
    assert shown is None or found == shown
    assert "s3" not in found
    setting = SettingControl({"database": Value(database, "--database")})._text(SETTINGS["database"], is_admin=True)
    assert setting == found
