"""The parameters of a request's query, each read with its type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.errors import BadParameter

if TYPE_CHECKING:
    from starlette.requests import Request


class Query:
    """What was asked for behind the question mark. Which parameters there are was checked before."""

    def __init__(self, request: Request) -> None:
        self._values = request.query_params

    def text(self, name: str, default: str = "") -> str:
        values = self._values.getlist(name)
        if len(values) > 1:
            raise BadParameter(parameter=name, problem="is given more than once", valid="one value")
        return values[0] if values else default

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._values.getlist(name)))

    def flag(self, name: str) -> bool:
        text = self.text(name, "false")
        if text not in ("true", "false"):
            raise BadParameter(parameter=name, problem=f"{text!r} is neither true nor false", valid=["true", "false"])
        return text == "true"

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self.text(name, str(default))
        # int() also takes other digits than these, blanks and underscores.
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
            valid = f"a whole number from {least} to {most}"
            raise BadParameter(parameter=name, problem=f"{text!r} is not {valid}", valid=valid)
        return int(text)
