"""Cursors are bound to their query."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from inference_store.inference.errors import InvalidCursor
from inference_store.query import cursor


def test_a_cursor_comes_back() -> None:
    query, uid = cursor.fingerprint("one"), uuid4()
    assert cursor.decode(query, cursor.encode(query, uid)) == uid


def test_a_damaged_cursor_is_refused(subtests: pytest.Subtests) -> None:
    for damaged in ["", "x", "é", "####", "AAAA", "A" * 200]:
        with subtests.test(damaged), pytest.raises(InvalidCursor):
            cursor.decode(cursor.fingerprint("one"), damaged)


def test_another_query_is_refused() -> None:
    encoded = cursor.encode(cursor.fingerprint("one"), uuid4())
    with pytest.raises(InvalidCursor, match="another query"):
        cursor.decode(cursor.fingerprint("two"), encoded)


def test_a_pinned_instant_comes_back() -> None:
    cases: list[datetime] = [
        datetime(2026, 11, 25, 7, 0, 0, 123456, UTC),
        datetime(1, 1, 1, tzinfo=UTC),
    ]
    for now in cases:
        encoded = cursor.encode(cursor.fingerprint("one"), uuid4())
        assert cursor.unpin(cursor.pin(encoded, now)) == (encoded, now), now
        assert cursor.unpin(encoded) == (encoded, None), now


def test_a_damaged_instant_is_refused(subtests: pytest.Subtests) -> None:
    for damaged in ["é", "####", "B" * 200, "f_________8"]:
        with subtests.test(damaged):
            encoded = cursor.encode(cursor.fingerprint("one"), uuid4())
            with pytest.raises(InvalidCursor):
                cursor.unpin(f"{encoded}.{damaged}")
