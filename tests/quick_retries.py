"""Forewarn that repeats a failed delivery after a hundredth of a second, for tests that kill the service."""

from __future__ import annotations

from forewarn.__main__ import main
from forewarn.assembly import Assembly, FixedLimits
from forewarn.core.webhooks import WebhookRetryPolicy

Assembly.limits = FixedLimits(webhook_retry=WebhookRetryPolicy(0.01))

if __name__ == "__main__":
    main()
