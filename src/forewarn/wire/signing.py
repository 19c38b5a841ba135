"""Sign webhook requests of the service and the agent."""

from __future__ import annotations

TIMESTAMP, SIGNATURE, ATTEMPT = "Forewarn-Timestamp", "Forewarn-Signature", "Forewarn-Attempt"


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Sign the timestamp and the body together, to prevent replays."""
    import hmac  # loads OpenSSL (megabytes), which most agents do not need

    return "v1=" + hmac.digest(secret.encode(), timestamp.encode() + b"." + body, "sha256").hex()


def signatures(secret: str, timestamp: str, body: bytes, attempt: int) -> dict[str, str]:
    """Return the headers with timestamp, signature and attempt number."""
    return {TIMESTAMP: timestamp, SIGNATURE: signature(secret, timestamp, body), ATTEMPT: str(attempt)}
