"""Unknown protocols: bytes in, bytes out."""

from datetime import UTC, datetime

import orjson
import pytest

from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols import PROTOCOLS, Call, Model, recognise_call

from .exchanged import make_exchange, read_by


def test_recognises_every_call_after_the_other_protocols() -> None:
    assert recognise_call(["raw"], "rest", "GET", "/anything") is not None
    assert recognise_call([], "rest", "GET", "/anything") is None
    assert recognise_call(["raw"], "grpc", "/a.B/C", "/a.B/C") is None
    call = recognise_call(["raw", "openai"], "rest", "POST", "/v1/completions")
    assert call is not None
    assert call.protocol.name == "openai"
    call = recognise_call(["raw", "openai"], "rest", "POST", "/v1/embeddings")
    assert call is not None
    assert call.protocol.name == "raw"


def test_json_is_kept_as_it_came() -> None:
    reading = read_by("raw", make_exchange("/classify", b"\x00\xff", b'{ "a": 1 }', sent=()))
    (inference,) = reading.inferences
    assert (inference.data, inference.data_content_type) == (b"\x00\xff", None)
    assert inference.response == b'{ "a": 1 }'
    assert reading.action == "POST /classify"


@pytest.mark.parametrize(("raw", "element"), [(b"hi", "hi"), (b"\xff", {"b64": "/w=="})])
def test_other_answers_are_one_output(raw: bytes, element: object) -> None:
    reading = read_by(
        "raw", make_exchange("/x", b"", raw, answered=[("content-type", "image/png")])
    )
    document = orjson.loads(reading.inferences[0].response or b"")
    assert document["outputs"][0]["data"] == [element]
    assert reading.standard == {"response_content_type": "image/png"}


def test_an_error_is_found() -> None:
    reading = read_by("raw", make_exchange("/x", b"", {"detail": "no"}, status=404))
    assert (reading.ok, reading.error) == (None, "no")


def test_messages_of_a_stream_are_elements() -> None:
    method = "/a.B/C"
    sample = Exchange(
        transport="grpc",
        method=method,
        path=method,
        request=Body(parts=[b"a", b"b"], size=2),
        response=Body(parts=[b"\xff", b"c"], size=9, whole=False),
        response_trailers=[("grpc-message", "too late")],
        grpc_code=4,
        received_at=datetime.now(UTC),
    )
    protocol = PROTOCOLS["raw-grpc"]
    reading = protocol.read(sample, Call(protocol, "infer"), Model())
    assert reading.inferences[0].data == b"ab"
    document = orjson.loads(reading.inferences[0].response or b"")
    assert document["outputs"][0]["data"] == [{"b64": "/w=="}, "c"]
    assert (reading.error, reading.action) == ("too late", method)
    assert reading.problem == "of the answer's 9 bytes only 2 are there"
