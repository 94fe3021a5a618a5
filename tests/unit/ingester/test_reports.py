"""Whatever is in a record of the topic of reports: it is a report, or it is refused."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.index.accounting import PartitionId, ReceivedReport
from inference_store.inference.producer_reports import ProducerReport, encode
from inference_store.ingester.batch import read_time
from inference_store.ingester.reports import _read
from tests.properties import draw_json

AT = datetime(2026, 11, 1, tzinfo=UTC)
SOUND = ProducerReport(producer="p", reporter="p", number=1, booted_at=AT, reported_at=AT)
JSON = draw_json(leaves=10)


@dataclass
class Record:
    """A record as aiokafka gives it."""

    value: bytes | None
    timestamp: Any = 0
    topic: str = "reports"
    partition: int = 3
    offset: int = 7
    headers: tuple[tuple[str, bytes], ...] = field(default=())


def test_a_report_has_its_place() -> None:
    partition_id = PartitionId("cluster", "reports", 0, 3)
    read = _read(Record(encode(SOUND)), "cluster")
    assert read == ReceivedReport(SOUND, partition_id, 7)
    assert (read.values["offset"], read.values["producer"], read.values["dropped"]) == (7, "p", {})


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_no_report(payload: bytes) -> None:
    with pytest.raises(ValueError):
        _read(Record(payload), "cluster")


@given(st.sampled_from(sorted(orjson.loads(encode(SOUND)))), JSON)
def test_any_value_of_a_field_is_kept_or_refused(name: str, value: Any) -> None:
    payload = json.dumps(orjson.loads(encode(SOUND)) | {name: value}).encode()
    try:
        read = _read(Record(payload), "cluster")
    except ValueError:
        return
    written = orjson.dumps(read.values["dropped"])
    assert b"\\u0000" not in written
    assert "\0" not in read.report.producer + read.report.reporter
    for count in (read.report.seen, read.report.highest_sequence, read.report.number):
        assert 0 <= count < 2**63
    read.report.booted_at.astimezone(UTC)


def test_rejects_values_that_postgres_cannot_hold(subtests: pytest.Subtests) -> None:
    for changes in (
        b'"seen":1e400',
        b'"producer":"\\ud800"',
        b'"producer":"\\u0000"',
        b'"dropped":{"\\u0000":1}',
        b'"dropped":{"\\ud800":1}',
        b'"booted_at":"0001-01-01T00:00:00+14:00"',
        b'"reported_at":"9999-12-31T23:59:59-14:00"',
        b'"x":' + b"[" * 20_000,
        b'"x":"' + b"y" * 70_000 + b'"',
    ):
        payload = encode(SOUND)[:-1] + b"," + changes + b"}"
        with subtests.test(changes=changes[:50]), pytest.raises(ValueError):
            _read(Record(payload), "cluster")


def test_any_time_of_a_record_is_a_time() -> None:
    latest = datetime.now(UTC) + timedelta(days=365_000)
    for timestamp in (None, -1, 0, 2**63, 10**30, 1_790_000_000_000):
        assert read_time(timestamp) < latest, timestamp
