import sys
from datetime import UTC, datetime, timedelta
from types import FrameType
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference.layout import around, belongs_to, key_of

CAPTURE = UUID("0192f0c4-0000-7000-8000-000000000001")
AT = datetime(2026, 11, 1, 23, 59, tzinfo=UTC)


@given(st.text(min_size=1, max_size=40), st.sampled_from(["", "captures", "a/b"]))
def test_our_own_keys_are_recognised(model_id: str, prefix: str) -> None:
    model_id = model_id.encode("utf-8", "replace").decode()
    key = key_of(prefix, model_id, AT, CAPTURE, "response")
    assert belongs_to(key, model_id, CAPTURE, AT)
    assert not belongs_to(key, model_id, uuid4(), AT)
    assert not belongs_to(key, model_id, None, AT)
    assert not belongs_to(key, model_id + "2", CAPTURE, AT)
    assert not belongs_to(key, None, CAPTURE, AT)


@pytest.mark.parametrize(
    "key",
    [
        f"{CAPTURE}/data",
        f"m/2026/11/01/{CAPTURE}/data",
        f"m/2026/11/01/23/{CAPTURE}/other",
        f"m/2026/11/01/xx/{CAPTURE}/data",
        f"m/2026/11/1/23/{CAPTURE}/data",
        f"m/0001/01/01/00/{CAPTURE}/data",
        "m/2026/11/01/23/1/data",
        "data",
        "",
    ],
)
def test_other_keys_may_be_shared(key: str) -> None:
    assert not belongs_to(key, "m", CAPTURE, AT)


@pytest.mark.parametrize(
    ("hours", "is_own"), [(-12, True), (14, True), (15, True), (-16, False), (17, False)]
)
def test_a_key_may_name_the_hour_of_a_local_clock_and_no_other_day(
    hours: int, is_own: bool
) -> None:
    key = key_of("p", "m", AT + timedelta(hours=hours), CAPTURE, "data")
    assert belongs_to(key, "m", CAPTURE, AT) is is_own


@given(st.integers(-12, 14))
def test_a_capture_is_looked_for_where_its_clock_may_have_been(hours: int) -> None:
    spans = around([(AT + timedelta(hours=hours)).replace(minute=0)])
    assert any(lo <= AT < hi for lo, hi in spans)


def test_spans_of_hours_lie_apart() -> None:
    hour = AT.replace(minute=0)
    hours = [hour, hour + timedelta(hours=20), hour + timedelta(days=4), hour]
    spans = around(hours)
    assert len(spans) == 2
    assert spans[0][1] < spans[1][0]


def test_the_hour_of_many_keys_is_parsed_once() -> None:
    """`strptime` for each of an event's three keys took as long as making all of its rows."""
    hour = datetime(2031, 5, 6, 7, tzinfo=UTC)
    keys = [key_of("p", "m", hour, uuid4(), "data") for _ in range(100)]
    parsed = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal parsed
        code = frame.f_code
        parsed += event == "call" and code.co_name == "_strptime"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        assert not any(belongs_to(key, "m", CAPTURE, hour) for key in keys)
    finally:
        sys.setprofile(before)
    assert parsed <= 1
