"""Settings of the service, one row each.

An option overrides a variable, a variable overrides the file, the file overrides the default.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.core.access import NAME_PATTERN, NAME_RULE
from forewarn.core.durations import format_duration, parse_duration
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.events import Source
from forewarn.core.operations import CAUSES
from forewarn.core.requests import description_problem
from forewarn.core.webhooks import parse_allowed_networks
from forewarn.errors import BadConfigFile, BadSetting, BadSettings, Invalid, UnknownSetting, nearest
from forewarn.files.toml_reader import list_mistakes
from forewarn.system.addresses import is_host_name, read_host_port
from forewarn.system.logs import LOG_FORMATS, LOG_LEVELS
from forewarn.system.networks import read_networks
from forewarn.system.user_folders import MEMORY, user_config_file, user_data_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from forewarn.files.toml_reader import KeyPath

MAX_DEFAULT_NAME = 50
"""Leaves room for a number."""


# --- Readers of values. The text of a ValueError follows "... is not valid: " -------------------------


def _address(text: str) -> str:
    try:
        read_host_port(text)
    except ValueError:
        raise ValueError("must be HOST:PORT, for example 127.0.0.1:8169 or [::1]:8169") from None
    return text


def _choice(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            hint = nearest(text, choices)
            raise ValueError(f"must be {', '.join(choices[:-1])} or {choices[-1]}" + (f".{hint}" if hint else ""))
        return text

    return read


def _number(minimum: float, maximum: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        problem = f"must be a number from {minimum:g} to {maximum:,.0f}"
        try:
            number = float(text)
        except ValueError:
            raise ValueError(problem) from None
        if not minimum <= number <= maximum:
            raise ValueError(problem)
        return number

    return read


def _count(maximum: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) > maximum:
            raise ValueError(f"must be a whole number from 0 to {maximum:,}")
        return int(text)

    return read


def _duration(minimum_seconds: float, maximum_seconds: float = math.inf) -> Callable[[str], timedelta]:
    def read(text: str) -> timedelta:
        duration = parse_duration(text)
        if duration.total_seconds() < minimum_seconds:
            raise ValueError(f"must be at least {minimum_seconds:g}s")
        if duration.total_seconds() > maximum_seconds:
            raise ValueError(f"must be at most {maximum_seconds:g}s")
        return duration

    return read


def _retention(text: str) -> timedelta:
    duration = parse_duration(text)
    if duration and duration < timedelta(days=1):
        raise ValueError("must be at least 1d, or 0s to keep history without a limit")
    return duration


def _switch(text: str) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.lower() not in words:
        raise ValueError("must be true or false")
    return words[text.lower()]


def _data(text: str) -> str:
    return text if text in ("", MEMORY) else str(Path(text).expanduser())


def _name(text: str) -> str:
    if text and not re.fullmatch(NAME_PATTERN, text):
        raise ValueError(NAME_RULE)
    return text


def default_name(data: str) -> str:
    """The name of a service without a name of its own: after its data folder, or after its process."""
    if data == MEMORY:
        return f"memory-{os.getpid()}"
    name = re.sub("[^A-Za-z0-9._@-]", "-", Path(data).absolute().name).lstrip("._@-")[:MAX_DEFAULT_NAME]
    return name or "forewarn"


def _schema(text: str) -> str:
    if not re.fullmatch("[a-z_][a-z0-9_]{0,40}", text) or text.startswith("pg_"):
        raise ValueError("must be a name of up to 41 lower-case letters, digits and underscores, without pg_ in front")
    return text


def _node_address(text: str) -> str:
    host, _ = read_host_port(_address(text))
    if host in ("0.0.0.0", "::", "*", ""):  # noqa: S104 - it is rejected
        raise ValueError("must be an address that the other nodes can connect to, for example 10.0.0.5:8171")
    return text


_SECRET = r"(?!passfile)\w*pas\w*"  # noqa: S105 - a name of a parameter


def without_password(database: str) -> str:
    """Return the setting `database` in a form that can be shown, also if it is not valid."""
    if "://" in database:
        shown = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", database)
        return re.sub(rf"([?&]{_SECRET}=)[^&]*", r"\1***", shown, flags=re.IGNORECASE)
    shown = re.sub(r":\S*@", ":***@", database)
    # Blanks around "=", quotes and backslashes are as libpq reads them. A word without "=" may be the rest of a secret.
    value = r"('(?:\\.|[^'\\])*'?|(?:\\.|[^\s\\])*)\S*(\s+[^\s=]+(?=\s|$)(?!\s*=))*"
    return re.sub(rf"(\b{_SECRET}\s*=\s*){value}", r"\1***", shown, flags=re.IGNORECASE)


def _file(text: str) -> str:
    return str(Path(text).expanduser()) if text else ""


def _host_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if not is_host_name(name):
            raise ValueError(f"{name!r} is not a host name. Write names like forewarn.example.org, forewarn")
    return names


SETTLING = {name: cause.settle for name, cause in CAUSES.items() if cause.types and EVENT_TYPES[cause.types[0]].starts}
"""Default settle time of each cause whose events start: how long an event stays Started."""


def _settle(text: str) -> dict[str, timedelta]:
    """Settle times of the causes that the text names."""
    found = {}
    for part in text.split(",") if text.strip() else ():
        name, equals, duration = part.partition("=")
        cause = name.strip()
        if not equals:
            raise ValueError("must be CAUSE=DURATION, for example restart=10m")
        if cause not in SETTLING:
            causes = ", ".join(SETTLING)
            raise ValueError(f"{cause!r} is not a cause whose events start.{nearest(cause, SETTLING)} Causes: {causes}")
        found[cause] = parse_duration(duration)
    return found


def format_settle(durations: Mapping[str, timedelta]) -> str:
    """The form of the command line and of a variable: `restart=10m,redeploy=5m`."""
    return ",".join(f"{cause}={format_duration(duration)}" for cause, duration in durations.items())


DESCRIBED = tuple(name for name, cause in CAUSES.items() if cause.source is Source.PLATFORM)
"""Causes whose events have a description that the operator can choose."""


def _description(text: str) -> dict[str, str]:
    """Descriptions of the causes that the text names, one in each line."""
    found = {}
    for line in text.splitlines():
        name, equals, description = line.partition("=")
        cause = name.strip()
        if not equals:
            raise ValueError("must be CAUSE=TEXT, for example host-update=Host server is undergoing maintenance.")
        if cause not in DESCRIBED:
            hint = f"{nearest(cause, DESCRIBED)} Causes: {', '.join(DESCRIBED)}"
            raise ValueError(f"{cause!r} is not a cause of the platform.{hint}")
        if problem := description_problem(description):
            raise ValueError(f"{cause}: {problem}")
        found[cause] = description
    return found


# --- The settings ---------------------------------------------------------------------------------


class Setting(NamedTuple):
    """A setting of the service."""

    name: str
    default: str
    metavar: str
    help: str
    read: Callable[[str], Any] = str

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "FOREWARN_" + self.name.upper()

    @property
    def is_switch(self) -> bool:
        """Whether the option can be given without a value, which means true."""
        return self.read is _switch

    @property
    def is_repeatable(self) -> bool:
        """Whether the value has several keys. Sources are merged, and the option can be repeated."""
        return self.read in (_settle, _description)

    @property
    def is_list(self) -> bool:
        """Whether the value is a list. The option can be repeated, and adds to the list."""
        return self.read in (read_networks, parse_allowed_networks, _host_names)

    @property
    def separator(self) -> str:
        """What separates the values of an option. A description can contain a comma, but no line break."""
        return "\n" if self.read is _description else ","

    def join(self, values: Mapping[str, str]) -> str:
        """Return the form of an option, from the text of each key."""
        return self.separator.join(f"{key}={text}" for key, text in values.items())


FABRICS = ("simulated", "manual", "command")

SECTIONS = {
    "Service": (
        Setting(
            "fleet",
            "",
            "FILE",
            "The fleet file. The service applies it at start-up, unless it was the last one applied.",
            _file,
        ),
        Setting("data", "", "DIR", "The data folder. :memory: keeps all data in memory only.", _data),
        Setting("name", "", "NAME", "Name of the service on this machine.  [default: by data folder]", _name),
        Setting("metadata", "127.0.0.1:8169", "HOST:PORT", "Address of the metadata service, for VMs.", _address),
        Setting("control", "127.0.0.1:8170", "HOST:PORT", "Address of the control API, for operators.", _address),
        Setting("tls_certificate", "", "FILE", "TLS certificate of the control API with its chain, as PEM.", _file),
        Setting("tls_key", "", "FILE", "Private key of the TLS certificate, if it is in a separate file.", _file),
        Setting(
            "trusted_proxies",
            "",
            "NETWORKS",
            "Networks of proxies, for example 192.0.2.10/32. The limits of connections per address exclude them.",
            read_networks,
        ),
        Setting("history_retention", "400d", "DURATION", "Keep history for this long. 0s: no limit.", _retention),
    ),
    "Several nodes": (
        Setting(
            "database",
            "",
            "URL",
            "PostgreSQL database that several nodes share, for example postgresql://forewarn@db.example.org/forewarn.",
        ),
        Setting("database_schema", "forewarn", "NAME", "The schema in this database.", _schema),
        Setting(
            "node_address",
            "127.0.0.1:0",
            "HOST:PORT",
            "Address of this node for the other nodes. Port 0: any free port.",
            _node_address,
        ),
        Setting(
            "node_listen",
            "",
            "HOST:PORT",
            "Where this node listens for other nodes, if not at --node-address: behind NAT, or in a container.",
            lambda text: _address(text) if text else "",
        ),
        Setting(
            "lease",
            "3s",
            "DURATION",
            "If the leading node does not renew its lease for this long, another node leads.",
            _duration(1, 60),
        ),
    ),
    "Log": (
        Setting("log_format", LOG_FORMATS[0], "|".join(LOG_FORMATS), "Format of the log lines.", _choice(*LOG_FORMATS)),
        Setting(
            "log_level",
            "info",
            "|".join(LOG_LEVELS),
            "Lowest level of the log lines. Requests to the control API are logged at info.",
            _choice(*LOG_LEVELS),
        ),
        Setting(
            "access_log",
            "false",
            "true|false",
            "Log every request to the metadata service and to the control API.",
            _switch,
        ),
    ),
    "Time": (
        Setting(
            "clock",
            "system",
            "system|virtual",
            "A virtual clock moves only when you advance it.",
            _choice("system", "virtual"),
        ),
        Setting(
            "speed",
            "1",
            "N",
            "Divide notices, settle times, pauses and the inactivity timeout by N. The clock does not run faster.",
            _number(0.001, 1_000_000),
        ),
        Setting(
            "settle",
            format_settle(SETTLING),
            "CAUSE=DURATION",
            "Minimum time that events of a cause stay Started, for example restart=10m. Can be repeated.",
            _settle,
        ),
        Setting(
            "inactivity_timeout",
            "24h",
            "DURATION",
            "Stop delivering events to a scope after this long without a poll or an approval.",
            _duration(1),
        ),
    ),
    "Fabric and operations": (
        Setting(
            "fabric",
            "simulated",
            "|".join(FABRICS),
            "What does the work of an operation: a simulation, you, or a program.",
            _choice(*FABRICS),
        ),
        Setting("fabric_command", "", "PROGRAM", "The program for --fabric command, with its arguments."),
        Setting(
            "description",
            "",
            "CAUSE=TEXT",
            "Description of the events of a cause of the platform. Can be repeated.",
            _description,
        ),
        Setting(
            "max_pending_user_operations",
            "0",
            "N",
            "Maximum number of pending operations that users request, per group. 0: no limit.",
            _count(1_000_000),
        ),
        Setting(
            "max_postponement",
            "7d",
            "DURATION",
            "Maximum time by which routine work can be postponed, from its first NotBefore.",
            parse_duration,
        ),
    ),
    "Metadata service": (
        Setting(
            "rate_limit",
            "5",
            "N",
            "Maximum number of requests per second from each VM. 0: no limit.",
            _number(0, 1_000_000),
        ),
        Setting(
            "proxy_protocol",
            "",
            "NETWORKS",
            "Networks of load balancers that begin each connection with the PROXY protocol, version 2.",
            read_networks,
        ),
        Setting(
            "max_connections",
            "0",
            "N",
            "Maximum number of connections. 0: as many as the limit of open files allows.",
            _count(10_000_000),
        ),
        Setting(
            "max_connections_per_address",
            "1000",
            "N",
            "Maximum number of connections from one address, and at most a quarter of all. 0: no limit.",
            _count(10_000_000),
        ),
        Setting(
            "first_get_delay",
            "0s",
            "DURATION",
            "Time by which the response to the first GET of a scope is delayed.",
            parse_duration,
        ),
        Setting(
            "allow_faults", "false", "true|false", "Let operators inject faults into the metadata service.", _switch
        ),
    ),
    "Control API": (
        Setting(
            "control_names",
            "",
            "NAMES",
            "Host names of the control API that clients use without TLS, for example forewarn.example.org.",
            _host_names,
        ),
        Setting(
            "portal_session",
            "12h",
            "DURATION",
            "Maximum time until a user of the portal must sign in again. This is real time.",
            _duration(60, 2_592_000),
        ),
    ),
    "Webhooks": (
        Setting(
            "webhook_private_networks",
            "",
            "NETWORKS",
            "Private networks that webhooks can connect to, for example 10.0.0.0/8, 127.0.0.1/32; or all.",
            parse_allowed_networks,
        ),
    ),
    "Compatibility": (
        Setting(
            "preview_versions", "false", "true|false", "Also serve api-versions that are a preview on Azure.", _switch
        ),
        Setting(
            "post_without_header",
            "false",
            "true|false",
            "Accept an approval (POST) without the header Metadata: true.",
            _switch,
        ),
    ),
}
"""All settings, in the order and under the headings of `forewarn up --help`."""

SHARED = (
    *("history_retention", "speed", "settle", "inactivity_timeout", "fabric", "description"),
    *("max_pending_user_operations", "max_postponement", "first_get_delay", "webhook_private_networks"),
    *("preview_versions", "post_without_header", "lease"),
)
"""Settings that must be equal on all nodes of a service."""

PER_NODE = (
    *("fleet", "data", "name", "metadata", "control", "tls_certificate", "tls_key", "trusted_proxies", "database"),
    *("database_schema", "node_address", "node_listen", "log_format", "log_level", "access_log", "clock"),
    *("fabric_command", "rate_limit", "proxy_protocol", "max_connections", "max_connections_per_address"),
    *("allow_faults", "control_names", "portal_session"),
)
"""Settings that can differ between nodes. `clock` and `allow_faults` cannot be used with several nodes."""

SETTINGS = {setting.name: setting for settings in SECTIONS.values() for setting in settings}


def unknown_setting(name: str, origin: object) -> UnknownSetting:
    """The error for a name that is not a setting."""
    return UnknownSetting(name=name, origin=origin, hint=nearest(name, SETTINGS))


class Value(NamedTuple):
    """A setting's value and where it came from."""

    value: Any
    origin: str

    def __str__(self) -> str:
        if isinstance(self.value, timedelta):
            return format_duration(self.value)
        if isinstance(self.value, dict):
            texts = [each for each in self.value.values() if isinstance(each, str)]
            return SETTINGS["description"].join(self.value) if texts else format_settle(self.value)
        if type(self.value) is tuple:
            return ", ".join(self.value)
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return f"{self.value:g}" if isinstance(self.value, float) else str(self.value)


