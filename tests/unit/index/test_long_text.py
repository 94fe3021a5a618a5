"""The part of a long text that an index holds."""

from hypothesis import given
from hypothesis import strategies as st

from inference_store.index.long_text import after, encode, lower_bound, prefix_bounds, upper_bound

_TEXTS = st.builds(
    lambda character, times, rest: character * times + rest,
    st.sampled_from("aé€😀\U0010ffff"),
    st.integers(0, 600),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4),
)


@given(_TEXTS)
def test_whole_up_to_512_bytes(text: str) -> None:
    value, whole = encode(text)
    if len(text.encode()) <= 512:
        assert (value, whole) == (text, None)
    else:
        assert whole == text
        assert 512 < len(value.encode()) <= 520
        assert text.startswith(value[: value.index("#sha256:")])


@given(_TEXTS, _TEXTS)
def test_no_match_lies_outside_the_bounds(text: str, other: str) -> None:
    value = encode(text)[0]
    if text >= other:
        assert value >= lower_bound(other)
    high = upper_bound(other)
    if text <= other and high is not None:
        assert value < high
    for prefix in (other, text[: len(text) // 2]):
        low, end = prefix_bounds(prefix)
        if text.startswith(prefix):
            assert value >= low
            assert end is None or value < end


def test_the_text_after_a_prefix() -> None:
    assert after("ab") == "ac"
    assert after("a\U0010ffff") == "b"
    assert after("\ud7ff") == "\ue000"
    assert after("\U0010ffff") is None
    assert after("") is None
