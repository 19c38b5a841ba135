"""forewarn agent run: the agent itself."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from forewarn.agent.address import read_endpoint
from forewarn.agent.cli.options import Parser, add_places, choose_places, config_path, load_config, read_address
from forewarn.agent.status_server import WATCHDOG_VARIABLES, StatusPages, Watchdog
from forewarn.system.addresses import show_host_port
from forewarn.system.logs import LOG_FORMATS, configure_logging, get_logger

if TYPE_CHECKING:
    from argparse import Namespace

    from forewarn.agent.loop import Agent

_log = get_logger(__name__)


def parser() -> Parser:
    found = Parser(
        "run",
        "Watch for events, prepare for them, approve, and undo.\n\n"
        "Without a config it only logs. What it has prepared is kept on disk: after a kill, the next run undoes it.",
        "forewarn agent run --config agent.toml",
        "forewarn agent run --config agent.toml --dry-run --endpoint http://127.0.0.1:8169 --vm-name web-0",
    )
    add_places(found)
    found.add_argument("--dry-run", action="store_true", help="do all but act: say what would be run and approved")
    found.add_argument("--listen", metavar="HOST:PORT", help="serve metrics and health there")
    found.add_argument(
        "--log", choices=LOG_FORMATS, default="", help="the form of the log (default: text on a terminal, else json)"
    )
    return found


def run(options: Namespace) -> int:
    config = load_config(config_path(options))
    places = choose_places(options, config)
    listen = config.listen if options.listen is None else read_address(options.listen, "--listen")
    if places.endpoint.value:
        # Before anything is made: what is refused leaves nothing behind.
        read_endpoint(places.endpoint.value, places.endpoint.origin)
    # Here, so that what is wrong is said without it.
    from forewarn.agent.loop import Agent, AgentOptions

    configure_logging(options.log)
    agent = Agent(config, AgentOptions(places.endpoint.value, places.vm_name.value, places.folder, options.dry_run))
    origins = {"endpoint_from": places.endpoint.origin, "vm_from": places.vm_name.origin}
    given = {name: origin for name, origin in origins.items() if origin}  # the rest the agent has found
    folder = None if options.dry_run else places.folder  # a rehearsal leaves nothing behind
    watchdog = Watchdog()
    environment = dict(os.environ)
    for name in WATCHDOG_VARIABLES:  # what handlers start is not what systemd waits for
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
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - this very program
    return 0


def _stop_on_signals(agent: Agent) -> None:
    """The first signal stops it in good order; a second one ends it as it ends any program."""

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        # In a thread: a signal may come while this thread holds a lock that stopping needs.
        threading.Thread(target=agent.stop, name="stop", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
