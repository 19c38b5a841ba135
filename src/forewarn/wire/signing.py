"""How webhooks are signed: those of the service, and those of an agent."""

from __future__ import annotations

TIMESTAMP, SIGNATURE, ATTEMPT = "Forewarn-Timestamp", "Forewarn-Signature", "Forewarn-Attempt"


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Of the moment of sending and the body together: an old request cannot be sent again as a new one."""
    import hmac  # brings OpenSSL with it: megabytes, which an agent that signs nothing does not need

    return "v1=" + hmac.digest(secret.encode(), timestamp.encode() + b"." + body, "sha256").hex()


def signatures(secret: str, timestamp: str, body: bytes, attempt: int) -> dict[str, str]:
    """The headers that say when it was sent, by whom, and how often."""
    return {TIMESTAMP: timestamp, SIGNATURE: signature(secret, timestamp, body), ATTEMPT: str(attempt)}
