"""Cursors of sorted pages: every value comes back unchanged, and other cursors are refused."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.index.long_text import encode as indexed
from inference_store.inference.errors import InvalidCursor
from inference_store.query import cursor as cursors
from inference_store.query import sorted_cursor
from inference_store.query.order import ByKey, ByProperty, Order
from inference_store.query.properties import PROPERTIES

FINGERPRINT = cursors.fingerprint("the question")
_KEYS: dict[str, Order] = {
    kind: ByKey(1, kind, False, False) for kind in ("number", "string", "bool", "timestamp")
}
_WHOLE = ByProperty(PROPERTIES["width"], False)
_DOUBLE = ByProperty(PROPERTIES["top_score"], False)
_VALUES = st.one_of(
    st.tuples(st.just(_KEYS["number"]), st.decimals(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just(_KEYS["string"]), st.text(max_size=700).filter(lambda t: "\0" not in t)),
    st.tuples(st.just(_KEYS["bool"]), st.booleans()),
    st.tuples(st.just(_KEYS["timestamp"]), st.datetimes(timezones=st.just(UTC))),
    st.tuples(st.just(_WHOLE), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(_DOUBLE), st.floats(allow_nan=False)),
)


@given(_VALUES, st.uuids())
def test_a_value_comes_back(order_and_value: tuple[Order, Any], uid: UUID) -> None:
    order, value = order_and_value
    if isinstance(value, str):
        value = indexed(value)[0]
    if isinstance(value, Decimal):
        assert len(value.as_tuple().digits) < 1_000
        exponent = value.as_tuple().exponent
        assert isinstance(exponent, int)
        if abs(exponent) > 400:
            return
    cursor = sorted_cursor.encode(FINGERPRINT, sorted_cursor.Cursor(order.kind, uid, value))
    assert len(cursor) <= sorted_cursor.MOST_CHARACTERS
    assert sorted_cursor.find_family(cursor) == order.kind
    there = sorted_cursor.decode(FINGERPRINT, cursor, order.kind, order.type)
    assert (there.uid, there.value, type(there.value)) == (uid, value, type(value))


def test_the_longest_values_fit() -> None:
    cases: list[Any] = [Decimal("9" * 1000 + "e400"), "\U0010ffff" * 256, "a" * 512]
    for value in cases:
        spelt = Decimal(f"{value:f}") if isinstance(value, Decimal) else value
        kind: Any = "number" if isinstance(value, Decimal) else "string"
        cursor = sorted_cursor.encode(FINGERPRINT, sorted_cursor.Cursor(kind, uuid4(), spelt))
        assert len(cursor) <= sorted_cursor.MOST_CHARACTERS, value
        order = _KEYS[kind]
        assert sorted_cursor.decode(FINGERPRINT, cursor, order.kind, order.type).value == value, (
            value
        )


def test_without_a_value() -> None:
    there = sorted_cursor.Cursor("number", uuid4())
    cursor = sorted_cursor.encode(FINGERPRINT, there)
    order = _KEYS["number"]
    assert sorted_cursor.decode(FINGERPRINT, cursor, order.kind, order.type) == there


@given(st.binary(max_size=60), st.sampled_from([*_KEYS.values(), _WHOLE, _DOUBLE]))
def test_rejects_other_cursors(payload: bytes, order: Order) -> None:
    cursor = cursors.seal(FINGERPRINT, payload)
    sorted_cursor.find_family(cursor)
    try:
        there = sorted_cursor.decode(FINGERPRINT, cursor, order.kind, order.type)
    except InvalidCursor:
        return
    assert there.kind == order.kind


def test_a_cursor_belongs_to_its_question_and_its_kind() -> None:
    order = _KEYS["timestamp"]
    position = sorted_cursor.Cursor("timestamp", uuid4(), datetime(2026, 11, 1, tzinfo=UTC))
    cursor = sorted_cursor.encode(FINGERPRINT, position)
    for fingerprint, kind in ((b"x" * 8, order.kind), (FINGERPRINT, "number")):
        with pytest.raises(InvalidCursor):
            sorted_cursor.decode(fingerprint, cursor, kind, order.type)
    for broken in ("", "a", "!", cursor[:30], cursors.encode(FINGERPRINT, uuid4())):
        with pytest.raises(InvalidCursor):
            sorted_cursor.decode(FINGERPRINT, broken, order.kind, order.type)
