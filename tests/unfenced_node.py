"""Forewarn without the end of the former leader's connections.

The torture run also removes the check of the epoch from the database, and must find what happens then.
"""

from __future__ import annotations

from forewarn.__main__ import main
from forewarn.stores.postgresql_server import STATEMENTS

STATEMENTS["end_writer"] = "SELECT 0 WHERE %(application)s::text IS NULL"

if __name__ == "__main__":
    main()
