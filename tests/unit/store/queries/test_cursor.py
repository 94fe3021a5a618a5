"""Cursors are bound to their query."""

from uuid import uuid4

import pytest

from inference_store.store.errors import InvalidCursor
from inference_store.store.queries import cursor


def test_a_cursor_comes_back() -> None:
    query, uid = cursor.fingerprint("one"), uuid4()
    assert cursor.decode(query, cursor.encode(query, uid)) == uid


@pytest.mark.parametrize("damaged", ["", "x", "é", "####", "AAAA", "A" * 200])
def test_a_damaged_cursor_is_refused(damaged: str) -> None:
    with pytest.raises(InvalidCursor):
        cursor.decode(cursor.fingerprint("one"), damaged)


def test_another_query_is_refused() -> None:
    made = cursor.encode(cursor.fingerprint("one"), uuid4())
    with pytest.raises(InvalidCursor, match="another query"):
        cursor.decode(cursor.fingerprint("two"), made)
