"""API_VERSIONS: one row per api-version of /metadata/scheduledevents (docs/explanation/contract.md, section 1)."""

from __future__ import annotations

import re
from datetime import date
from typing import NamedTuple


class VersionChanges(NamedTuple):
    """Additions of an api-version to its predecessor."""

    version: str
    fields: tuple[str, ...] = ()
    event_types: tuple[str, ...] = ()
    header_enforced: bool = True
    underscore: bool = False
    """Names of IaaS VMs have a leading underscore."""
    preview: bool = False
    """Served only if a setting enables it."""


API_VERSIONS = (
    VersionChanges(
        "2017-03-01",
        fields=("EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore"),
        event_types=("Freeze", "Reboot", "Redeploy"),
        header_enforced=False,
        underscore=True,
    ),
    VersionChanges("2017-08-01"),
    VersionChanges("2017-11-01", event_types=("Preempt",)),
    VersionChanges("2019-01-01", event_types=("Terminate",)),
    VersionChanges("2019-04-01", fields=("Description",)),
    VersionChanges("2019-08-01", fields=("EventSource",)),
    VersionChanges("2020-07-01", fields=("DurationInSeconds",)),
    VersionChanges("2024-07-09", event_types=("SpotRebalanceRecommendation",), preview=True),
)

NEWEST_THREE = ("2020-07-01", "2019-08-01", "2019-04-01")
"""Suggested in rejections, as Azure's instance endpoint does."""


class ApiVersion(NamedTuple):
    """An api-version with all additions of its predecessors."""

    name: str
    fields: frozenset[str]
    event_types: frozenset[str]
    header_enforced: bool
    underscore: bool
    preview: bool


def _accumulate() -> dict[str, ApiVersion]:
    fields: frozenset[str] = frozenset()
    event_types: frozenset[str] = frozenset()
    rows = {}
    for row in API_VERSIONS:
        fields |= set(row.fields)
        event_types |= set(row.event_types)
        rows[row.version] = ApiVersion(
            row.version, fields, event_types, row.header_enforced, row.underscore, row.preview
        )
    return rows


KNOWN_VERSIONS = _accumulate()


def is_date(text: str) -> bool:
    """Return whether the text is a valid date, the only form of a version."""
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def available_versions(*, preview: bool) -> dict[str, ApiVersion]:
    """Return the served versions, oldest first."""
    return {name: row for name, row in KNOWN_VERSIONS.items() if preview or not row.preview}


# Versions of /metadata/instance.
# fmt: off
INSTANCE_VERSIONS: tuple[str, ...] = (
    "2017-03-01", "2017-04-02", "2017-08-01", "2017-10-01", "2017-12-01", "2018-02-01", "2018-04-02",
    "2018-10-01", "2019-02-01", "2019-03-11", "2019-04-30", "2019-06-01", "2019-06-04", "2019-08-01",
    "2019-08-15", "2019-11-01", "2020-06-01", "2020-07-15", "2020-09-01", "2020-10-01", "2020-12-01",
    "2021-01-01", "2021-02-01", "2021-03-01", "2021-05-01", "2021-08-01", "2021-10-01", "2021-11-01",
    "2021-11-15", "2021-12-13", "2023-07-01", "2023-11-15", "2024-03-15", "2024-07-17", "2025-04-07",
)
# fmt: on
NEWEST_INSTANCE_VERSIONS: tuple[str, ...] = INSTANCE_VERSIONS[:-4:-1]
