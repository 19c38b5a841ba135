"""Reads the agent's config file. An error names the line and the key."""

from __future__ import annotations

import os
from datetime import timedelta
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
from forewarn.errors import BadAgentConfig, BadEndpoint, UnreadableFile, nearest
from forewarn.files.toml_reader import TomlFile, TomlTable
from forewarn.system.addresses import read_host_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


DEFAULT_HANDLER_SECONDS = 60
PEER_TIMEOUT = timedelta(seconds=10)
MIN_SECRET_LENGTH = 16

_RULE_KEYS = {*Rule._fields, "when", "approve_when"} - {"lead", "approve_lead"}
_AGENT_KEYS = ("endpoint", "vm_name", "state", "listen", "short_freeze")
_PEERS_KEYS = ("listen", "secret_file", "members", "timeout")


def read_config(path: Path) -> Config:
    """Read a config file, or raise the first error in it."""
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
    tables = whole.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise top.error("Must be an array of tables. Write [[rule]] with two brackets.", "rule")
    entries = [TomlTable(file, "rule", index, table) for index, table in enumerate(tables)]
    rules = tuple(_rule(entry, number, handlers) for number, entry in enumerate(entries, 1))
    peers = _peers(top.inner("peers", 'listen = "0.0.0.0:9170"'), folder) if "peers" in top else None
    for entry, rule in zip(entries, rules, strict=True):
        if rule.approve == LEADER and peers is None:
            raise entry.error("'leader' needs a [peers] table.", "approve")
    return Config(
        source=source,
        endpoint=_endpoint(agent),
        vm_name=agent.text("vm_name").strip(),
        state=str(_path(agent, "state", folder)) if agent.text("state") else "",
        listen=_address(agent, "listen") if "listen" in agent else None,
        short_freeze=SHORT_FREEZE if (limit := agent.duration("short_freeze")) is None else limit,
        rules=rules,
        handlers=handlers,
        peers=peers,
    )


def handler_of(name: str, table: Mapping[str, Any], folder: Path) -> NamedHandler:
    """Create a handler from its table in the state file: as it was when it prepared, even if the config has changed."""
    whole = {"handler": {name: dict(table)}}
    top = TomlTable(TomlFile("", f"[handler.{name}] in the state file", BadAgentConfig), "", None, whole)
    return _handler(top.inner("handler", "[handler.NAME]").inner(name, "[handler.NAME]"), name, dict(table), folder)


# --- Handlers -------------------------------------------------------------------------------------


def _handlers(top: TomlTable, whole: dict[str, Any], folder: Path) -> dict[str, NamedHandler]:
    around = top.inner("handler", "[handler.NAME]")
    tables = whole.get("handler", {})
    return {name: _handler(around.inner(name, "[handler.NAME]"), name, table, folder) for name, table in tables.items()}


def _handler(entry: TomlTable, name: str, table: dict[str, Any], folder: Path) -> NamedHandler:
    if not name or not name.isprintable() or "/" in name or name.startswith("."):
        raise entry.error("A handler's name must be printable, without /, and must not start with a dot.")
    kind, file = entry.text("kind"), entry.text("file")
    timeout = _limit(entry)
    handler = make_handler(entry, kind, file, folder)
    # The state file keeps this table. The path must be absolute, because the agent may start in another folder.
    kept = {**table, "file": str(folder / file)} if file else table
    return NamedHandler(name, kind or file, timeout or timedelta(seconds=DEFAULT_HANDLER_SECONDS), handler, kept)


def _limit(entry: TomlTable) -> timedelta | None:
    timeout = entry.duration("timeout")
    if timeout is not None and timeout <= timedelta(0):
        raise entry.error("Must be more than 0s.", "timeout")
    return timeout


# --- Endpoint, name and folders -------------------------------------------------------------------


def _endpoint(entry: TomlTable) -> str:
    text = entry.text("endpoint").strip()
    try:
        if text:
            read_endpoint(text, "[agent]")
    except BadEndpoint as error:
        raise entry.error(str(error), "endpoint") from None
    return text


