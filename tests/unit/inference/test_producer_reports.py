"""The reports of a producer about itself: their bytes, and those that are refused."""

from datetime import UTC, datetime

import orjson
import pytest

from inference_store.inference.producer_reports import ProducerReport, decode, encode

AT = datetime(2026, 11, 1, 12, 0, 0, 123456, tzinfo=UTC)
REPORT = ProducerReport(
    producer="p-1",
    reporter="p-2",
    number=3,
    booted_at=AT,
    reported_at=AT,
    seen=10,
    sampled_out=1,
    dropped={"no_budget": 2},
    queued=3,
    spooled=2,
    published=4,
    events=8,
    highest_sequence=9,
    final=True,
)


def test_a_report_comes_back_as_it_was() -> None:
    assert decode(encode(REPORT)) == REPORT
    assert REPORT.closes


def test_detects_an_exchange_unaccounted_for() -> None:
    assert not decode(encode(REPORT).replace(b'"published":4', b'"published":3')).closes


def test_fields_of_tomorrow_are_left_alone() -> None:
    assert decode(orjson.dumps({**orjson.loads(encode(REPORT)), "new": 1})) == REPORT


def test_rejects_malformed_reports() -> None:
    for name, value in (
        ("producer", ""),
        ("producer", "p\0"),
        ("producer", "p" * 257),
        ("seen", -1),
        ("seen", 2**63),
        ("seen", "10"),
        ("queued", True),
        ("dropped", {"no_budget": -1}),
        ("dropped", {str(number): 1 for number in range(65)}),
        ("booted_at", "2026-11-01T12:00:00"),
        ("final", 1),
    ):
        with pytest.raises(ValueError):
            decode(orjson.dumps({**orjson.loads(encode(REPORT)), name: value}))
    for payload in (b"", b"[]", b"null", b"{}", b"\xff", b"{"):
        with pytest.raises(ValueError):
            decode(payload)
