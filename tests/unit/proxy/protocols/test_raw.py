"""Unknown protocols: bytes in, bytes out."""

from datetime import UTC, datetime

import orjson
import pytest

from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols import PROTOCOLS, Call, Model, recognised

from .exchanged import exchange, read_by


def test_every_call_is_taken_where_it_is_asked_for_and_by_others_first() -> None:
    assert recognised(["raw"], "rest", "GET", "/anything") is not None
    assert recognised([], "rest", "GET", "/anything") is None
    assert recognised(["raw"], "grpc", "/a.B/C", "/a.B/C") is None
    call = recognised(["raw", "openai"], "rest", "POST", "/v1/completions")
    assert call is not None
    assert call.protocol.name == "openai"
    call = recognised(["raw", "openai"], "rest", "POST", "/v1/embeddings")
    assert call is not None
    assert call.protocol.name == "raw"


def test_json_is_kept_as_it_came() -> None:
    found = read_by("raw", exchange("/classify", b"\x00\xff", b'{ "a": 1 }', sent=()))
    (inference,) = found.inferences
    assert (inference.data, inference.data_content_type) == (b"\x00\xff", None)
    assert inference.response == b'{ "a": 1 }'
    assert found.action == "POST /classify"


@pytest.mark.parametrize(("raw", "element"), [(b"hi", "hi"), (b"\xff", {"b64": "/w=="})])
def test_other_answers_are_one_output(raw: bytes, element: object) -> None:
    found = read_by("raw", exchange("/x", b"", raw, answered=[("content-type", "image/png")]))
    document = orjson.loads(found.inferences[0].response or b"")
    assert document["outputs"][0]["data"] == [element]
    assert found.standard == {"response_content_type": "image/png"}


def test_an_error_is_found() -> None:
    found = read_by("raw", exchange("/x", b"", {"detail": "no"}, status=404))
    assert (found.ok, found.error) == (None, "no")


def test_messages_of_a_stream_are_elements() -> None:
    method = "/a.B/C"
    went = Exchange(
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
    found = protocol.read(went, Call(protocol, "infer"), Model())
    assert found.inferences[0].data == b"ab"
    document = orjson.loads(found.inferences[0].response or b"")
    assert document["outputs"][0]["data"] == [{"b64": "/w=="}, "c"]
    assert (found.error, found.action) == ("too late", method)
    assert found.problem == "of the answer's 9 bytes only 2 are there"
