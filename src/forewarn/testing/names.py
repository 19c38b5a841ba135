"""VMs as a test names them: by themselves, or by their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forewarn.errors import BadOption

if TYPE_CHECKING:
    from forewarn.testing.vm import VM


def name_of(vm: object) -> str:
    """The name of a VM that was given as itself or by its name."""
    name = vm if isinstance(vm, str) else getattr(vm, "name", None)
    if not isinstance(name, str):
        raise BadOption(name="vm", value=vm, problem='name a VM, as in "web-0", or give the VM itself.')
    return name


def one_name(vm: VM | str) -> str:
    """The same where an empty name would be taken for no name at all."""
    name = name_of(vm)
    if not name:
        raise BadOption(name="vm", value=name, problem="an empty name is that of no VM.")
    return name


def names_of(vms: VM | str | Iterable[VM | str] | None) -> list[str]:
    """The names of one or of several; None is nobody."""
    if vms is None:
        return []
    if isinstance(vms, Iterable) and not isinstance(vms, str):
        return [name_of(vm) for vm in vms]
    return [name_of(vms)]