def resolve(
    options: Mapping[str, str | None], environment: Mapping[str, str], config: str | None = None
) -> dict[str, Value]:
    """Return every setting with its value and origin."""
    path = config or environment.get("FOREWARN_CONFIG")
    in_file = _read_file(Path(path)) if path else _read_file(user_config_file(), must_exist=False)
    origin_file = path or str(user_config_file())
    values: dict[str, Value] = {}
    wrong: list[BadSetting] = []
    for name, setting in SETTINGS.items():
        sources = (
            (options.get(name), setting.option),
            (environment.get(setting.variable), setting.variable),
            (in_file.get(name), origin_file),
            (setting.default, "default"),
        )
        given = [(text, origin) for text, origin in sources if text is not None]
        try:
            values[name] = (
                _merge(setting, given) if setting.is_repeatable else Value(_read(setting, *given[0]), given[0][1])
            )
        except BadSetting as error:
            wrong.append(error)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise BadSettings.relayed("\n".join([f"{len(wrong)} settings are not valid:", *map(str, wrong)]))
    if not values["data"].value:
        values["data"] = Value(str(user_data_folder()), values["data"].origin)
    return values


def _merge(setting: Setting, given: list[tuple[str, str]]) -> Value:
    """Return the value of a setting that several sources can give, and all origins but the default."""
    parts = [_read(setting, text, origin) for text, origin in given]
    merged = {key: value for part in reversed(parts) for key, value in part.items()}
    return Value(merged, ", ".join(origin for _, origin in given[:-1]) or given[0][1])


