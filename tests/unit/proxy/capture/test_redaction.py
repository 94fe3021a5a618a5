"""Nothing that is to be taken out is found anywhere, whatever surrounds it."""

import gzip
from collections.abc import Callable
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from inference_store.proxy.capture.redaction import Redactor
from inference_store.proxy.exchange import Body, header
from inference_store.proxy.protocols.protocol import Inference, Reading
from inference_store.proxy.rules import Redaction
from tests.exchanges import exchange

SECRET = "4711-secret"
ITEM = {"key": "user", "type": "string", "value": SECRET}
OTHER = {"key": "camera", "type": "string", "value": "hall"}
ENVELOPES = st.recursive(
    st.sampled_from([ITEM, OTHER, [ITEM, OTHER], {"user": SECRET}]),
    lambda inner: st.one_of(
        st.builds(lambda entries: {"standard_metadata": {}, "extended_metadata": entries}, inner),
        st.builds(lambda metadata: {"metadata": metadata}, inner),
        st.builds(lambda document: orjson.dumps(document).decode(), inner),
        st.lists(inner, max_size=2),
    ),
    max_leaves=3,
)


def make_redactor(*redactions: Redaction, key: str = "k") -> Redactor:
    return Redactor(redactions, key, limit=1 << 20)


@given(ENVELOPES, st.sampled_from(["drop", "hash"]))
def test_a_key_is_in_no_envelope(envelope: Any, how: Any) -> None:
    body = orjson.dumps({"inputs": [{"parameters": {"metadata": envelope}}], "camera": "hall"})
    rule = Redaction(what="metadata", name="user", how=how)
    redacted = make_redactor(rule).request(exchange(body))
    assert SECRET.encode() not in redacted.request.bytes
    # and a second time changes nothing
    assert make_redactor(rule).request(redacted).request.bytes == redacted.request.bytes


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "text": lambda inner: orjson.dumps(inner).decode(),
    "list": lambda inner: [inner],
    "metadata": lambda inner: {"metadata": inner},
    "section": lambda inner: {"extended_metadata": [inner]},
    "another key": lambda inner: [{"key": "trip", "type": "object", "value": inner}],
    "another name": lambda inner: {"standard_metadata": {"trip": inner}},
}


def test_finds_a_key_at_any_depth() -> None:
    """Or the value around it is not kept."""
    for transport in ("rest", "grpc"):
        for levels in (5, 9, 40):
            for kind in WRAPPED:
                envelope: Any = [ITEM, OTHER]
                for level in range(levels):
                    # a text in a text doubles its backslashes each time
                    envelope = WRAPPED["list" if kind == "text" and level >= 10 else kind](envelope)
                redaction = make_redactor(Redaction(what="metadata", name="user"))
                body = orjson.dumps({"inputs": [{"parameters": {"metadata": envelope}}]})
                if transport == "rest":
                    result = redaction.request(exchange(body)).request.bytes
                else:
                    inference = Inference(metadata=[orjson.dumps(envelope)])
                    sample = exchange(transport="grpc")
                    (redacted,) = redaction.reading(
                        Reading(inferences=[inference]), sample
                    ).inferences
                    result = b"".join(redacted.metadata)
                assert SECRET.encode() not in result, transport
                assert (b"hall" in result) is (levels < 10), transport


def test_metadata_that_are_not_named_stay_as_they_were() -> None:
    value = '{"a":  [1.50, "\\u00e9"]}'
    items = [{"key": "trip", "type": "object", "value": value}, {"key": "b", "value": "{user"}]
    inference = Inference(metadata=[orjson.dumps(items)])
    redaction = make_redactor(Redaction(what="metadata", name="user"))
    (redacted,) = redaction.reading(Reading(inferences=[inference]), exchange()).inferences
    assert orjson.loads(redacted.metadata[0]) == items


@given(st.binary(max_size=60), st.sampled_from(["", "3", "x", "999999999999999999999"]))
def test_nothing_is_raised_on_any_body(body: bytes, length: str) -> None:
    headers = [("inference-header-content-length", length)] if length else []
    rules = (Redaction(what="metadata", name="user"), Redaction(what="path", name="a[].b"))
    result = make_redactor(*rules).request(exchange(body, request_headers=headers))
    assert result.request.whole or result.request.size == len(body)


def test_the_binary_part_of_a_body_stays_behind_its_json() -> None:
    head = orjson.dumps({"inputs": [{"parameters": {"metadata": [ITEM]}}]})
    tail = bytes(range(256))
    headers = [("inference-header-content-length", str(len(head))), ("content-length", "1")]
    sample = exchange(head + tail, request_headers=headers)
    result = make_redactor(Redaction(what="metadata", name="user")).request(sample)
    length = int(header(result.request_headers, "inference-header-content-length") or "")
    assert orjson.loads(result.request.bytes[:length]) == {
        "inputs": [{"parameters": {"metadata": []}}]
    }
    assert result.request.bytes[length:] == tail
    assert header(result.request_headers, "content-length") == str(result.request.size)


def test_json_lines_are_redacted_line_by_line() -> None:
    line = orjson.dumps({"parameters": {"metadata": [ITEM, OTHER]}})
    result = make_redactor(Redaction(what="metadata", name="user")).request(
        exchange(line + b"\n" + line + b"\n")
    )
    lines = result.request.bytes.splitlines()
    expected = {"parameters": {"metadata": [OTHER]}}
    assert [orjson.loads(line) for line in lines] == [expected, expected]


def test_a_coded_body_of_several_members_is_redacted_whole() -> None:
    first, second = b'{"user": "4711-secret", ', b'"camera": "hall"}'
    coded = gzip.compress(first) + gzip.compress(second)
    sample = exchange(coded, request_headers=[("content-encoding", "gzip")])
    result = make_redactor(Redaction(what="path", name="user")).request(sample)
    assert result.request.bytes == b'{"camera": "hall"}'


def test_numbers_that_are_not_taken_out_keep_their_digits() -> None:
    body = b'{"user": 1, "x": 0.10000000000000000000000001, "y": 1e400}'
    result = make_redactor(Redaction(what="path", name="user")).request(exchange(body))
    assert result.request.bytes == b'{"x": 0.10000000000000000000000001, "y": 1e400}'


def test_over_grpc_a_path_takes_the_whole_input_along() -> None:
    inference = Inference(data=b"datum", metadata=[orjson.dumps([ITEM])])
    reading = Reading(inferences=[inference], standard={"arguments": {"ssn": 1}, "tokens": 2})
    sample = exchange(transport="grpc", request=Body(parts=(b"\0" * 9,), size=9))
    for name in ("inputs[].data", "inputs", "id", "inputs[].input"):
        redaction = make_redactor(Redaction(what="path", name=name))
        assert redaction.request(sample).request == sample.request
        (redacted,) = redaction.reading(reading, sample).inferences
        assert (redacted.data, redacted.metadata) == (None, ())
        assert redaction.reading(reading, sample).standard == {"tokens": 2}
        assert not redaction.keeps_body("grpc")
