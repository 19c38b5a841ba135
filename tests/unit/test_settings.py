"""Settings: what each kind of value takes, and which source wins."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from forewarn.core.webhooks import Targets
from forewarn.errors import BadConfigFile, BadSetting, UnknownSetting
from forewarn.settings import SETTINGS, resolve

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_user_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


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


def test_the_data_folder_is_the_users_own_unless_said(tmp_path: Path) -> None:
    assert resolve({}, {})["data"].value == str(tmp_path / "share" / "forewarn")
    assert resolve({}, {"FOREWARN_DATA": ""})["data"].value == str(tmp_path / "share" / "forewarn")
    assert resolve({"data": ":memory:"}, {})["data"].value == ":memory:"


@pytest.mark.parametrize(
    ("name", "text", "value", "shown"),
    [
        ("silence", "90m", timedelta(minutes=90), "1h30m"),
        ("preview_versions", "yes", True, "true"),
        ("preview_versions", "OFF", False, "false"),
        ("speed", "0.5", 0.5, "0.5"),
        ("metadata", "[::1]:80", "[::1]:80", "[::1]:80"),
        ("newer_versions", "newest", "newest", "newest"),
        ("webhook_private_targets", "", Targets(), ""),
        ("webhook_private_targets", "all", Targets(everything=True), "all"),
        ("webhook_timeout", "0.5s", timedelta(seconds=0.5), "0s"),
        ("webhook_attempts", "3", 3, "3"),
    ],
)
def test_values(name: str, text: str, value: object, shown: str) -> None:
    found = resolve({name: text}, {})[name]
    assert found.value == value
    assert str(found) == shown


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("silence", "0s", "write at least 1s"),
        ("silence", "a while", "14m50s"),
        ("preview_versions", "maybe", "choose true or false"),
        ("speed", "0", "from 0.001"),
        ("speed", "nan", "from 0.001"),
        ("rate_limit", "-1", "from 0"),
        ("metadata", "localhost", "HOST:PORT"),
        ("metadata", ":80", "HOST:PORT"),
        ("metadata", "::1:80", "[::1]:8169"),
        ("metadata", "127.0.0.1:²", "HOST:PORT"),
        ("control", "127.0.0.1:65536", "HOST:PORT"),
        ("clock", "sundial", "choose system or virtual"),
        ("newer_versions", "any", "choose refuse or newest"),
        ("webhook_private_targets", "localhost", "10.0.0.0/8, 127.0.0.1/32; or all"),
        ("webhook_retry", "0s", "write at least 0.01s"),
        ("webhook_attempts", "0", "from 1 to 10,000"),
        ("webhook_timeout", "6m", "write at most 300s"),
    ],
)
def test_a_wrong_value_says_where_it_came_from_and_what_would_be_right(name: str, text: str, words: str) -> None:
    with pytest.raises(BadSetting, match=SETTINGS[name].variable) as caught:
        resolve({}, {SETTINGS[name].variable: text})
    assert words in str(caught.value)


@pytest.mark.parametrize(("text", "error"), [("sped = 1\n", UnknownSetting), ("speed = \n", BadConfigFile)])
def test_a_wrong_file(tmp_path: Path, text: str, error: type[Exception]) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text)
    with pytest.raises(error, match=str(file)):
        resolve({}, {}, str(file))
