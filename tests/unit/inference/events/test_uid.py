from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference.events import received_at_of, uid_floor, uid_of

instants = st.datetimes(
    min_value=datetime(2000, 1, 1),  # noqa: DTZ001
    max_value=datetime(2200, 1, 1),  # noqa: DTZ001
).map(lambda naive: naive.replace(tzinfo=UTC))


@given(instants, st.text(), st.text())
def test_a_uid_is_a_uuid_of_version_8_that_tells_its_time(
    at: datetime, model_id: str, inference_id: str
) -> None:
    uid = uid_of(at, model_id.encode("utf-8", "replace").decode(), inference_id and "x")
    assert uid.version == 8
    assert received_at_of(uid) == at


@given(instants, instants)
def test_uids_sort_by_time(first: datetime, second: datetime) -> None:
    if first != second:
        assert (uid_of(first, "m") < uid_of(second, "m")) == (first < second)
    assert uid_floor(first) <= uid_of(first, "m") < uid_floor(first + timedelta(microseconds=1))


def test_lengths_are_part_of_the_identity() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert uid_of(at, "ab", "c") != uid_of(at, "a", "bc")
    assert uid_of(at, "ab", "c") == uid_of(at, "ab", "c")
