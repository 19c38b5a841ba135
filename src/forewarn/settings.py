"""SETTINGS: one row each. A flag beats the environment, which beats the file, which beats the default."""

from __future__ import annotations

import math
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import platformdirs

from forewarn.core.durations import format_duration, parse_duration
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.operations import CAUSES
from forewarn.core.webhooks import parse_allowed_networks
from forewarn.errors import BadConfigFile, BadSetting, Invalid, UnknownSetting, nearest
from forewarn.system.addresses import read_host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MEMORY = ":memory:"


def user_data_folder() -> Path:
    """Where data lives when nothing else is said, and how a service without a folder is found."""
    return Path(platformdirs.user_data_dir("forewarn"))


def user_config_file() -> Path:
    return Path(platformdirs.user_config_dir("forewarn")) / "forewarn.toml"


# --- How each kind of value is read. A ValueError's text says what would be right. --------------------


def _address(text: str) -> str:
    try:
        read_host_port(text)
    except ValueError:
        raise ValueError("write it as HOST:PORT, for example 127.0.0.1:8169 or [::1]:8169") from None
    return text


def _clock(text: str) -> str:
    if text not in ("system", "virtual"):
        raise ValueError("choose system or virtual")
    return text


def _newer(text: str) -> str:
    if text not in ("refuse", "newest"):
        raise ValueError("choose refuse or newest")
    return text


def _number(least: float, most: float, unit: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        wrong = f"write a number {unit} from {least:g} to {most:,.0f}"
        try:
            number = float(text)
        except ValueError:
            raise ValueError(wrong) from None
        if not least <= number <= most:
            raise ValueError(wrong)
        return number

    return read


def _fabric(text: str) -> str:
    if text not in FABRICS:
        raise ValueError(f"choose one of {', '.join(FABRICS)}")
    return text


def _count(most: int, least: int = 0) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"write a whole number from {least} to {most:,}")
        return int(text)

    return read


def _length(least: float, most: float = math.inf) -> Callable[[str], timedelta]:
    """In seconds; the most is for what somebody waits for."""

    def read(text: str) -> timedelta:
        length = parse_duration(text)
        if length.total_seconds() < least:
            raise ValueError(f"write at least {least:g}s")
        if length.total_seconds() > most:
            raise ValueError(f"write at most {most:g}s")
        return length

    return read


def _retention(text: str) -> timedelta:
    length = parse_duration(text)
    if length and length < timedelta(days=1):
        raise ValueError("write at least 1d, or 0s to keep everything")
    return length


def _switch(text: str) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.lower() not in words:
        raise ValueError("choose true or false")
    return words[text.lower()]


def _data(text: str) -> str:
    return text if text in ("", MEMORY) else str(Path(text).expanduser())


def _file(text: str) -> str:
    return str(Path(text).expanduser()) if text else ""


SETTLING = {name: cause.settle for name, cause in CAUSES.items() if cause.types and EVENT_TYPES[cause.types[0]].starts}
"""How long an event stays Started, for each cause whose events start."""


def _settle(text: str) -> dict[str, timedelta]:
    """Only the causes that it names."""
    found = {}
    for part in text.split(",") if text.strip() else ():
        cause, equals, length = part.partition("=")
        if not equals:
            raise ValueError("write CAUSE=DURATION, like restart=10m")
        if cause.strip() not in SETTLING:
            raise ValueError(f"{cause.strip()!r} is not a cause with a settle time.{nearest(cause.strip(), SETTLING)}")
        found[cause.strip()] = parse_duration(length)
    return found


def format_settle(lengths: Mapping[str, timedelta]) -> str:
    """As it is given on the command line and in a variable: `restart=10m,redeploy=5m`."""
    return ",".join(f"{cause}={format_duration(length)}" for cause, length in lengths.items())


_OLD_SETTLE = {f"settle_{cause.replace('-', '_')}": cause for cause in SETTLING}


def refuse_old_settle(name: str, value: object, origin: object, form: str) -> None:
    """Each cause once had a setting of its own: say how it is written now."""
    if name in _OLD_SETTLE:
        hint = f" Write {form.format(cause=_OLD_SETTLE[name], value=value)}"
        raise UnknownSetting(name=name, origin=origin, hint=hint)


