"""Events as bytes: what is read, and what is refused with which reason."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference import events
from inference_store.inference.errors import InvalidEvent
from inference_store.inference.events.wire import NINE
from inference_store.inference.producer_reports import ProducerReport, decode, encode
from tests.builders import BUCKETS, NOW, make_event, make_payload, replace_members
from tests.properties import draw_json

ZERO, TOO_EARLY = "0001-01-01T00:00:00Z", "1999-12-31T23:59:59Z"

SEGMENT = "m/2026/11/30/11/01a22c4b-fadd-7c36-bb3a-2e799d3e3312.tar"


def find_reason(payload: bytes) -> str:
    with pytest.raises(InvalidEvent) as caught:
        events.decode(payload, record_time=NOW, buckets=BUCKETS)
    assert caught.value.reason in events.DEAD_LETTER_REASONS
    return caught.value.reason


def test_the_nine_fields_alone_are_an_event() -> None:
    event = make_event()
    assert (event.model_id, event.inference_id) == ("people-detector", "1")
    assert str(event.data) == "s3://inference-store/a/data"
    assert event.forwarded_at is None
    assert event.extras.ok is None
    assert event.extras.data_hash is None
    for name in NINE:
        assert find_reason(replace_members(make_payload(), **{name: ...})) == "not_an_event"


def test_gos_own_output_is_read() -> None:
    payload = (
        b'{"model_id":"m","inference_id":"i","request_received_at":"2026-11-01T12:00:00.123456789Z"'
        b',"request_forwarded_at":"2026-11-01T13:00:00.2+01:00"'
        b',"request_responded_at":"0001-01-01T00:00:00Z","event_published_at":""'
        b',"data_storage_key":"","inference_storage_key":"s3://elsewhere/r"'
        b',"metadata_storage_key":""}'
    )
    event = events.decode(payload, record_time=NOW, buckets=BUCKETS)
    assert event.received_at == NOW
    assert event.forwarded_at == NOW.replace(microsecond=200_000)
    assert event.responded_at is None
    assert event.data is None
    assert str(event.response) == "s3://elsewhere/r"


def test_the_same_event_has_the_same_uid_and_another_blob_another() -> None:
    assert make_event().uid == make_event(published_at=NOW).uid
    assert make_event().uid != make_event(data_storage_key="b/data").uid
    assert make_event().uid != make_event(inference_id="2").uid
    same = make_event(data_storage_key="s3://inference-store/a/data")
    assert make_event().uid == same.uid


def test_what_is_wrong_has_a_reason_and_keeps_both_ids() -> None:
    for payload, reason in (
        (b"", "not_json"),
        (b"null", "not_json"),
        (b"[1]", "not_json"),
        (b'{"model_id":', "not_json"),
        (b"\xff\xfe{}", "not_json"),
        (b"[" * 100_000, "not_json"),
        (b'{"a":' * 100_000, "not_json"),
        (make_payload(model_id=""), "invalid_id"),
        (make_payload(model_id="x" * 257), "invalid_id"),
        (make_payload(model_id=".."), "invalid_id"),
        (make_payload(inference_id="."), "invalid_id"),
        (make_payload(inference_id="a\0b"), "invalid_id"),
        (make_payload().replace(b'"people-detector"', rb'"\ud800"'), "invalid_id"),
        (replace_members(make_payload(), model_id=7), "invalid_id"),
        (replace_members(make_payload(), request_received_at="soon"), "invalid_time"),
        (replace_members(make_payload(), request_forwarded_at="soon"), "invalid_time"),
        (replace_members(make_payload(), request_received_at=ZERO), "time_out_of_range"),
        (replace_members(make_payload(), request_received_at=""), "time_out_of_range"),
        (replace_members(make_payload(), request_received_at=TOO_EARLY), "time_out_of_range"),
        (make_payload(received_at=NOW + timedelta(hours=25)), "time_out_of_range"),
        (make_payload(data_storage_key="s3://strangers/x"), "invalid_storage_key"),
        (make_payload(data_storage_key="s3://elsewhere"), "invalid_storage_key"),
        (make_payload(metadata_storage_key="x" * 1025), "invalid_storage_key"),
        (make_payload(metadata_storage_key="a/../b"), "invalid_storage_key"),
        # others' captures, too
        (make_payload(data_storage_key=SEGMENT), "invalid_storage_key"),
        (make_payload(data_storage_key=f"{SEGMENT}#0+9"), "invalid_storage_key"),
    ):
        assert find_reason(payload) == reason
    with pytest.raises(InvalidEvent) as caught:
        events.decode(make_payload(data_storage_key="s3://x/y"), record_time=NOW, buckets=BUCKETS)
    assert (caught.value.model_id, caught.value.inference_id) == ("people-detector", "1")


def test_extras_are_read_and_unreadable_ones_flagged() -> None:
    event = make_event(
        ok=False, width=640, height="tall", data_size=-1, error="a\0b", model_version="x"
    )
    assert (event.extras.ok, event.extras.width, event.extras.model_version) == (False, 640, "x")
    assert (event.extras.height, event.extras.data_size, event.extras.error) == (None, None, None)
    assert set(event.flags) == {f"extra_unreadable:{n}" for n in ("height", "data_size", "error")}
    event = make_event(project_id="..")
    assert (event.extras.project_id, event.flags) == (None, ("extra_unreadable:project_id",))
    event = make_event(flags=["batch_not_split", "metadata_too_large"])
    assert event.flags == ("batch_not_split",)
    assert make_event(aliases=["1", "header-id", "header-id"]).aliases == ("header-id",)
    for value in (rb'"\ud800"', b"9" * 10_000):
        payload = make_payload(novelty=1).replace(b'"novelty":1', b'"novelty":' + value)
        assert events.decode(payload, record_time=NOW, buckets=BUCKETS).inference_id == "1"


def test_hashes_and_task_types_have_one_spelling() -> None:
    for name, text, expected in (
        ("data_hash", "0123456789ABCDEF" * 4, "0123456789abcdef" * 4),
        ("data_hash", "0123456789abcdef" * 4, "0123456789abcdef" * 4),
        ("data_hash", "d41d8cd98f00b204e9800998ecf8427e", None),
        ("task_type", "Object Detection", "object_detection"),
        ("task_type", "NER", "token_classification"),
        ("task_type", "unknown", "unknown"),
        ("task_type", "depth", None),
    ):
        event = make_event(**{name: text})
        assert getattr(event.extras, name) == expected
        assert event.flags == (() if expected else (f"extra_unreadable:{name}",))


def test_keeps_inline_values_unchanged() -> None:
    exact = b'{"a": 12345678901234567890123, "b":0.10}'
    deep = b"[" * 1010 + b"1 " + b"]" * 1010
    for text in (exact, b"[ 1.0 ,1e400]", rb'["\ud800"]', b"[]", deep):
        payload = make_payload(metadata=0).replace(b'"metadata":0', b'"metadata": ' + text)
        event = events.decode(payload, record_time=NOW, buckets=BUCKETS)
        assert (event.inline_metadata, event.flags) == (text, ())
    assert make_event(response='{"outputs": []}').inline_response == b'{"outputs": []}'


@given(st.binary(max_size=200))
def test_no_bytes_do_worse_than_invalid_event(payload: bytes) -> None:
    try:
        events.decode(payload, record_time=NOW, buckets=BUCKETS)
    except InvalidEvent as wrong:
        assert wrong.reason in events.DEAD_LETTER_REASONS


NAMES = st.sampled_from([*NINE, "ok", "width", "aliases", "metadata"])


@given(st.dictionaries(NAMES, draw_json(leaves=6)))
def test_no_value_of_any_field_does_worse_than_invalid_event(changes: dict[str, Any]) -> None:
    document = orjson.loads(make_payload()) | changes
    payload = json.dumps(document).encode()
    try:
        events.decode(payload, record_time=NOW, buckets=BUCKETS)
    except InvalidEvent as wrong:
        assert wrong.reason in events.DEAD_LETTER_REASONS


def read_flags(problems: object) -> tuple[str, ...]:
    payload = replace_members(make_payload(), capture_problems=problems)
    return events.decode(payload, record_time=NOW, buckets=BUCKETS).flags


def test_each_capture_problem_is_a_flag() -> None:
    for reason in events.CAPTURE_PROBLEMS:
        assert read_flags([reason, reason]) == (f"capture_{reason}",)
    assert read_flags([]) == ()
    for wrong in (["lost"], "request_over_cap", ["request_over_cap", 7], {"a": 1}):
        assert read_flags(wrong) == ("extra_unreadable:capture_problems",)
    listed = {
        f"capture_{side}_{kind}" for side in events.SIDES for kind in get_args(events.CaptureKind)
    }
    of_sides = {flag for side in events.SIDES for flag in events.flags_of(side)}
    assert of_sides == {f"capture_{reason}" for reason in events.CAPTURE_PROBLEMS}
    assert of_sides == listed - {"capture_response_no_input"}
    assert set(events.SIDES) == set(get_args(events.CaptureSide))
    problems = events.gravest(
        [("response", "not_json"), ("request", "unreadable"), ("request", "over_cap")]
    )
    assert problems == ["request_over_cap", "response_not_json"]


def test_go_times_are_floored_to_microseconds_and_gos_zero_time_is_unset() -> None:
    for text, expected in (
        ("0001-01-01T00:00:00Z", None),
        ("0000-01-01T00:00:00Z", None),
        ("2026-11-21T03:34:20Z", datetime(2026, 11, 21, 3, 34, 20, tzinfo=UTC)),
        ("2026-11-21T03:34:20.1Z", datetime(2026, 11, 21, 3, 34, 20, 100_000, tzinfo=UTC)),
        ("2026-11-21T03:34:20.123456789Z", datetime(2026, 11, 21, 3, 34, 20, 123_456, tzinfo=UTC)),
        ("2026-11-21T03:34:20.999999999Z", datetime(2026, 11, 21, 3, 34, 20, 999_999, tzinfo=UTC)),
        ("2026-11-21T03:34:20+05:30", datetime(2026, 11, 20, 22, 4, 20, tzinfo=UTC)),
        ("2026-11-21T03:34:20.5-00:01", datetime(2026, 11, 21, 3, 35, 20, 500_000, tzinfo=UTC)),
        ("2026-11-21t03:34:20z", datetime(2026, 11, 21, 3, 34, 20, tzinfo=UTC)),
    ):
        assert events.parse_instant(text) == expected


def test_rejects_other_texts_and_a_leap_second_by_name() -> None:
    for text in (
        "",
        "yesterday",
        "2026-11-21",
        "2026-11-21T03:34:20",
        "2026-13-21T03:34:20Z",
        "2026-11-21T25:34:20Z",
        "2026-11-21T24:00:00Z",
        "2026-11-21T03:34:20+25:00",
        "2026-11-21T03:34:20,123Z",
        "٢٠٢٦-11-21T03:34:20Z",
        "9999-12-31T23:59:59-23:59",
    ):
        with pytest.raises(ValueError, match=r"."):
            events.parse_instant(text)
    with pytest.raises(ValueError, match="leap second"):
        events.parse_instant("2016-12-31T23:59:60Z")


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9998, 1, 1)))  # noqa: DTZ001
def test_reads_back_what_python_writes(naive: datetime) -> None:
    at = naive.replace(tzinfo=UTC)
    assert events.parse_instant(at.isoformat().replace("+00:00", "Z")) == at


@given(st.text(max_size=40))
def test_no_text_does_worse_than_value_error(text: str) -> None:
    try:
        at = events.parse_instant(text)
    except ValueError:
        return
    assert at is None or at.utcoffset() == timedelta(0)


instants = st.datetimes(
    min_value=datetime(2000, 1, 1),  # noqa: DTZ001
    max_value=datetime(2200, 1, 1),  # noqa: DTZ001
).map(lambda naive: naive.replace(tzinfo=UTC))


@given(instants, st.text(), st.text())
def test_a_uid_is_a_uuid_of_version_8_that_tells_its_time(
    at: datetime, model_id: str, inference_id: str
) -> None:
    uid = events.uid_of(at, model_id.encode("utf-8", "replace").decode(), inference_id and "x")
    assert uid.version == 8
    assert events.received_at_of(uid) == at


@given(instants, instants)
def test_uids_sort_by_time(first: datetime, second: datetime) -> None:
    if first != second:
        assert (events.uid_of(first, "m") < events.uid_of(second, "m")) == (first < second)
    assert (
        events.uid_floor(first)
        <= events.uid_of(first, "m")
        < events.uid_floor(first + timedelta(microseconds=1))
    )


def test_lengths_are_part_of_the_identity() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert events.uid_of(at, "ab", "c") != events.uid_of(at, "a", "bc")
    assert events.uid_of(at, "ab", "c") == events.uid_of(at, "ab", "c")


# The reports of a producer about itself: their bytes, and those that are refused.

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


def test_reports_come_back_as_they_were() -> None:
    assert decode(encode(REPORT)) == REPORT
    assert REPORT.closes
    assert not decode(encode(REPORT).replace(b'"published":4', b'"published":3')).closes
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
