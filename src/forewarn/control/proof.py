"""/v1/proof: the service proves to a command that it wrote its service file. The command sends its token only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from forewarn.control.routing import Route
from forewarn.control.schema import MAX_SECRET, Shape, at_most, help_text, json_response
from forewarn.system.service_files import proof_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class ProofQuery(Struct):
    """What to prove."""

    challenge: Annotated[Annotated[str, at_most(MAX_SECRET)], help_text("A random text.")] = ""


class ProofShape(Shape):
    """The proof."""

    proof: Annotated[str, help_text("HMAC-SHA256 of the challenge, with the key of the service file.")]


class ProofControl:
    """Answers challenges."""

    def __init__(self, key: str) -> None:
        self._key = key

    def routes(self) -> list[Route]:
        summary = "Prove that this is the service that wrote the service file."
        return [Route("GET", "/v1/proof", self.prove, summary, ProofShape, role=None, query=ProofQuery)]

    async def prove(self, request: Request) -> Response:
        query: ProofQuery = request.state.query
        return json_response(ProofShape(proof_of(self._key, query.challenge)))