def _read(setting: Setting, text: str, origin: str) -> Any:
    try:
        return setting.read(text)
    except (ValueError, Invalid) as error:
        raise BadSetting(name=setting.name, value=text, origin=origin, problem=str(error)) from error


def _read_file(path: Path, *, must_exist: bool = True) -> dict[str, str]:
    """Return the settings of a file in the form of options. All mistakes of the file are one error."""
    try:
        text = path.read_text("utf-8")
        parsed = tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError) as error:
        if not must_exist:
            return {}
        raise BadConfigFile(path=path, problem="the file does not exist") from error
    except (OSError, ValueError) as error:
        raise BadConfigFile(path=path, problem=str(error)) from error
    wrong = dict(each for name, value in parsed.items() for each in _errors_in(name, value, path))
    if len(wrong) == 1:
        raise wrong.popitem()[1]
    if wrong:
        reported = [(keys, ".".join(map(str, keys)), _problem(error)) for keys, error in wrong.items()]
        raise BadSettings.listing(str(path), list_mistakes(text, reported))
    return {name: _text(SETTINGS[name], value) for name, value in parsed.items()}


def _errors_in(name: str, value: Any, path: Path) -> Iterator[tuple[KeyPath, BadSetting | UnknownSetting]]:
    """Return what is wrong with a setting in the file, with the keys."""
    setting = SETTINGS.get(name)
    if setting is None:
        yield (name,), unknown_setting(name, path)
    elif setting.is_repeatable and not isinstance(value, dict):
        line = 'restart = "10m"' if name == "settle" else 'host-update = "Host server is undergoing maintenance."'
        problem = f"must be a table: [{name}], followed by lines like {line}"
        yield (name,), BadSetting(name=name, value=value, origin=path, problem=problem)
    else:
        parts = {(name, key): {key: each} for key, each in value.items()} if setting.is_repeatable else {(name,): value}
        for keys, part in parts.items():
            try:
                _read(setting, _text(setting, part), str(path))
            except BadSetting as error:
                yield keys, error


def _problem(error: BadSetting | UnknownSetting) -> str:
    if isinstance(error, BadSetting):
        return f"{error.fields['value']!r} is not valid: {error.fields['problem']}"
    return f"There is no such setting.{error.fields['hint']}"


def _text(setting: Setting, value: Any) -> str:
    """A value of the file in the form of an option."""
    if isinstance(value, dict):
        return setting.join({key: _text(setting, each) for key, each in value.items()})
    try:
        return str(value).lower() if isinstance(value, bool) else str(value)
    except ValueError:  # Python does not write so many decimal digits
        return hex(value)
