"""Entries survive their column: NUL, lone surrogates and huge exponents included."""

from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference.metadata import Entry, decode_entries, encode_entries, list_entries

_TEXT = st.text(st.characters())  # surrogates too
_ENTRIES = st.builds(
    Entry,
    key=_TEXT,
    type=_TEXT,
    value=st.none() | _TEXT | st.sampled_from(["1e200000", "a\0b", "\ud800"]),
    section=st.sampled_from(["standard", "extended"]),
    flags=st.lists(st.sampled_from(["not_int", "duplicate_key"])).map(tuple),
)


@given(st.lists(_ENTRIES))
def test_there_and_back(entries: list[Entry]) -> None:
    assert decode_entries(encode_entries(entries)) == tuple(entries)


def test_the_column_is_the_familiar_list() -> None:
    stored = encode_entries([Entry("a", "int", "1", "extended")])
    assert stored == b'[{"key":"a","type":"int","value":"1"}]'


def test_entries_are_listed_with_all_of_their_parts() -> None:
    for value in ("1", None, "\ud800"):
        for flags in ((), ("one", "two")):
            for section in ("extended", "standard"):
                entry = Entry("a", "int", value, section, flags)
                [listed] = list_entries(encode_entries([entry]))
                assert list(listed) == list(Entry._fields), value
                assert listed == entry._asdict() | {"flags": listed["flags"]}, value
                assert tuple(listed["flags"]) == flags, value
