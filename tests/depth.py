"""The number of examples: `quick` for contributors, `deep` for CI (script/test --deep).

script/mutate runs `mutate`: quick, with the same examples each time.
"""

from __future__ import annotations

import os

PROFILE = os.environ.get("TEST_PROFILE") or "quick"
if PROFILE not in ("quick", "deep", "mutate"):
    raise SystemExit(f"TEST_PROFILE is {PROFILE!r}. It can be quick, deep or mutate.")

DEEP = PROFILE == "deep"


def amount(deep: int, quick: int | None = None) -> int:
    """Return the number of examples, kills or rounds: `deep`, or far fewer in the quick profile."""
    if DEEP:
        return deep
    return max(deep // 10, 10) if quick is None else quick
