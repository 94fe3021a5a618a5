import json
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.index import sidecars
from inference_store.index.accounting import PartitionId
from inference_store.index.long_text import after, encode, lower_bound, prefix_bounds, upper_bound
from inference_store.index.sidecars import without_request
from inference_store.index.unsettled import Record
from inference_store.inference.events import FIELDS
from inference_store.inference.layout import edited_key, segment_of, sidecar_key

AT = datetime(2026, 11, 1, 23, 59, tzinfo=UTC)
PARTITION = PartitionId("default", "events", 0, 3)


def make_record(payload: bytes, key: bytes | None = b"k") -> Record:
    return Record(PARTITION, 7, AT, key, payload, (("producer", "p"),))


@given(st.binary(max_size=40), st.none() | st.binary(max_size=40), st.none() | st.binary())
def test_every_byte_comes_back(event: bytes, metadata: bytes | None, key: bytes | None) -> None:
    contents = sidecars.contents_of(make_record(event, key), metadata)
    assert sidecars.decode(sidecars.encode(contents)) == contents


def test_another_object_is_no_sidecar(subtests: pytest.Subtests) -> None:
    for blob in (b"", b"[]", b"{}", b'{"sidecar": 2}', b'{"sidecar": 1}', b"\xff"):
        with subtests.test(blob=blob), pytest.raises(ValueError):
            sidecars.decode(blob)


def test_without_its_input_it_keeps_what_is_known_of_the_event() -> None:
    for as_text in (False, True):
        blob = {"metadata": [1.50], "request": {"prompt": "secret"}}
        event = {"model_id": "m", "ok": True, "prompt": "secret", "inputs": ["secret"]}
        event["metadata"] = json.dumps(blob) if as_text else blob
        record = make_record(json.dumps(event).encode())
        contents = sidecars.contents_of(record, json.dumps(blob).encode())
        rest = sidecars.without_input(contents, known=FIELDS)
        assert rest.input_deleted, as_text
        assert b"secret" not in sidecars.encode(rest), as_text
        event_left = json.loads(rest.event)
        assert event_left.keys() == {"model_id", "ok", "metadata"}, as_text
        assert json.loads(rest.metadata or b"") == {"metadata": [1.5]}, as_text
        assert sidecars.without_input(rest, known=FIELDS) == rest, as_text


@given(st.text(min_size=1, max_size=256))
def test_keys_of_the_stores_own_hold_any_model(model_id: str) -> None:
    model_id = model_id.encode("utf-8", "replace").decode()
    segment = segment_of(model_id)
    assert segment not in {"", ".", ".."}
    assert "/" not in segment
    assert len(segment.encode()) <= 200
    uid = uuid4()
    assert sidecar_key(model_id, AT, uid) == f"sidecars/{segment}/2026/11/01/23/{uid}"
    assert edited_key(model_id, uid) == f"metadata/{segment}/{uid}"


def test_long_models_have_segments_of_their_own() -> None:
    first, second = ("é" * 200 + end for end in "ab")
    assert segment_of(first) != segment_of(second)
    assert (segment_of("."), segment_of(".."), segment_of("a/b")) == ("%2E", "%2E%2E", "a%2Fb")


def test_deletes_only_the_request() -> None:
    blob = b'{"a": 1.50, "request": {"prompt": "secret"}, "b": ["\\ud800", 1e999]}'
    assert without_request(blob) == b'{"a": 1.50, "b": ["\\ud800", 1e999]}'
    # bytes that are not UTF-8 survive
    assert without_request(b'{"a": "\xff", "request": 1}') == b'{"a": "\\udcff"}'
    for other in (b"", b"not json", b"[1]", b'"request"', b'{"a": {"request": 1}}', b"\xff\xfe"):
        assert without_request(other) is None, other


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
