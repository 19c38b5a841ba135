"""A client at the address for nodes that does not know the secret."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from counted_turns import CountedLoop, longest_turn

from forewarn.nodes.link import LinkServer

WRONG_PROOF = msgspec.msgpack.encode(["nonce", "node", "wrong"])
NESTED = b"\x91" * 1000


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": CountedLoop}


async def refuse(kind: str, payload: Any) -> None:
    raise AssertionError(kind)


@pytest.mark.parametrize("frame", [WRONG_PROOF, NESTED], ids=["wrong proof", "nested"])
async def test_many_frames_without_the_secret_are_one_rejected_connection(
    frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = LinkServer("one", "secret", refuse, lambda: 0, lambda position: [])
    await server.start(listener, None)
    frames = (struct.pack(">I", len(frame)) + frame) * (250_000 // len(frame))
    with longest_turn() as turns:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        with suppress(ConnectionError):
            writer.write(frames)
            await reader.read()
        writer.close()
    server.stop()
    assert turns.longest < 2000
    assert "Error" not in caplog.text
