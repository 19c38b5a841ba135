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
    config_path,
    load_config,
    read_address,
    resolve_options,
)
from forewarn.agent.status_server import WATCHDOG_VARIABLES, StatusPages, Watchdog
from forewarn.system.addresses import show_host_port
from forewarn.system.logs import LOG_FORMATS, add_log_handler, configure_logging, get_logger

if TYPE_CHECKING:
    from argparse import Namespace

    from forewarn.agent.loop import Agent

_log = get_logger(__name__)


def parser() -> AgentParser:
    parser = AgentParser(
        "run",
        "Poll for events, run handlers, approve, and undo.\n\n"
        "Without a policy file, the agent only logs events. It records its work on disk. If it is killed,\n"
        "the next run continues or undoes that work.",
        "forewarn agent run --config agent.toml",
        "forewarn agent run --config agent.toml --dry-run --endpoint http://127.0.0.1:8169 --vm-name web-0",
    )
    add_common_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="log what would be run and approved, without doing it")
    parser.add_argument("--listen", metavar="HOST:PORT", help="address for metrics and health")
    parser.add_argument(
        "--log", choices=LOG_FORMATS, default="", help="log format (default: text on a terminal, otherwise json)"
    )
    return parser


def run(options: Namespace) -> int:
    config = load_config(config_path(options))
    resolved = resolve_options(options, config)
    listen = config.listen if options.listen is None else read_address(options.listen, "--listen")
    if resolved.endpoint.value:
        # Checked before anything is created.
        read_endpoint(resolved.endpoint.value, resolved.endpoint.origin)
    # Imported here: errors in options are reported faster.
    from forewarn.agent.history import HistoryWriter
    from forewarn.agent.loop import Agent, AgentOptions

    configure_logging(options.log)
    agent = Agent(
        config, AgentOptions(resolved.endpoint.value, resolved.vm_name.value, resolved.folder, options.dry_run)
    )
    origins = {"endpoint_from": resolved.endpoint.origin, "vm_from": resolved.vm_name.origin}
    given = {name: origin for name, origin in origins.items() if origin}  # the agent discovers the others
    folder = None if options.dry_run else resolved.folder  # a dry run writes nothing to disk
    if folder is not None:
        add_log_handler(HistoryWriter(folder))
    watchdog = Watchdog()
    environment = dict(os.environ)
    for name in WATCHDOG_VARIABLES:  # programs of handlers must not notify systemd
        os.environ.pop(name, None)
    with StatusPages(lambda: {**agent.snapshot(), **given}, folder, listen, watchdog) as pages:
        if pages.address is not None:
            _log.info("status_server_started", "Serving metrics and health.", address=show_host_port(*pages.address))
        _stop_on_signals(agent)
        watchdog.started()
        agent.run()
        if not agent.should_restart:
            watchdog.stopping()
    if agent.should_restart:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - this program itself
    return 0


def _stop_on_signals(agent: Agent) -> None:
    """Stop the agent on the first signal. A second signal has its default effect."""

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        # In a thread: this thread may hold a lock that stopping needs.
        threading.Thread(target=agent.stop, name="stop", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
