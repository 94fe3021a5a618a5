"""Cursors are bound to their query."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from inference_store.inference.errors import InvalidCursor
from inference_store.query import cursor


def test_a_cursor_comes_back() -> None:
    query, uid = cursor.fingerprint("one"), uuid4()
    assert cursor.decode(query, cursor.encode(query, uid)) == uid


@pytest.mark.parametrize("damaged", ["", "x", "é", "####", "AAAA", "A" * 200])
def test_a_damaged_cursor_is_refused(damaged: str) -> None:
    with pytest.raises(InvalidCursor):
        cursor.decode(cursor.fingerprint("one"), damaged)


def test_another_query_is_refused() -> None:
    encoded = cursor.encode(cursor.fingerprint("one"), uuid4())
    with pytest.raises(InvalidCursor, match="another query"):
        cursor.decode(cursor.fingerprint("two"), encoded)


@pytest.mark.parametrize(
    "now", [datetime(2026, 11, 25, 7, 0, 0, 123456, UTC), datetime(1, 1, 1, tzinfo=UTC)]
)
def test_a_pinned_instant_comes_back(now: datetime) -> None:
    encoded = cursor.encode(cursor.fingerprint("one"), uuid4())
    assert cursor.unpin(cursor.pin(encoded, now)) == (encoded, now)
    assert cursor.unpin(encoded) == (encoded, None)


@pytest.mark.parametrize("damaged", ["é", "####", "B" * 200, "f_________8"])
def test_a_damaged_instant_is_refused(damaged: str) -> None:
    encoded = cursor.encode(cursor.fingerprint("one"), uuid4())
    with pytest.raises(InvalidCursor):
        cursor.unpin(f"{encoded}.{damaged}")
