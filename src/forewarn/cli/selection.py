"""Which service a command talks to: the one that the user selected, or the only one that can be meant."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from forewarn.errors import BadOption, NoService, NotPermitted, SeveralServices, UnknownService, nearest
from forewarn.system import service_files
from forewarn.system.user_folders import MEMORY, user_data_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forewarn.system.service_files import ServiceFile


class Selection(NamedTuple):
    """What selects a service: its name, its data folder, or the URL of a remote service. At most one is given."""

    service: str | None
    data: str | None
    server: str | None


def select(service: str | None, data: str | None, server: str | None) -> Selection:
    """Return what the options select; without these options, what the variables select."""
    options = {"--service": service, "--data": data, "--server": server}
    variables = {name: os.environ.get(name) for name in ("FOREWARN_SERVICE", "FOREWARN_SERVER")}
    given = options if any(options.values()) else variables
    (first, value), *others = [*((name, text) for name, text in given.items() if text), ("", "")]
    if len(others) > 1:
        name, text = others[0]
        problem = f"it cannot be combined with {name} {text}. Use one of them."
        raise BadOption(name=first, value=value, problem=problem)
    if given is options:
        return Selection(service, data, server)
    return Selection(variables["FOREWARN_SERVICE"], None, variables["FOREWARN_SERVER"])


def known_services() -> list[ServiceFile]:
    """Return all running services that this user can find without options."""
    found = service_files.registered()
    for folder in (os.environ.get("FOREWARN_DATA"), str(user_data_folder())):
        if folder and folder != MEMORY:
            try:
                found += _in_folder(folder)
            except OSError:  # nobody has selected this folder
                continue
    return _distinct(found)


def find_service(service: str | None, data: str | None) -> ServiceFile:
    """Return the selected service. Without a selection, return the only service that runs here."""
    if service:
        known = known_services()
        if matching := [each for each in known if each.name == service]:
            return _only(matching)
        names = [each.name for each in known]
        hint = nearest(service, names) or (f" Running: {', '.join(names)}." if names else "")
        raise UnknownService(name=service, hint=hint)
    if data:
        return _only(_with_data(data), f"no running service uses {'memory only' if data == MEMORY else data}.")
    return _only(default_services(), _problem())


def default_services() -> list[ServiceFile]:
    """Return the services that a command without a selection can mean.

    FOREWARN_DATA excludes services with other data folders, but not services in memory.
    """
    known = known_services()
    folder = os.environ.get("FOREWARN_DATA")
    return [each for each in known if not folder or each.data == MEMORY or each.uses(folder)]


def list_services(services: Iterable[ServiceFile]) -> str:
    return "; ".join(f"{each.name} (data {each.data}, control {each.control})" for each in services)


def _with_data(data: str) -> list[ServiceFile]:
    if data == MEMORY:
        return [each for each in service_files.registered() if each.data == MEMORY]
    try:
        in_folder = _in_folder(data)
    except OSError as error:
        path = Path(data) / service_files.FILE
        raise NotPermitted(action="read", path=path, problem=error.strerror, flag="--data") from error
    # The service may have been unable to write to its data folder.
    return _distinct([*in_folder, *(each for each in service_files.registered() if each.uses(data))])


def _in_folder(folder: str) -> list[ServiceFile]:
    found = service_files.read(Path(os.path.expanduser(folder)) / service_files.FILE)  # noqa: PTH111 - never fails
    return [found] if found is not None and found.lives and found.uses(folder) else []


def _distinct(found: Iterable[ServiceFile]) -> list[ServiceFile]:
    return sorted({each.proof_key: each for each in found}.values())


def _only(found: list[ServiceFile], problem: str = "") -> ServiceFile:
    if not found:
        raise NoService(problem=problem)
    if len(found) > 1:
        raise SeveralServices(services=list_services(found))
    return found[0]


def _problem() -> str:
    folder = os.environ.get("FOREWARN_DATA")
    if not folder:
        owner = service_files.system_service_user()
        hint = (
            f" The service of this machine belongs to the user {owner}: sudo -u {owner} forewarn ..." if owner else ""
        )
        problem = service_files.registry_problem()
        return f"{problem}." if problem else f"no service of this user is running.{hint}"
    others = list_services(known_services())
    return f"no running service uses {folder} (from FOREWARN_DATA)." + (f" Running: {others}." if others else "")
