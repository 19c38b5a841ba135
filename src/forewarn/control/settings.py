"""/v1/settings: the settings that the service runs with, and where each value came from."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

from forewarn.control.routing import Route, caller
from forewarn.control.schema import Shape, help_text, json_response
from forewarn.core.access import Role
from forewarn.settings import SECTIONS, without_password

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.settings import Setting, Value


class SettingShape(Shape):
    """A setting."""

    name: str
    section: str
    value: str
    default: str
    origin: Annotated[
        str, help_text("Where the value came from: default, or the option, the variable or the file that sets it.")
    ]
    help: str


class SettingsShape(Shape):
    """All settings."""

    settings: list[SettingShape]


class SettingControl:
    """Settings. The password of a database is never shown. The arguments of a program can be secret: only admins see
    them."""

    def __init__(self, settings: Mapping[str, Value]) -> None:
        self._settings = settings

    def routes(self) -> list[Route]:
        return [Route("GET", "/v1/settings", self.settings, "Return the settings of the service.", SettingsShape)]

    async def settings(self, request: Request) -> Response:
        is_admin = caller(request).role is Role.ADMIN
        found = [
            SettingShape(
                name=setting.name,
                section=section,
                value=self._text(setting, is_admin=is_admin),
                default=setting.default,
                origin=self._settings[setting.name].origin,
                help=setting.help,
            )
            for section, settings in SECTIONS.items()
            for setting in settings
        ]
        return json_response(SettingsShape(found))

    def _text(self, setting: Setting, *, is_admin: bool) -> str:
        value = str(self._settings[setting.name])
        if setting.name == "database":
            return without_password(value)
        if setting.name != "fabric_command" or is_admin or not value:
            return value
        program, *arguments = shlex.split(value)
        return f"{program} ..." if arguments else program
