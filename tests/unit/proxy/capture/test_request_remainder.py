"""With the data blobs, the request again: whatever the bytes are."""

import base64
import gzip
import json
import zlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.proxy.capture.request_remainder import (
    MOST_BYTES,
    build_remainders,
    rebuild_messages,
)
from inference_store.proxy.exchange import Body
from tests.exchanges import exchange


def build_all_remainders(body: bytes, *data: bytes | None, **changes: Any) -> list[dict[str, Any]]:
    """Build the remainder for each inference."""
    sample = exchange(body, **changes)
    requests = build_remainders(sample, data, [()] * len(data), (), limit=1 << 24)
    # as they are read back from blobs
    result: list[dict[str, Any]] = orjson.loads(orjson.dumps(requests))
    return result


def build_remainder(body: bytes, *data: bytes | None, **changes: Any) -> dict[str, Any]:
    """Build the remainder for the first inference."""
    return build_all_remainders(body, *data, **changes)[0]


def rebuild(requests: list[dict[str, Any]], *data: bytes) -> list[bytes]:
    own = {index: request["parts"] for index, request in enumerate(requests) if "parts" in request}
    return rebuild_messages(requests[0], dict(enumerate(data)), own)


@given(
    st.lists(st.binary(max_size=40), max_size=5),
    st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=4),
)
def test_any_body_comes_back(rest: list[bytes], data: list[bytes]) -> None:
    pieces = [*rest, *data, *(base64.b64encode(datum) for datum in data)]
    body = b"".join(pieces)
    assert b"".join(rebuild(build_all_remainders(body, *data), *data)) == body


@given(st.text(min_size=1, max_size=40), st.booleans())
def test_any_text_in_json_comes_back(text: str, strict: bool) -> None:
    body = orjson.dumps({"text": text}) if strict else b'{"text": "%s"}' % text.encode()
    result = build_remainder(body, text.encode())
    if result["messages"] is not None:
        assert rebuild_messages(result, {0: text.encode()}) == [body]
    else:  # orjson and json escape a few control characters each in its own way
        assert any(character < " " or character == "\x7f" for character in text)


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=4))
def test_messages_of_grpc_come_back_one_by_one(messages: list[bytes]) -> None:
    body = Body(parts=messages, size=sum(map(len, messages)))
    result = build_remainder(b"", messages[0], transport="grpc", request=body)
    assert rebuild_messages(result, {0: messages[0]}) == messages


def test_a_body_of_several_codings_and_members_comes_back() -> None:
    """The body is stored as the protocols read it."""
    members = zlib.compress(gzip.compress(b'{"text": ') + gzip.compress(b'"hello"}'))
    result = build_remainder(
        members, b"hello", request_headers=[("content-encoding", "gzip, deflate")]
    )
    assert rebuild_messages(result, {0: b"hello"}) == [b'{"text": "hello"}']


def test_the_remainder_does_not_repeat_the_datum() -> None:
    image = bytes(range(256)) * 4
    body = orjson.dumps({"a": base64.b64encode(image).decode(), "b": 1})
    assert build_remainder(body, image)["messages"] == [
        ['{"a":"', {"data": 0, "as": "base64"}, '==","b":1}']
    ]


def test_a_datum_shared_by_two_inferences_is_stored_once() -> None:
    body = b'{"text": "hello"}'
    assert rebuild(build_all_remainders(body, b"hello", b"hello"), b"hello", b"hello") == [body]


def test_data_out_of_order_are_found() -> None:
    body = b'{"a": "second", "b": "first"}'
    assert rebuild(build_all_remainders(body, b"first", b"second"), b"first", b"second") == [body]


def test_says_why_a_request_is_not_kept() -> None:
    cases: list[tuple[bytes, dict[str, Any], str]] = [
        (b"x" * (MOST_BYTES + 1), {}, "over"),
        (b"no gzip", {"request_headers": [("content-encoding", "gzip")]}, "coding"),
        (b"", {"request": Body(size=7, whole=False)}, "over a cap"),
    ]
    for body, changes, why in cases:
        result = build_remainder(body, None, **changes)
        assert result["messages"] is None
        assert why in result["why"]
        with pytest.raises(ValueError, match="not kept"):
            rebuild_messages(result, {})


def test_does_not_keep_a_batch_whose_data_are_ambiguous() -> None:
    """The remainder is stored with the first one: values of the others would outlive them."""
    result = build_remainder(b'{"texts": ["first", "sec\\u006fnd"]}', b"first", b"second")
    assert result["messages"] is None
    assert "cannot be told" in result["why"]


class Part(bytes):
    """Counts the bytes that are looked through."""

    searched = 0

    def find(self, wanted: Any, start: Any = 0, end: Any = None) -> int:
        Part.searched += len(self) - start
        assert Part.searched < 30_000_000, "the search goes on and on"
        return super().find(wanted, start, end)


@pytest.mark.parametrize("of_grpc", [False, True])
def test_a_request_made_to_be_searched_for_ever_is_not(
    of_grpc: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of data, of which each is looked for in all that is behind it."""
    monkeypatch.setattr(Part, "searched", 0)
    data = [b"<%d>" % number for number in range(1_000)]
    filling = b"x" * 250_000
    parts = [filling, *data[:500], *[b"x"] * 5_000] if of_grpc else [filling]
    size = sum(map(len, parts))
    body = Body(parts=[Part(part) for part in parts], size=size)
    assert build_remainder(b"", *data, transport="grpc", request=body)["messages"] is None
    assert Part.searched >= size


def test_thousands_of_data_are_found_in_one_pass() -> None:
    """In a form that is looked for last, of a body that could not be looked through for each."""
    texts = [f"text {number} \u00e9" for number in range(5_000)]
    body = json.dumps({"filling": "x" * 100_000, "inputs": texts}).encode()
    data = [text.encode() for text in texts]
    result = build_all_remainders(body, *data)
    assert rebuild(result, *data) == [body]
