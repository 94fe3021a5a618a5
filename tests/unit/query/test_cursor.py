"""Cursors are bound to their query; every value comes back unchanged, and others are refused."""

from base64 import urlsafe_b64encode
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
from inference_store.query.cursor import MOST_CHARACTERS, Cursor, decode, encode, find_family
from inference_store.query.order import ByKey, ByProperty, Order
from inference_store.query.properties import PROPERTIES

_QUERY = cursors.fingerprint("the question")
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
    cursor = encode(_QUERY, Cursor(uid, order.kind, value))
    assert len(cursor) <= MOST_CHARACTERS
    assert find_family(cursor) == order.kind
    there = decode(_QUERY, cursor, order.kind, order.type)
    assert (there.uid, there.value, type(there.value)) == (uid, value, type(value))


def test_the_longest_values_fit() -> None:
    cases: list[tuple[Any, str, Any]] = [
        ("number", "9" * 1000 + "0" * 400, Decimal("9" * 1000 + "e400")),
        ("string", "", "\U0010ffff" * 256),
        ("string", "", "a" * 512),
    ]
    for kind, digits, value in cases:
        written = Decimal(digits) if digits else value
        cursor = encode(_QUERY, Cursor(uuid4(), kind, written))
        assert len(cursor) <= MOST_CHARACTERS
        order = _KEYS[kind]
        assert decode(_QUERY, cursor, order.kind, order.type).value == value


@given(st.binary(max_size=60), st.sampled_from([*_KEYS.values(), _WHOLE, _DOUBLE]))
def test_rejects_other_cursors(payload: bytes, order: Order) -> None:
    cursor = urlsafe_b64encode(_QUERY + payload).rstrip(b"=").decode()
    find_family(cursor)
    try:
        there = decode(_QUERY, cursor, order.kind, order.type)
    except InvalidCursor:
        return
    assert there.kind == order.kind


def test_a_cursor_belongs_to_its_question_and_its_kind() -> None:
    order = _KEYS["timestamp"]
    position = Cursor(uuid4(), "timestamp", datetime(2026, 11, 1, tzinfo=UTC))
    cursor = encode(_QUERY, position)
    for fingerprint, kind in ((b"x" * 8, order.kind), (_QUERY, "number")):
        with pytest.raises(InvalidCursor):
            decode(fingerprint, cursor, kind, order.type)
    for broken in ("", "a", "!", cursor[:30], encode(_QUERY, Cursor(uuid4()))):
        with pytest.raises(InvalidCursor):
            decode(_QUERY, broken, order.kind, order.type)
    with pytest.raises(InvalidCursor):
        decode(_QUERY, cursor)


def test_a_damaged_cursor_is_refused(subtests: pytest.Subtests) -> None:
    for damaged in ["", "x", "é", "####", "AAAA", "A" * 200]:
        with subtests.test(damaged), pytest.raises(InvalidCursor):
            decode(cursors.fingerprint("one"), damaged)


def test_another_query_is_refused() -> None:
    encoded = encode(cursors.fingerprint("one"), Cursor(uuid4()))
    with pytest.raises(InvalidCursor, match="another query"):
        decode(cursors.fingerprint("two"), encoded)


def test_a_pinned_instant_comes_back() -> None:
    cases: list[datetime] = [
        datetime(2026, 11, 25, 7, 0, 0, 123456, UTC),
        datetime(1, 1, 1, tzinfo=UTC),
    ]
    for now in cases:
        encoded = encode(cursors.fingerprint("one"), Cursor(uuid4()))
        assert cursors.unpin(cursors.pin(encoded, now)) == (encoded, now), now
        assert cursors.unpin(encoded) == (encoded, None), now


def test_a_damaged_instant_is_refused(subtests: pytest.Subtests) -> None:
    for damaged in ["é", "####", "B" * 200, "f_________8"]:
        with subtests.test(damaged):
            encoded = encode(cursors.fingerprint("one"), Cursor(uuid4()))
            with pytest.raises(InvalidCursor):
                cursors.unpin(f"{encoded}.{damaged}")
