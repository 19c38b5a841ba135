"""Forewarn without the check of the epoch, and without the end of the former leader's connections.

The torture run must find what this build does wrong.
"""

from __future__ import annotations

from forewarn.__main__ import main
from forewarn.stores.postgresql_server import STATEMENTS

STATEMENTS["check_epoch"] = "SELECT %(epoch)s::bigint"
STATEMENTS["save_journal"] = (
    "WITH added AS (INSERT INTO journal VALUES (%(number)s, %(epoch)s, %(data)s)) "
    "SELECT pg_notify(%(channel)s, %(number)s::text)"
)
STATEMENTS["end_writer"] = "SELECT 0 WHERE %(application)s::text IS NULL"

if __name__ == "__main__":
    main()
