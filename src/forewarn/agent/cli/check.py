"""forewarn agent check: describe what a policy does, or list the mistakes in it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.agent.cli.options import (
    CONFIG_VARIABLE,
    AgentParser,
    add_common_options,
    config_path,
    load_config,
    resolve_options,
)
from forewarn.errors import BadCommandLine, EndpointError, PolicyHasWarnings

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from forewarn.agent.cli.options import ResolvedOptions


def parser() -> AgentParser:
    parser = AgentParser(
        "check",
        "Describe what a policy does, or list the mistakes in it.\n\n"
        "The command runs no handler. Without --here, it sends no request.",
        "forewarn agent check --config agent.toml",
        "forewarn agent check agent.toml --here --strict",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="the policy file, as with --config")
    add_common_options(parser)
    parser.add_argument(
        "--here", action="store_true", help="also check programs, units, sockets, endpoint and VM name on this machine"
    )
    parser.add_argument("--strict", action="store_true", help="exit with code 2 if there is a warning")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(options: Namespace) -> int:
    # Imported here: a running agent does not need it.
    from forewarn.agent.explain import as_json, config_warnings, explain, problems_here
    from forewarn.system.printable import printable

    if options.file is not None and options.config is not None:
        problem = f"The policy file is given twice: {options.file!r} and --config {options.config!r}."
        raise BadCommandLine(problem=problem, program="forewarn agent check")
    path = Path(options.file) if options.file else config_path(options)
    if path is None:
        problem = f"Name the policy file with --config FILE or {CONFIG_VARIABLE}."
        raise BadCommandLine(problem=problem, program="forewarn agent check")
    config = load_config(path)
    here = [*problems_here(config), *_endpoint_problems(resolve_options(options, config))] if options.here else []
    if options.json:
        import json

        sys.stdout.write(json.dumps(as_json(config, here), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in explain(config, here))
    if options.strict and (count := len(config_warnings(config)) + len(here)):
        sys.stdout.flush()
        raise PolicyHasWarnings(source=config.source, warnings=f"{count} warning{'s' if count > 1 else ''}")
    return 0


def _endpoint_problems(options: ResolvedOptions) -> Iterator[str]:
    """Try a given endpoint, and compare a given VM name with the endpoint's. This does not enable Scheduled Events.

    Without both, nothing is sent: a policy is often written on a machine that is not a VM.
    """
    from forewarn.agent.client import Client
    from forewarn.agent.identity import GIVEN, MachineIdentity

    given = options.vm_name.value.strip()
    if not given and not options.endpoint.value:
        return
    try:
        with Client(options.endpoint.value, given) as client:
            name = client.request_name()
    except EndpointError as error:
        yield f"cannot compare the VM name {given!r} with the endpoint's: {error}" if given else str(error)
        return
    if given and name and not MachineIdentity(given, GIVEN).listed_as((name,)):
        remedy = "Correct the name, or remove it: the agent then uses the endpoint's name."
        yield f"the VM name is {given!r} (from {options.vm_name.origin}), but the endpoint's is {name!r}. {remedy}"
