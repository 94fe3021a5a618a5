"""The spans of the values of a JSON text."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference import json_text
from inference_store.inference.json_text import Span, read_json
from tests.properties import draw_json


def rebuild(text: bytes, span: Span, scalar: Any = json.loads, pairs: Any = dict) -> Any:
    """The value, put together from its spans: of scalars, of the pairs of an object, of lists."""
    first = text[span.start : span.start + 1]
    if first == b"{":
        members = json_text.members(text, span)
        return pairs((each.name, rebuild(text, each.value, scalar, pairs)) for each in members)
    if first == b"[":
        return [rebuild(text, item, scalar, pairs) for item in json_text.items(text, span)]
    return scalar(text[span.start : span.end])


@given(
    value=draw_json(leaves=30),
    indent=st.sampled_from([None, 1, "\r\n\t "]),
    separators=st.sampled_from([None, (",", ":"), (" ,\n", "\t: ")]),
    ascii_only=st.booleans(),
)
def test_spans_hold_the_whole_value(
    value: Any, indent: Any, separators: Any, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=ascii_only)
    content = text.encode("utf-8", "surrogatepass")
    result = rebuild(content, json_text.root(content))
    assert repr(result) == repr(json.loads(text))


# As servers and callers write it, beyond what JSON allows: `json_text.read_json` reads all of it.
_WRITTEN_SCALARS = st.sampled_from(
    [
        *(b"null", b"NaN", b"-Infinity", b"1e400", b"0.10"),
        *(b'""', b'"\\\\"', b'"\\"]"', b'"{\\\\\\"}"', b'"\\ud800"', b'"a\0\t\xff,"'),
        *(b'"' + b"[a]" * 50 + b'"', b'"' + b"\\n" * 1500 + b'\\""'),
    ]
)
_BLANKS = st.sampled_from([b"", b" ", b"\r\n\t"])
_WRITTEN_NAMES = st.sampled_from(["a", "metadata", "a:", 'a"', "a\\"])


@st.composite
def _written_list(draw: st.DrawFn, inner: Any) -> tuple[bytes, Any]:
    items = draw(st.lists(inner, max_size=4))
    blank = draw(_BLANKS)
    texts = [blank + text + blank for text, _ in items]
    return b"[" + (b",".join(texts) or blank) + b"]", [value for _, value in items]


@st.composite
def _written_object(draw: st.DrawFn, inner: Any) -> tuple[bytes, Any]:
    members = draw(st.lists(st.tuples(_WRITTEN_NAMES, inner), max_size=4))
    blank = draw(_BLANKS)
    texts = [
        blank + json.dumps(name).encode() + blank + b":" + blank + text + blank
        for name, (text, _) in members
    ]
    pairs = tuple((name, value) for name, (_, value) in members)
    return b"{" + (b",".join(texts) or blank) + b"}", pairs


_WRITTEN = st.recursive(
    _WRITTEN_SCALARS.map(lambda text: (text, text)),
    lambda inner: _written_list(inner) | _written_object(inner),
    max_leaves=20,
)


@given(written=_WRITTEN, before=st.sampled_from([b"", b"\xef\xbb\xbf", b" \n"]))
def test_spans_are_of_what_was_written(written: tuple[bytes, Any], before: bytes) -> None:
    text, expected = before + written[0] + b" ", written[1]
    read_json(text)
    root = json_text.root(text)
    assert text[root.start : root.end] == written[0]
    assert rebuild(text, root, bytes, tuple) == expected


LONG = {
    "a flat list": b"[" + b"1," * 100_000 + b"1]",
    "lists in a list": b"[" + b"[1]," * 50_000 + b"[1]]",
    "short texts": b"[" + b'"a",' * 50_000 + b'"a"]',
    "one long text": b'["' + b"a" * 1_000_000 + b'"]',
    "escapes": b'["' + b'\\"' * 100_000 + b'"]',
    "backslashes": b'["' + b"\\\\" * 100_000 + b'"]',
    "objects in a list": b"[" + b'{"a":[{}],"b":"]"},' * 20_000 + b"{}]",
}


def test_the_end_of_a_long_value_is_found() -> None:
    for case, value in LONG.items():
        text = b'{"a": ' + value + b', "b": 1}'
        spans = json_text.by_name(text, json_text.root(text))
        values = {name: text[span.start : span.end] for name, span in spans.items()}
        assert values == {"a": value, "b": b"1"}, case


def test_a_text_that_is_not_json_ends_all_the_same() -> None:
    for content in (b"", b"{", b"[", b'{"a', b'{"a":', b"[,]", b"{:}", b"[[", b'["\\'):
        rebuilt_or_not = list(json_text.members(content, json_text.root(content)))
        listed = list(json_text.items(content, json_text.root(content)))
        assert len(rebuilt_or_not) + len(listed) <= len(content)


@given(content=st.text(alphabet='{}[]",:\\1a \n', max_size=30).map(str.encode))
def test_any_text_ends(content: bytes) -> None:
    span = json_text.root(content)
    assert len(list(json_text.members(content, span))) <= len(content)
    assert len(list(json_text.items(content, span))) <= len(content)


def test_names_that_come_twice_are_both_there() -> None:
    text = b'{"a": 1, "\\u0061": [2]}'
    members = list(json_text.members(text, json_text.root(text)))
    assert [(member.name, text[slice(*member.value)]) for member in members] == [
        ("a", b"1"),
        ("a", b"[2]"),
    ]
    assert text[slice(*members[1].whole)] == b'"\\u0061": [2]'
    assert text[slice(*json_text.by_name(text, json_text.root(text))["a"])] == b"[2]"


def test_depth_takes_no_stack() -> None:
    text = b"[" * 100_000 + b"]" * 100_000
    assert json_text.root(text) == (0, 200_000)