class Setting(NamedTuple):
    """One thing a user can choose."""

    name: str
    default: str
    form: str
    help: str
    read: Callable[[str], Any] = str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        """Whether the flag alone says something: that it is on."""
        return self.read is _switch

    @property
    def is_repeatable(self) -> bool:
        """Whether it holds several values by name: sources add to each other, and a flag may be repeated."""
        return self.read is _settle

    @property
    def variable(self) -> str:
        return "FOREWARN_" + self.name.upper()


FABRICS = ("simulated", "manual", "command")

SETTINGS = {
    row.name: row
    for row in (
        Setting("fleet", "", "FILE", "The fleet file. It is applied when it has changed since it was last.", _file),
        Setting("data", "", "DIR", "Where everything is kept; :memory: keeps nothing after the stop.", _data),
        Setting("metadata", "127.0.0.1:8169", "HOST:PORT", "Where VMs ask for their events.", _address),
        Setting("control", "127.0.0.1:8170", "HOST:PORT", "Where the command line and other programs ask.", _address),
        Setting("tls_certificate", "", "FILE", "The certificate of the control API, with its chain, as PEM.", _file),
        Setting("tls_key", "", "FILE", "The key of that certificate, where it is in a file of its own.", _file),
        Setting("clock", "system", "system|virtual", "Virtual time stands still until it is moved.", _clock),
        Setting(
            "speed",
            "1",
            "N",
            "Every notice, settle time and silence N times shorter; the clock itself stays true.",
            _number(0.001, 1_000_000, "of times"),
        ),
        Setting(
            "rate_limit", "5", "N", "Requests per second and VM; 0: no limit.", _number(0, 1_000_000, "of requests")
        ),
        Setting("head_size", "16384", "BYTES", "How large the head of a VM's request may be.", _count(1_048_576, 1024)),
        Setting("head_timeout", "10s", "LENGTH", "How long the head of a VM's request may take.", _length(0.1)),
        Setting("body_timeout", "10s", "LENGTH", "How long the body of a VM's request may take.", _length(0.1)),
        Setting("idle_timeout", "75s", "LENGTH", "How long a VM's connection may be idle.", _length(0.1)),
        Setting("unread_timeout", "30s", "LENGTH", "How long a VM may leave its answers unread.", _length(0.1)),
        Setting(
            "pipelined_requests",
            "1",
            "N",
            "How many requests of a VM are read ahead while one is in progress.",
            _count(1000, 1),
        ),
        Setting(
            "connections", "0", "N", "How many connections VMs may have together; 0: any number.", _count(10_000_000)
        ),
        Setting(
            "connections_per_address",
            "1000",
            "N",
            "How many connections to the metadata service one address may have; 0: any number.",
            _count(10_000_000),
        ),
        Setting("first_get_delay", "0s", "LENGTH", "How long a group's first GET is held.", parse_duration),
        Setting("silence", "24h", "LENGTH", "After how long without a GET a group is told no more.", _length(1)),
        Setting("fabric", "simulated", "|".join(FABRICS), "Who does the work that is announced.", _fabric),
        Setting(
            "fabric_command", "", "PROGRAM", "With --fabric command: what to run for each order, with its arguments."
        ),
        Setting(
            "pending_user_operations",
            "0",
            "N",
            "How many operations of users a group may have pending; 0: any number.",
            _count(1_000_000),
        ),
        Setting("postponement", "7d", "LENGTH", "How far an event of the platform may be postponed.", parse_duration),
        Setting("history_retention", "400d", "LENGTH", "How long history is kept; 0s: for ever.", _retention),
        Setting("preview_versions", "false", "true|false", "Also serve api-versions in preview.", _switch),
        Setting(
            "newer_versions",
            "refuse",
            "refuse|newest",
            "What an api-version newer than all that are known gets: 404 as on Azure, or the newest known.",
            _newer,
        ),
        Setting(
            "post_without_header", "false", "true|false", "Take approvals without the header Metadata: true.", _switch
        ),
        Setting(
            "allow_faults",
            "false",
            "true|false",
            "Let operators make the endpoint fail on purpose.",
            _switch,
        ),
        Setting(
            "webhook_private_targets",
            "",
            "NETWORKS",
            "Private networks that webhooks may go to, like 10.0.0.0/8, 127.0.0.1/32; or all.",
            parse_allowed_networks,
        ),
        Setting("webhook_retry", "1s", "LENGTH", "The first pause before a webhook is tried again.", _length(0.01)),
        Setting(
            "webhook_attempts", "80", "N", "How often a webhook is tried before it is given up.", _count(10_000, 1)
        ),
        Setting("webhook_timeout", "10s", "LENGTH", "How long a webhook has to answer.", _length(0.1, 300)),
        Setting(
            "settle",
            format_settle(SETTLING),
            "CAUSE=LENGTH",
            "How long an event of a cause stays Started, like restart=10m. May be repeated.",
            _settle,
        ),
    )
}


