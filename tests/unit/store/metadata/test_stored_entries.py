"""Entries survive their column: NUL, lone surrogates and huge exponents included."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_store.store.metadata import Entry, decode_entries, encode_entries

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