def _path(entry: TomlTable, key: str, folder: Path) -> Path:
    """Return a path; a relative path starts from the folder of the config file."""
    try:
        return resolve_path(entry.text(key), folder)
    except ValueError as error:
        raise entry.error(str(error), key) from None


# --- Rules ----------------------------------------------------------------------------------------


def _rule(entry: TomlTable, number: int, handlers: dict[str, NamedHandler]) -> Rule:
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
    try:
        found = [entry.text(key)] if key in entry else []
    except BadAgentConfig:
        found = entry.texts(key)
    for word in found:
        if not word.strip():
            raise entry.error("Must not be empty. To match any value, remove the key.", key)
    if key in entry and not found:
        raise entry.error("Must have at least one entry. To match any value, remove the key.", key)
    return tuple(dict.fromkeys(found))


def _handler_names(entry: TomlTable, key: str, handlers: dict[str, NamedHandler]) -> tuple[str, ...]:
    names = entry.texts(key)
    for index, name in enumerate(names):
        if name not in handlers:
            raise entry.error(f"There is no [handler.{name}].{nearest(name, handlers)}", key, index)
        if names.index(name) < index:
            raise entry.error(f"{name!r} is listed twice.", key, index)
    return tuple(names)


def _lead(entry: TomlTable, key: str, at_once: str) -> timedelta | None:
    """Return None for the word that means "at once", else a duration before NotBefore."""
    if entry.text(key, at_once) == at_once:
        return None
    try:
        return entry.duration(key)
    except BadAgentConfig:
        problem = f'Must be "{at_once}" or a duration before NotBefore such as "5m", not {entry.text(key)!r}.'
        raise entry.error(problem, key) from None


# --- Peers ----------------------------------------------------------------------------------------


def _peers(entry: TomlTable, folder: Path) -> PeersSettings:
    if "silence" in entry:
        raise entry.error("Is now called timeout. Rename the key.", "silence")
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
                raise around.error(f"{other.vm} is the same VM: names are case-insensitive.", name)
            if (other.host.casefold(), other.port) == (host.casefold(), port):
                raise around.error(f"{other.vm} has the same address.", name)
        members.append(Member(name, host, port))
    if not members:
        raise entry.error('Is missing. Write members = {web-0 = "10.0.0.4:9170", web-1 = "10.0.0.5:9170"}.', "members")
    timeout = entry.duration("timeout") if "timeout" in entry else PEER_TIMEOUT
    if timeout is None or timeout < timedelta(seconds=1):
        raise entry.error("Must be at least 1s.", "timeout")
    return PeersSettings(_address(entry, "listen"), _secret(entry, folder), tuple(members), timeout)


def _address(entry: TomlTable, key: str) -> tuple[str, int]:
    try:
        return read_host_port(entry.text(key))
    except ValueError as error:
        raise entry.error(f"Must be HOST:PORT, not {entry.text(key)!r}: {error}", key) from None


def _secret(entry: TomlTable, folder: Path) -> bytes:
    path = _path(entry, "secret_file", folder)
    try:
        with path.open("rb") as stream:
            secret = read_bounded(stream, str(path)).strip()
        open_to = path.stat().st_mode & 0o077 if os.name == "posix" else 0  # Windows has no such bits
    except UnreadableFile as error:
        raise entry.error(str(error), "secret_file") from None
    except OSError as error:
        raise entry.error(f"{path} cannot be read: {error.strerror}.", "secret_file") from error
    if open_to:
        raise entry.error(f"{path} can be read by other users. Run: chmod 600 {path}", "secret_file")
    if len(secret) < MIN_SECRET_LENGTH:
        remedy = f"Run: openssl rand -hex 32 > {path}"
        raise entry.error(f"{path} must have at least {MIN_SECRET_LENGTH} characters. {remedy}", "secret_file")
    return secret
