"""forewarn agent run: run the agent."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from forewarn.agent.address import read_endpoint
from forewarn.agent.cli.options import (
    AgentParser,
    add_common_options,
    add_run_options,
    config_path,
    load_config,
    read_address,
    resolve_options,
)
from forewarn.agent.status_server import StatusPages, Watchdog
from forewarn.system.addresses import show_host_port
from forewarn.system.logs import LOG_FORMATS, add_log_handler, configure_logging, get_logger
from forewarn.system.standard_streams import has_terminal
from forewarn.system.systemd_notify import NOTIFY_VARIABLES

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from forewarn.agent.loop import Agent

_log = get_logger(__name__)


def parser() -> AgentParser:
    parser = AgentParser(
        "run",
        "Poll for events, run handlers, approve, and undo.\n\n"
        "Without a policy file, the agent only logs events. It records its work on disk. If it is killed,\n"
        "the next run continues or undoes that work. SIGHUP reloads the policy file.",
        "forewarn agent run --config agent.toml",
        "forewarn agent run --config agent.toml --dry-run --endpoint http://127.0.0.1:8169 --vm-name web-0",
    )
    add_common_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="log what would be run and approved, without doing it")
    add_run_options(parser)
    parser.add_argument(
        "--log", choices=LOG_FORMATS, default="", help="log format (default: text on a terminal, otherwise json)"
    )
    return parser


def run(options: Namespace) -> int:
    path = config_path(options)
    config = load_config(path)
    resolved = resolve_options(options, config)
    listen = config.listen if options.listen is None else read_address(options.listen, "--listen")
    if resolved.endpoint.value:
        # Checked before anything is created.
        read_endpoint(resolved.endpoint.value, resolved.endpoint.origin)
    # Imported here: errors in options are reported faster.
    from forewarn.agent.history import HistoryWriter
    from forewarn.agent.loop import Agent, AgentOptions

    configure_logging(options.log)
    given_versions = options.preview_versions
    preview_versions = config.preview_versions if given_versions is None else given_versions == "true"
    place = (resolved.endpoint.value, resolved.vm_name.value, resolved.folder)
    agent = Agent(config, AgentOptions(*place, options.dry_run, preview_versions))
    origins = {"endpoint_from": resolved.endpoint.origin, "vm_from": resolved.vm_name.origin}
    given = {name: origin for name, origin in origins.items() if origin}  # the agent discovers the others
    folder = None if options.dry_run else resolved.folder  # a dry run writes nothing to disk
    if folder is not None:
        add_log_handler(HistoryWriter(folder))
    watchdog = Watchdog()
    environment = dict(os.environ)
    for name in NOTIFY_VARIABLES:  # programs of handlers must not notify systemd
        os.environ.pop(name, None)
    with StatusPages(lambda: {**agent.snapshot(), **given}, folder, listen, watchdog) as pages:
        if pages.address is not None:
            _log.info("status_server_started", "Serving metrics and health.", address=show_host_port(*pages.address))
        _handle_signals(agent, _Reload(agent, path, watchdog))
        watchdog.ready()
        agent.run()
        if not agent.should_restart:
            watchdog.stopping()
    if agent.should_restart:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - this program itself
    return 0


class _Reload:
    """Reads the policy file again. If it is not valid, the agent keeps its policy."""

    def __init__(self, agent: Agent, path: Path | None, watchdog: Watchdog) -> None:
        self._agent = agent
        self._path = path
        self._watchdog = watchdog
        self._one_at_a_time = threading.Lock()

    def __call__(self) -> None:
        with self._one_at_a_time:
            self._watchdog.reloading()
            try:
                self._agent.replace_config(load_config(self._path))
            except Exception:  # noqa: BLE001 - a handler in Python can raise anything
                _log.exception("config_reload_failed", "The agent keeps its policy.", config=str(self._path))
            else:
                _log.info("config_reloaded", "Policy reloaded.", config=str(self._path or "(no config)"))
            self._watchdog.ready()


def _handle_signals(agent: Agent, reload: _Reload) -> None:
    """Stop the agent on the first SIGTERM or SIGINT. A second one has its default effect. SIGHUP reloads the policy,
    or stops the agent if its terminal was closed."""
    ends_with_terminal = has_terminal() and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL  # not with nohup

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        # In a thread: this thread may hold a lock that stopping needs.
        threading.Thread(target=agent.stop, name="stop", daemon=True).start()

    def hang_up(_: int, __: object) -> None:
        target = agent.stop if ends_with_terminal and not has_terminal() else reload
        threading.Thread(target=target, name="hangup", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGHUP, hang_up)
