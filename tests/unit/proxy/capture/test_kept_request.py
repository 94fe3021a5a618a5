"""With the data blobs, the request again: whatever the bytes are."""

import base64
import gzip
import json
import time
import zlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.proxy.capture.kept_request import MOST_BYTES, kept_requests, rebuilt
from inference_store.proxy.exchange import Body
from tests.exchanges import exchange


def all_kept(body: bytes, *data: bytes | None, **changes: Any) -> list[dict[str, Any]]:
    """With each inference."""
    made = exchange(body, **changes)
    requests = kept_requests(made, data, [()] * len(data), (), limit=1 << 24)
    # as they are read back from blobs
    found: list[dict[str, Any]] = orjson.loads(orjson.dumps(requests))
    return found


def kept(body: bytes, *data: bytes | None, **changes: Any) -> dict[str, Any]:
    """With the first inference."""
    return all_kept(body, *data, **changes)[0]


def again(requests: list[dict[str, Any]], *data: bytes) -> list[bytes]:
    own = {index: each["parts"] for index, each in enumerate(requests) if "parts" in each}
    return rebuilt(requests[0], dict(enumerate(data)), own)


@given(
    st.lists(st.binary(max_size=40), max_size=5),
    st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=4),
)
def test_any_body_comes_back(rest: list[bytes], data: list[bytes]) -> None:
    pieces = [*rest, *data, *(base64.b64encode(each) for each in data)]
    body = b"".join(pieces)
    assert b"".join(again(all_kept(body, *data), *data)) == body


@given(st.text(min_size=1, max_size=40), st.booleans())
def test_any_text_in_json_comes_back(text: str, strict: bool) -> None:
    body = orjson.dumps({"text": text}) if strict else b'{"text": "%s"}' % text.encode()
    found = kept(body, text.encode())
    if found["messages"] is not None:
        assert rebuilt(found, {0: text.encode()}) == [body]
    else:  # orjson and json escape a few control characters each in its own way
        assert any(character < " " or character == "\x7f" for character in text)


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=4))
def test_messages_of_grpc_come_back_one_by_one(messages: list[bytes]) -> None:
    body = Body(parts=messages, size=sum(map(len, messages)))
    found = kept(b"", messages[0], transport="grpc", request=body)
    assert rebuilt(found, {0: messages[0]}) == messages


def test_a_body_of_several_codings_and_members_comes_back() -> None:
    """As the protocols read it, so is it kept."""
    members = zlib.compress(gzip.compress(b'{"text": ') + gzip.compress(b'"hello"}'))
    found = kept(members, b"hello", request_headers=[("content-encoding", "gzip, deflate")])
    assert rebuilt(found, {0: b"hello"}) == [b'{"text": "hello"}']


def test_a_datum_is_not_in_what_is_kept() -> None:
    image = bytes(range(256)) * 4
    body = orjson.dumps({"a": base64.b64encode(image).decode(), "b": 1})
    assert kept(body, image)["messages"] == [['{"a":"', {"data": 0, "as": "base64"}, '==","b":1}']]


def test_one_datum_for_two_inferences_stands_once() -> None:
    body = b'{"text": "hello"}'
    assert again(all_kept(body, b"hello", b"hello"), b"hello", b"hello") == [body]


def test_data_out_of_order_are_found() -> None:
    body = b'{"a": "second", "b": "first"}'
    assert again(all_kept(body, b"first", b"second"), b"first", b"second") == [body]


@pytest.mark.parametrize(
    ("body", "data", "changes", "why"),
    [
        (b"x" * (MOST_BYTES + 1), None, {}, "over"),
        (b"no gzip", None, {"request_headers": [("content-encoding", "gzip")]}, "coding"),
        (b"", None, {"request": Body(size=7, whole=False)}, "over a cap"),
    ],
)
def test_what_is_not_kept_says_why(
    body: bytes, data: bytes | None, changes: dict[str, Any], why: str
) -> None:
    found = kept(body, data, **changes)
    assert found["messages"] is None
    assert why in found["why"]
    with pytest.raises(ValueError, match="not kept"):
        rebuilt(found, {})


def test_a_batch_whose_data_cannot_be_told_is_not_kept() -> None:
    """The rest stands with the first one: what it held of the others would outlive them."""
    found = kept(b'{"texts": ["first", "sec\\u006fnd"]}', b"first", b"second")
    assert found["messages"] is None
    assert "cannot be told" in found["why"]


@pytest.mark.parametrize("of_grpc", [False, True])
def test_a_request_made_to_be_searched_for_ever_is_not(of_grpc: bool) -> None:
    """Thousands of data, of which each is looked for in all that is behind it."""
    data = [b"<%d>" % number for number in range(4_000)]
    filling = b"x" * 1_000_000
    parts = [filling, *data[:2_000], *[b"x"] * 20_000] if of_grpc else [filling]
    body = Body(parts=parts, size=sum(map(len, parts)))
    began = time.process_time()
    found = kept(b"", *data, transport="grpc", request=body)
    assert time.process_time() - began < 2
    assert found["messages"] is None


def test_thousands_of_data_are_found_in_one_pass() -> None:
    """In a form that is looked for last, of a body that could not be looked through for each."""
    texts = [f"text {number} \u00e9" for number in range(5_000)]
    body = json.dumps({"filling": "x" * 100_000, "inputs": texts}).encode()
    data = [text.encode() for text in texts]
    began = time.process_time()
    found = all_kept(body, *data)
    assert time.process_time() - began < 2
    assert again(found, *data) == [body]
