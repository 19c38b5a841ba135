"""CloudEvents as whole documents, and their signatures."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta

from forewarn.core.events import EventStatus, Source
from forewarn.core.state import HistoryEntry, HistorySnapshot
from forewarn.core.waits import Wait
from forewarn.delivery.cloud_events import cloud_event, signed_headers, source_of, webhook_test_event
from forewarn.wire.signing import signature

AT = datetime(2041, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
SOURCE = source_of("5f0c")


def test_a_row_about_an_event() -> None:
    not_before = AT + timedelta(minutes=15)
    snapshot = HistorySnapshot(
        "web", EventStatus.SCHEDULED, not_before, "Paused.", Source.PLATFORM, timedelta(seconds=9.5), created_at=AT
    )
    entry = HistoryEntry(
        time=AT,
        kind="scheduled",
        by="ops",
        sequence=12,
        group="web",
        event="ev-1",
        operation="op-1",
        vms=("web-0", "wéb-1"),
        reason="not before 07:23",
        host="rack-1",
        type="Freeze",
        cause="host-update",
        snapshot=snapshot,
        waits=(Wait("approval", done=False, group="db", until=not_before),),
    )
    assert cloud_event(entry, SOURCE).decode() == (
        '{"specversion":"1.0","id":"12","source":"/forewarn/5f0c","type":"forewarn.scheduled","subject":"ev-1",'
        '"time":"2041-05-06T07:08:09.123456Z","datacontenttype":"application/json","sequence":"0000000000000012",'
        '"partitionkey":"web","data":{"sequence":12,"time":"2041-05-06T07:08:09.123456Z","kind":"scheduled","by":"ops",'
        '"group":"web","event":"ev-1","operation":"op-1","host":"rack-1","vms":["web-0","wéb-1"],"type":"Freeze",'
        '"cause":"host-update","reason":"not before 07:23","snapshot":{"id":"ev-1","operation":"op-1","group":"web",'
        '"scope":"web","type":"Freeze","status":"scheduled","vms":["web-0","wéb-1"],"not_before":"2041-05-06T07:23:09.123456Z",'
        '"description":"Paused.","source":"platform","duration_seconds":9.5,'
        '"created_at":"2041-05-06T07:08:09.123456Z","approved_at":null,"approved_by":null,"started_at":null,'
        '"ended_at":null,"cause":"host-update","waits":[{"kind":"approval","done":false,"group":"db","scope":null,"by":null,'
        '"time":null,"until":"2041-05-06T07:23:09.123456Z","text":null}]}}}'
    )


def test_a_row_of_an_earlier_release_has_no_snapshot() -> None:
    entry = HistoryEntry(
        time=AT,
        kind="scheduled",
        by="ops",
        sequence=12,
        group="web",
        event="ev-1",
        operation="op-1",
        vms=("web-0",),
        type="Reboot",
        cause="restart",
    )
    assert cloud_event(entry, SOURCE).endswith(b'"type":"Reboot","cause":"restart","reason":null,"snapshot":null}}')


def test_a_row_about_nothing_in_particular_has_no_subject_and_no_partition() -> None:
    entry = HistoryEntry(AT, "fleet-applied", "ops", 3)
    assert cloud_event(entry, SOURCE).decode() == (
        '{"specversion":"1.0","id":"3","source":"/forewarn/5f0c","type":"forewarn.fleet-applied",'
        '"time":"2041-05-06T07:08:09.123456Z","datacontenttype":"application/json","sequence":"0000000000000003",'
        '"data":{"sequence":3,"time":"2041-05-06T07:08:09.123456Z","kind":"fleet-applied","by":"ops","group":null,'
        '"event":null,"operation":null,"host":null,"vms":[],"type":null,"cause":null,"reason":null,"snapshot":null}}'
    )


def test_the_subject_is_the_nearest_there_is() -> None:
    assert b'"subject":"op-1"' in cloud_event(HistoryEntry(AT, "executed", "x", 1, operation="op-1"), SOURCE)
    assert b'"subject":"web"' in cloud_event(HistoryEntry(AT, "enabled", "x", 1, group="web"), SOURCE)


def test_a_trial() -> None:
    assert webhook_test_event("t-1", SOURCE, "pager", AT).decode() == (
        '{"specversion":"1.0","id":"t-1","source":"/forewarn/5f0c","type":"forewarn.test","subject":"pager",'
        '"time":"2041-05-06T07:08:09.123456Z","datacontenttype":"application/json","data":{"webhook":"pager"}}'
    )


def test_sequences_sort_as_text() -> None:
    events = [cloud_event(HistoryEntry(AT, "enabled", "x", number), SOURCE) for number in (9, 10, 100_000)]
    texts = [event.partition(b'"sequence":"')[2][:16] for event in events]
    assert texts == sorted(texts)


def test_the_signature_is_over_timestamp_and_body() -> None:
    expected = hmac.new("geheim-und-läng".encode(), b'1700000000.{"a":1}', hashlib.sha256).hexdigest()
    assert signature("geheim-und-läng", "1700000000", b'{"a":1}') == f"v1={expected}"
    assert signed_headers("geheim-und-läng", "1700000000", b'{"a":1}', 3) == {
        "Content-Type": "application/cloudevents+json; charset=utf-8",
        "Forewarn-Timestamp": "1700000000",
        "Forewarn-Signature": f"v1={expected}",
        "Forewarn-Attempt": "3",
    }
