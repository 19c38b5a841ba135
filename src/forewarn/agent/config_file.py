"""Reads the agent's config file. The error lists all mistakes, each with its line and key."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forewarn.agent.address import read_endpoint
from forewarn.agent.files import read_bounded, read_whole, resolve_path
from forewarn.agent.handlers.loader import make_handler
from forewarn.agent.policy import (
    APPROVALS,
    LEADER,
    NEVER,
    ON_FAILURE,
    SHORT_FREEZE,
    STOP,
    Config,
    Member,
    NamedHandler,
    PeersSettings,
    Rule,
)
from forewarn.core.durations import parse_duration
from forewarn.errors import BadAgentConfig, BadDuration, BadEndpoint, UnreadableFile, nearest
from forewarn.files.toml_reader import TomlFile, TomlTable
from forewarn.system.addresses import read_host_port

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


DEFAULT_HANDLER_SECONDS = 60
PEER_TIMEOUT = timedelta(seconds=10)
MIN_SECRET_LENGTH = 16

_RULE_KEYS = {*Rule._fields, "when", "approve_when"} - {"lead", "approve_lead"}
_AGENT_KEYS = ("endpoint", "vm_name", "state", "listen", "preview_versions", "short_freeze")
_PEERS_KEYS = ("listen", "secret_file", "members", "timeout")


def read_config(path: Path) -> Config:
    """Read a config file, or raise an error with all mistakes in it."""
    try:
        text = read_whole(path).decode()
    except UnicodeDecodeError as error:
        raise UnreadableFile(path=path, problem="it is not UTF-8 text.") from error
    return read_text(text, str(path), path.absolute().parent)


def read_text(text: str, source: str, folder: Path) -> Config:
    """Read a config from text; relative paths start from `folder`."""
    file = TomlFile(text, source, BadAgentConfig)
    whole = file.load()
    top = TomlTable(file, "", None, whole)
    top.reject_unknown(("agent", "rule", "handler", "peers"))
    agent = top.inner("agent", 'vm_name = "web-0"')
    agent.reject_unknown(_AGENT_KEYS)
    handlers = _handlers(top, whole, folder)
    entries = top.rows("rule", "Must be an array of tables. Write [[rule]] with two brackets.")
    # After a mistake in [handler], its names may be incomplete.
    names = handlers.keys() if top.is_right("handler") or "handler" in top else None
    rules = tuple(_rule(entry, number, names) for number, entry in enumerate(entries, 1))
    peers = _peers(top.inner("peers", 'listen = "0.0.0.0:9170"'), folder) if "peers" in top else None
    for entry, rule in zip(entries, rules, strict=True):
        if rule.approve == LEADER and "peers" not in top and top.is_right("peers"):
            entry.report("'leader' needs a [peers] table.", "approve")
    config = Config(
        source=source,
        endpoint=_endpoint(agent),
        vm_name=agent.text("vm_name").strip(),
        state=_path(agent, "state", folder) if agent.text("state") else "",
        listen=_address(agent, "listen") if "listen" in agent else None,
        preview_versions=agent.flag("preview_versions") is not False,
        short_freeze=SHORT_FREEZE if (limit := agent.duration("short_freeze")) is None else limit,
        rules=rules,
        handlers={name: handler for name, handler in handlers.items() if handler is not None},
        peers=peers,
    )
    file.raise_mistakes()
    return config


def handler_of(name: str, table: Mapping[str, Any], folder: Path) -> NamedHandler:
    """Create a handler from its table in the state file: as it was when it prepared, even if the config has changed."""
    whole = {"handler": {name: dict(table)}}
    file = TomlFile("", f"[handler.{name}] in the state file", BadAgentConfig)
    handler = _handlers(TomlTable(file, "", None, whole), whole, folder)[name]
    file.raise_mistakes()
    assert handler is not None  # noqa: S101 - otherwise there is a mistake
    return handler


# --- Handlers -------------------------------------------------------------------------------------


def _handlers(top: TomlTable, whole: Mapping[str, Any], folder: Path) -> dict[str, NamedHandler | None]:
    """Return the handlers by name; None for one with a mistake."""
    around = top.inner("handler", "[handler.NAME]")
    tables = whole.get("handler", {}) if top.is_right("handler") else {}
    return {name: _handler(around.inner(name, "[handler.NAME]"), name, table, folder) for name, table in tables.items()}


def _handler(entry: TomlTable, name: str, table: dict[str, Any], folder: Path) -> NamedHandler | None:
    if not name or not name.isprintable() or "/" in name or name.startswith("."):
        entry.report("A handler's name must be printable, without /, and must not start with a dot.")
    kind, file = entry.text("kind"), entry.text("file")
    timeout = _limit(entry)
    handler = make_handler(entry, kind, file, folder)
    if handler is None:
        return None
    # The state file keeps this table. The path must be absolute, because the agent may start in another folder.
    kept = {**table, "file": str(folder / file)} if file else table
    return NamedHandler(name, kind or file, timeout or timedelta(seconds=DEFAULT_HANDLER_SECONDS), handler, kept)


def _limit(entry: TomlTable) -> timedelta | None:
    timeout = entry.duration("timeout")
    if timeout is not None and timeout <= timedelta(0):
        entry.report("Must be more than 0s.", "timeout")
    return timeout


# --- Endpoint, name and folders -------------------------------------------------------------------


def _endpoint(entry: TomlTable) -> str:
    text = entry.text("endpoint").strip()
    try:
        if text:
            read_endpoint(text, "[agent]")
    except BadEndpoint as error:
        entry.report(str(error), "endpoint")
    return text


def _path(entry: TomlTable, key: str, folder: Path) -> str:
    """Return a path; a relative path starts from the folder of the config file."""
    try:
        return str(resolve_path(entry.text(key), folder))
    except ValueError as error:
        entry.report(str(error), key)
        return ""


# --- Rules ----------------------------------------------------------------------------------------


def _rule(entry: TomlTable, number: int, handlers: Collection[str] | None) -> Rule:
    entry.reject_unknown(_RULE_KEYS)
    return Rule(
        name=entry.text("name") or f"rule {number}",
        on=_one_or_many(entry, "on"),
        source=entry.choice("source", ("", "Platform", "User"), ""),
        description=_one_or_many(entry, "description"),
        max_duration=entry.duration("max_duration"),
        min_notice=entry.duration("min_notice"),
        prepare=_handler_names(entry, "prepare", handlers),
        lead=_lead(entry, "when", "now"),
        timeout=_limit(entry),
        approve=entry.choice("approve", APPROVALS, NEVER),
        approve_lead=_lead(entry, "approve_when", "ready"),
        on_failure=entry.choice("on_failure", ON_FAILURE, STOP),
        undo=_handler_names(entry, "undo", handlers) if "undo" in entry else None,
    )


def _one_or_many(entry: TomlTable, key: str) -> tuple[str, ...]:
    """Return an array of strings; a single string may be written without brackets."""
    found = entry.one_or_more_texts(key)
    for word in found:
        if not word.strip():
            entry.report("Must not be empty. To match any value, remove the key.", key)
    if key in entry and not found:
        entry.report("Must have at least one entry. To match any value, remove the key.", key)
    return tuple(dict.fromkeys(found))


def _handler_names(entry: TomlTable, key: str, handlers: Collection[str] | None) -> tuple[str, ...]:
    """Return names of handlers. `handlers` has the known names; None: they are not known."""
    names = entry.texts(key)
    for index, name in enumerate(names):
        if handlers is not None and name not in handlers:
            entry.report(f"There is no [handler.{name}].{nearest(name, handlers)}", key, index)
        if names.index(name) < index:
            entry.report(f"{name!r} is listed twice.", key, index)
    return tuple(names)


def _lead(entry: TomlTable, key: str, at_once: str) -> timedelta | None:
    """Return None for the word that means "at once", else a duration before NotBefore."""
    text = entry.text(key, at_once)
    if text == at_once:
        return None
    try:
        return parse_duration(text)
    except BadDuration:
        entry.report(f'Must be "{at_once}" or a duration before NotBefore such as "5m", not {text!r}.', key)
        return None


# --- Peers ----------------------------------------------------------------------------------------


def _peers(entry: TomlTable, folder: Path) -> PeersSettings:
    entry.reject_unknown(_PEERS_KEYS)
    entry.required_text("listen", 'Write listen = "0.0.0.0:9170", the address for requests from peers.')
    entry.required_text(
        "secret_file", 'Write secret_file = "/etc/forewarn/peers.secret", the secret that all peers share.'
    )
    members: list[Member] = []
    around = entry.inner("members", 'members = {web-0 = "10.0.0.4:9170"}')
    for name, _ in entry.text_table("members"):
        host, port = _address(around, name)
        for other in members:
            if other.vm.casefold() == name.casefold():
                around.report(f"{other.vm} is the same VM: names are case-insensitive.", name)
            if (other.host.casefold(), other.port) == (host.casefold(), port) and around.is_right(other.vm):
                around.report(f"{other.vm} has the same address.", name)
        members.append(Member(name, host, port))
    if not members:
        entry.report('It is missing. Write members = {web-0 = "10.0.0.4:9170", web-1 = "10.0.0.5:9170"}.', "members")
    timeout = entry.duration("timeout") or timedelta(0) if "timeout" in entry else PEER_TIMEOUT
    if timeout < timedelta(seconds=1):
        entry.report("Must be at least 1s.", "timeout")
    return PeersSettings(_address(entry, "listen"), _secret(entry, folder), tuple(members), timeout)


def _address(entry: TomlTable, key: str) -> tuple[str, int]:
    try:
        return read_host_port(entry.text(key))
    except ValueError as error:
        entry.report(f"Must be HOST:PORT, not {entry.text(key)!r}: {error}", key)
        return "", 0


def _secret(entry: TomlTable, folder: Path) -> bytes:
    path = Path(_path(entry, "secret_file", folder))
    try:
        with path.open("rb") as stream:
            secret = read_bounded(stream, str(path)).strip()
        open_to = path.stat().st_mode & 0o077 if os.name == "posix" else 0  # Windows has no such bits
    except UnreadableFile as error:
        entry.report(str(error), "secret_file")
        return b""
    except OSError as error:
        entry.report(f"{path} cannot be read: {error.strerror}.", "secret_file")
        return b""
    if open_to:
        entry.report(f"{path} can be read by other users. Run: chmod 600 {path}", "secret_file")
    if len(secret) < MIN_SECRET_LENGTH:
        remedy = f"Run: openssl rand -hex 32 > {path}"
        entry.report(f"{path} must have at least {MIN_SECRET_LENGTH} characters. {remedy}", "secret_file")
    return secret
