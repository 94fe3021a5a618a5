"""Entries survive their column: NUL, lone surrogates and huge exponents included."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_store.inference.metadata import (
    Entry,
    Section,
    decode_entries,
    encode_entries,
    list_entries,
)

# Other work on the machine must not fail a test.
_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_TEXT = st.text(st.characters())  # surrogates too
_ENTRIES = st.builds(
    Entry,
    key=_TEXT,
    type=_TEXT,
    value=st.none() | _TEXT | st.sampled_from(["1e200000", "a\0b", "\ud800"]),
    section=st.sampled_from(["standard", "extended"]),
    flags=st.lists(st.sampled_from(["not_int", "duplicate_key"])).map(tuple),
)


@_UNHURRIED
@given(st.lists(_ENTRIES))
def test_there_and_back(entries: list[Entry]) -> None:
    assert decode_entries(encode_entries(entries)) == tuple(entries)


def test_the_column_is_the_familiar_list() -> None:
    stored = encode_entries([Entry("a", "int", "1", "extended")])
    assert stored == b'[{"key":"a","type":"int","value":"1"}]'


@pytest.mark.parametrize("section", ["extended", "standard"])
@pytest.mark.parametrize("flags", [(), ("one", "two")])
@pytest.mark.parametrize("value", ["1", None, "\ud800"])
def test_entries_are_listed_with_all_of_their_parts(
    section: Section, flags: tuple[str, ...], value: str | None
) -> None:
    entry = Entry("a", "int", value, section, flags)
    [listed] = list_entries(encode_entries([entry]))
    assert list(listed) == list(Entry._fields)
    assert listed == entry._asdict() | {"flags": listed["flags"]}
    assert tuple(listed["flags"]) == flags
