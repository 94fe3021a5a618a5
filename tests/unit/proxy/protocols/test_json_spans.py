"""Where the values of a JSON text stand."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_store.proxy.protocols import json_spans
from inference_store.proxy.protocols.json_spans import Span

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


def rebuilt(text: bytes, span: Span) -> Any:
    """The value, put together from its spans."""
    first = text[span.start : span.start + 1]
    if first == b"{":
        return {each.name: rebuilt(text, each.value) for each in json_spans.members(text, span)}
    if first == b"[":
        return [rebuilt(text, each) for each in json_spans.items(text, span)]
    return json.loads(text[span.start : span.end])


@given(
    value=_JSON,
    indent=st.sampled_from([None, 1, "\r\n\t "]),
    separators=st.sampled_from([None, (",", ":"), (" ,\n", "\t: ")]),
    ascii_only=st.booleans(),
)
def test_spans_hold_the_whole_value(
    value: Any, indent: Any, separators: Any, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=ascii_only)
    content = text.encode("utf-8", "surrogatepass")
    found = rebuilt(content, json_spans.root(content))
    assert repr(found) == repr(json.loads(text))


def test_a_text_that_is_not_json_ends_all_the_same() -> None:
    for content in (b"", b"{", b"[", b'{"a', b'{"a":', b"[,]", b"{:}", b"[[", b'["\\'):
        rebuilt_or_not = list(json_spans.members(content, json_spans.root(content)))
        listed = list(json_spans.items(content, json_spans.root(content)))
        assert len(rebuilt_or_not) + len(listed) <= len(content)


@given(content=st.text(alphabet='{}[]",:\\1a \n', max_size=30).map(str.encode))
def test_any_text_ends(content: bytes) -> None:
    span = json_spans.root(content)
    assert len(list(json_spans.members(content, span))) <= len(content)
    assert len(list(json_spans.items(content, span))) <= len(content)


def test_names_that_come_twice_are_both_there() -> None:
    text = b'{"a": 1, "\\u0061": [2]}'
    found = list(json_spans.members(text, json_spans.root(text)))
    assert [(each.name, text[slice(*each.value)]) for each in found] == [
        ("a", b"1"),
        ("a", b"[2]"),
    ]
    assert text[slice(*found[1].whole)] == b'"\\u0061": [2]'
    assert text[slice(*json_spans.by_name(text, json_spans.root(text))["a"])] == b"[2]"


def test_depth_takes_no_stack() -> None:
    text = b"[" * 100_000 + b"]" * 100_000
    assert json_spans.root(text) == (0, 200_000)
