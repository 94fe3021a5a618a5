"""Bodies are read exactly, ids in paths decoded once."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.api.paths import decoded, escaped
from inference_store.api.requests import exact_json


def test_numbers_are_exact() -> None:
    found = exact_json(b'[0.1, 98765432109876543210, 1e400, -0.0, 7, "0.1"]')
    assert found == [
        Decimal("0.1"),
        98765432109876543210,
        Decimal("1e400"),
        Decimal("-0.0"),
        7,
        "0.1",
    ]
    assert isinstance(found[4], int)


@pytest.mark.parametrize("wrong", [b"{", b"\xff", b"NaN", b"[" * 100_000, b"", b"1 2"])
def test_what_is_not_json_is_refused(wrong: bytes) -> None:
    with pytest.raises(json.JSONDecodeError):
        exact_json(wrong)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=256))
def test_any_id_is_a_segment(name: str) -> None:
    assert "/" not in escaped(name)
    assert decoded(escaped(name)) == name


@pytest.mark.parametrize("segment", ["%00", "%ff", "x" * 257])
def test_ids_that_are_none(segment: str) -> None:
    with pytest.raises(ValueError, match="id"):
        decoded(segment)
