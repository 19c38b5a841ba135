"""/v1/vms: VMs, and the documents that they see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.control.input import Query
from forewarn.control.paging import PAGING, Names, page_of_names
from forewarn.control.routing import Endpoint
from forewarn.control.schema import (
    COUNT,
    FLAG,
    MAYBE_MOMENT,
    MAYBE_TEXT,
    TEXT,
    TEXTS,
    Field,
    Schema,
    choice,
    map_of,
    page_schema,
    record,
    ref,
)
from forewarn.core.durations import to_text_if_any
from forewarn.core.fleet import VM, Group, GroupKind
from forewarn.errors import UnknownVersion
from forewarn.metadata.answers import JSON
from forewarn.wire.document import render

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request

    from forewarn.core.events import Document
    from forewarn.engine.engine import Engine
    from forewarn.wire.versions import ApiVersion


class VMControl:
    """VMs."""

    def __init__(self, engine: Engine, versions: dict[str, ApiVersion]) -> None:
        self._engine = engine
        self._versions = versions
        self._vm_names = Names(engine, lambda fleet: fleet.vms)

    def endpoints(self) -> list[Endpoint]:
        vm = ref("VM")
        version = Field("api-version", choice(*self._versions), "As which version; the newest if it is not said.")
        return [
            Endpoint("GET", "/v1/vms", self.vms, "List VMs.", page_schema("vms", "VM"), query=PAGING),
            Endpoint("GET", "/v1/vms/{name}", self.vm, "See a VM.", vm),
            Endpoint(
                "GET",
                "/v1/vms/{name}/document",
                self.document,
                "See what a VM is told, as it is told.",
                ref("Document"),
                query=(version,),
            ),
        ]

    async def vms(self, request: Request) -> Response:
        return page_of_names(request, "vms", self._vm_names(), self._vm)

    async def vm(self, request: Request) -> Response:
        return JSONResponse(self._vm(request.path_params["name"]))

    def _vm(self, name: str) -> dict[str, Any]:
        engine = self._engine
        vm = engine.fleet.vm(name)
        group = engine.fleet.group(vm.group)
        return vm_shape(vm, group, engine.document(vm.group), engine.last_heard(vm.group))

    async def document(self, request: Request) -> Response:
        vm = self._engine.fleet.vm(request.path_params["name"])
        asked = Query(request).text("api-version", max(self._versions))
        if asked not in self._versions:
            raise UnknownVersion(version=asked, known=", ".join(self._versions))
        kind = self._engine.fleet.group(vm.group).kind
        return Response(render(self._engine.document(vm.group), self._versions[asked], kind), media_type=JSON)


SHAPES: dict[str, Schema] = {
    "VM": record(
        {
            "name": TEXT,
            "group": TEXT,
            "kind": choice(*(kind.value for kind in GroupKind)),
            "host": TEXT,
            "home": MAYBE_TEXT,
            "state": choice("running", "deallocated"),
            "update_domain": COUNT,
            "fault_domain": COUNT,
            "address": MAYBE_TEXT,
            "listen": MAYBE_TEXT,
            "hostname": TEXT,
            "priority": TEXT,
            "size": MAYBE_TEXT,
            "zone": MAYBE_TEXT,
            "tags": map_of(TEXT),
            "auto_approve": TEXTS,
            "listening": FLAG,
            "last_heard_at": MAYBE_MOMENT,
            "incarnation": COUNT,
            "events": TEXTS,
        }
    ),
    "Document": {"type": "object", "description": "What the metadata service would answer, on Azure's own wire."},
}


def vm_shape(vm: VM, group: Group, document: Document, heard_at: datetime | None) -> dict[str, Any]:
    """A VM with what it is being told."""
    return {
        "name": vm.name,
        "group": group.name,
        "kind": group.kind,
        "host": vm.host,
        "home": vm.home or None,
        "state": "deallocated" if vm.deallocated else "running",
        "update_domain": vm.update_domain,
        "fault_domain": vm.fault_domain,
        "address": vm.address or None,
        "listen": vm.listen or None,
        "hostname": vm.hostname or vm.name,
        "priority": vm.priority,
        "size": vm.size or None,
        "zone": vm.zone or None,
        "tags": dict(vm.tags),
        "auto_approve": list(group.auto_approve),
        "listening": document.enabled,
        "last_heard_at": to_text_if_any(heard_at),
        "incarnation": document.incarnation,
        "events": [event.id for event in document.events if vm.name in event.resources],
    }
