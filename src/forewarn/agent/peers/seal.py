"""Who may ask, and whose answer it is: seals made with the secret that the members share."""

from __future__ import annotations

import hmac
import os

PATH = "/v1/status"


def draw() -> str:
    """A number that nobody can foretell, and that does not come twice."""
    return os.urandom(16).hex()


def seal_ask(secret: bytes, nonce: str, asker: str, asked: str) -> str:
    """The seal of a request: from one machine, to one machine, once."""
    return _seal(secret, "\n".join(("request", PATH, nonce, asker, asked)).encode("utf-8", "surrogatepass"))


def seal_answer(secret: bytes, nonce: str, body: bytes) -> str:
    """The seal of an answer: to this request, and to no other."""
    return _seal(secret, b"answer\n" + nonce.encode("utf-8", "surrogatepass") + b"\n" + body)


def is_right(given: str, expected: str) -> bool:
    """Whether a seal is the expected one; how long that takes does not tell how far it was right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def _seal(secret: bytes, said: bytes) -> str:
    return hmac.new(secret, said, "sha256").hexdigest()