class Value(NamedTuple):
    """A setting's value and where it came from."""

    value: Any
    origin: str

    def __str__(self) -> str:
        if isinstance(self.value, timedelta):
            return format_duration(self.value)
        if isinstance(self.value, dict):
            return format_settle(self.value)
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return f"{self.value:g}" if isinstance(self.value, float) else str(self.value)


def resolve(
    flags: Mapping[str, str | None], environment: Mapping[str, str], config: str | None = None
) -> dict[str, Value]:
    """Every setting with its value and origin."""
    path = config or environment.get("FOREWARN_CONFIG")
    in_file = _read_file(Path(path)) if path else _read_file(user_config_file(), must_exist=False)
    origin_file = path or str(user_config_file())
    for name in _OLD_SETTLE:
        if (variable := f"FOREWARN_{name.upper()}") in environment:
            refuse_old_settle(name, environment[variable], variable, "FOREWARN_SETTLE={cause}={value}")
    values = {}
    for name, setting in SETTINGS.items():
        sources = (
            (flags.get(name), setting.flag),
            (environment.get(setting.variable), setting.variable),
            (in_file.get(name), origin_file),
            (setting.default, "default"),
        )
        given = [(text, origin) for text, origin in sources if text is not None]
        text, origin = given[0]
        if setting.is_repeatable:  # each source says some of it
            parts = [_read(setting, text, origin) for text, origin in given]
            merged = {key: value for part in reversed(parts) for key, value in part.items()}
            origin = ", ".join(origin for _, origin in given[:-1]) or origin
            values[name] = Value(merged, origin)
        else:
            values[name] = Value(_read(setting, text, origin), origin)
    if not values["data"].value:
        values["data"] = Value(str(user_data_folder()), values["data"].origin)
    return values


def _read(setting: Setting, text: str, origin: str) -> Any:
    try:
        return setting.read(text)
    except (ValueError, Invalid) as error:
        raise BadSetting(name=setting.name, value=text, origin=origin, problem=str(error)) from error


def _read_file(path: Path, *, must_exist: bool = True) -> dict[str, str]:
    try:
        parsed = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        if not must_exist:
            return {}
        raise BadConfigFile(path=path, problem="the file does not exist") from error
    except (OSError, ValueError) as error:
        raise BadConfigFile(path=path, problem=str(error)) from error
    for name, value in parsed.items():
        if name not in SETTINGS:
            refuse_old_settle(name, value, path, '[settle], and below it {cause} = "{value}".')
            raise UnknownSetting(name=name, origin=path, hint=nearest(name, SETTINGS))
        if SETTINGS[name].is_repeatable and not isinstance(value, dict):
            problem = 'write a table: [settle], followed by lines like restart = "10m"'
            raise BadSetting(name=name, value=value, origin=path, problem=problem)
    return {name: _text(value) for name, value in parsed.items()}


def _text(value: Any) -> str:
    """What a file says, as a flag would."""
    if isinstance(value, dict):
        return ",".join(f"{key}={_text(each)}" for key, each in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
