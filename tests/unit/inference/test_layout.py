from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference import layout

CAPTURE = UUID("0192f0c4-0000-7000-8000-000000000001")
AT = datetime(2026, 11, 1, 23, 59, tzinfo=UTC)


@given(st.text(min_size=1, max_size=40), st.sampled_from(["", "captures", "a/b"]))
def test_our_own_keys_are_recognised(model_id: str, prefix: str) -> None:
    model_id = model_id.encode("utf-8", "replace").decode()
    key = layout.key_of(prefix, model_id, AT, CAPTURE, "response")
    assert layout.belongs_to(key, model_id, CAPTURE, AT)
    assert not layout.belongs_to(key, model_id, uuid4(), AT)
    assert not layout.belongs_to(key, model_id, None, AT)
    assert not layout.belongs_to(key, model_id + "2", CAPTURE, AT)
    assert not layout.belongs_to(key, None, CAPTURE, AT)


def test_a_key_is_made_of_parts_that_its_readers_know() -> None:
    """Reconciliation reads the index in the order of the keys, which it makes of these parts."""
    key = layout.key_of("captures", "a/b", AT, CAPTURE, "data")
    assert key == f"captures/{layout.segment_of('a/b')}/{layout.hour_folder(AT)}/{CAPTURE}/data"
    assert layout.capture_of(key) == ("a/b", AT.replace(minute=0), CAPTURE)


@given(st.integers(0, 1_000_000), st.integers(1, 100_000))
def test_folders_of_hours_are_in_the_order_of_time(begin: int, later: int) -> None:
    early = AT + timedelta(hours=begin)
    assert layout.hour_folder(early) < layout.hour_folder(early + timedelta(hours=later))


def test_a_key_names_the_hour_of_some_clock_and_others_may_be_shared() -> None:
    for key in (
        f"{CAPTURE}/data",
        f"m/2026/11/01/{CAPTURE}/data",
        f"m/2026/11/01/23/{CAPTURE}/other",
        f"m/2026/11/01/xx/{CAPTURE}/data",
        f"m/2026/11/1/23/{CAPTURE}/data",
        f"m/0001/01/01/00/{CAPTURE}/data",
        "m/2026/11/01/23/1/data",
        "data",
        "",
    ):
        assert not layout.belongs_to(key, "m", CAPTURE, AT)
    for hours, is_own in ((-12, True), (14, True), (15, True), (-16, False), (17, False)):
        key = layout.key_of("p", "m", AT + timedelta(hours=hours), CAPTURE, "data")
        assert layout.belongs_to(key, "m", CAPTURE, AT) is is_own, hours


@given(st.integers(-12, 14))
def test_searches_the_hours_of_any_possible_clock(hours: int) -> None:
    spans = layout.around([(AT + timedelta(hours=hours)).replace(minute=0)])
    assert any(lo <= AT < hi for lo, hi in spans)


def test_spans_of_hours_lie_apart() -> None:
    hour = AT.replace(minute=0)
    hours = [hour, hour + timedelta(hours=20), hour + timedelta(days=4), hour]
    spans = layout.around(hours)
    assert len(spans) == 2
    assert spans[0][1] < spans[1][0]
