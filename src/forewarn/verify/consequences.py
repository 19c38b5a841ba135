"""CONSEQUENCES: which failures are the consequence of another failure."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_APPROVALS_OF_APPROVED = (
    "versions/approval-across-versions",
    "requests/etag-on-post-ignored",
    "requests/approval-of-started",
    "requests/approval-of-several",
    "requests/approval-id-any-case",
    "requests/approval-stale-incarnation",
    "requests/approval-incarnation-as-text",
    "requests/approval-unknown-members",
    "requests/approval-form-urlencoded",
    "requests/approval-as-json",
    "requests/approval-without-content-type",
    "requests/approval-after-end",
)
"""Checks that approve an event again."""
_STARTS_OF_APPROVED = (
    "life/shared-hardware-waits",
    "life/terminates-start-together",
    "scope/same-group-can-approve",
)
"""Checks that expect a start after an approval."""
_COUNTS = (
    "requests/etag-follows-incarnation",
    "life/incarnation-never-decreases",
    "life/equal-incarnation-equal-document",
)
"""Checks that compare incarnations."""

CONSEQUENCES: dict[str, tuple[str, ...]] = {
    "requests/document-served": ("*",),
    "instance/whole-tree": ("instance/*",),
    # Versions and members.
    "versions/all-served": ("versions/*",),
    "versions/members-per-version": ("versions/same-values", "document/exact-members"),
    "versions/only-known-types": ("life/event-appears",),
    "versions/one-incarnation": ("life/incarnation-never-decreases",),
    "document/incarnation-integer": ("versions/one-incarnation", "life/inactivity-resets-incarnation"),
    "document/event-status": (
        "life/event-appears",
        "life/starts-*",
        "life/removed-when-complete",
        *_STARTS_OF_APPROVED,
    ),
    "document/resources": ("versions/leading-underscore", "document/resources-contain-vm-name"),
    "document/not-before-format": ("document/not-before-weekday",),
    "document/description": ("document/*-values",),
    "document/event-source": ("document/*-values",),
    "document/duration": ("document/*-values", "document/freeze-duration"),
    "document/several-events": ("requests/approval-of-several",),
    # Entity tags.
    "requests/etag-present": ("requests/etag-*", "life/inactivity-changes-etag"),
    "requests/etag-not-modified": ("requests/etag-unquoted",),
    "requests/etag-outdated": ("requests/etag-zero", "life/inactivity-changes-etag"),
    # Invalid requests.
    "requests/forwarded-rejected": ("requests/validation-order", "instance/forwarded-rejected"),
    "requests/unknown-path": ("requests/keep-alive", "requests/pipelining", "requests/validation-order"),
    "requests/other-methods-rejected": (
        "requests/head-rejected",
        "requests/validation-order",
        "instance/only-get",
    ),
    "requests/head-rejected": ("instance/only-get",),
    "requests/duplicate-query-parameter": ("requests/validation-order", "instance/duplicate-query-parameter"),
    "requests/metadata-header-missing": (
        "requests/metadata-header-not-true",
        "requests/metadata-header-on-post",
        "requests/validation-order",
        "instance/header-required",
    ),
    "requests/version-missing": (
        "versions/latest-rejected",
        "requests/version-not-a-date",
        "requests/version-on-post",
        "requests/validation-order",
    ),
    "requests/version-not-a-date": ("versions/latest-rejected",),
    "requests/version-not-available": ("requests/version-newer", "requests/version-on-post"),
    # Other properties of responses and connections.
    "requests/connection-close-announced": ("requests/keep-alive", "requests/pipelining"),
    "requests/http-1.0": ("discovery/no-host",),
    "requests/request-id-guid": ("requests/request-id-unique",),
    "discovery/path-camel-case": ("discovery/path-any-case",),
    "discovery/any-host": ("discovery/no-host",),
    # Approvals.
    "requests/approval-accepted": (
        "requests/approval-repeated",
        "life/starts-when-approved",
        *_APPROVALS_OF_APPROVED,
        *_STARTS_OF_APPROVED,
    ),
    "requests/approval-unknown-id": ("requests/approval-unknown-among-known", "scope/other-group-cannot-approve"),
    "requests/approval-malformed": ("requests/approval-empty", "requests/approval-wrong-types"),
    # The lifecycle.
    "life/id-unchanged": (
        "requests/approval-repeated",
        "life/starts-*",
        "life/remov*",
        *_APPROVALS_OF_APPROVED,
        *_STARTS_OF_APPROVED,
    ),
    "requests/approval-repeated": _APPROVALS_OF_APPROVED,
    "life/starts-when-approved": (
        "requests/approval-of-started",
        "requests/approval-of-several",
        *_STARTS_OF_APPROVED,
    ),
    "life/starts-at-not-before": ("life/removed-when-complete",),
    "life/cancelled-is-removed": ("life/terminates-start-together",),
    "life/unchanged-document": (
        "versions/one-incarnation",
        "life/*-increments",
        "life/partial-approval-changes-nothing",
        "life/inactivity-resets-incarnation",
        "scope/same-document",
        "scope/incarnation-per-group",
        *_COUNTS,
    ),
    "life/addition-increments": _COUNTS,
    "life/start-increments": _COUNTS,
    "life/cancellation-increments": _COUNTS,
    "life/removal-increments": _COUNTS,
    "life/inactivity-resets-incarnation": ("life/inactivity-changes-etag",),
    # Groups.
    "scope/same-document": ("requests/etag-follows-incarnation",),
    "scope/other-group-sees-nothing": (
        "life/shared-hardware-waits",
        "scope/resources-of-own-group",
        "scope/incarnation-per-group",
    ),
}
"""Check to patterns of names: if the check fails, failures of these checks say nothing new."""


def failed_check_behind(name: str, failed: Collection[str]) -> str:
    """Return the failed check that explains the failure of this one, or an empty string."""
    for cause, patterns in CONSEQUENCES.items():
        if cause in failed and cause != name and any(fnmatchcase(name, pattern) for pattern in patterns):
            return failed_check_behind(cause, failed) or cause
    return ""
