"""Unknown protocols: bytes in, bytes out."""

from dataclasses import replace

import orjson

from .exchanged import make_body, make_exchange, make_grpc_exchange, read_by


def test_json_is_kept_as_it_came() -> None:
    reading = read_by("raw", make_exchange("/classify", b"\x00\xff", b'{ "a": 1 }', sent=()))
    (inference,) = reading.inferences
    assert (inference.data, inference.data_content_type) == (b"\x00\xff", None)
    assert inference.response == b'{ "a": 1 }'
    assert reading.action == "POST /classify"


def test_other_answers_are_one_output() -> None:
    png = [("content-type", "image/png")]
    for raw, element in ((b"hi", "hi"), (b"\xff", {"b64": "/w=="})):
        reading = read_by("raw", make_exchange("/x", b"", raw, answered=png))
        document = orjson.loads(reading.inferences[0].response or b"")
        assert document["outputs"][0]["data"] == [element]
        assert reading.standard == {"response_content_type": "image/png"}


def test_an_error_is_found() -> None:
    reading = read_by("raw", make_exchange("/x", b"", {"detail": "no"}, status=404))
    assert (reading.ok, reading.error) == (None, "no")


def test_messages_of_a_stream_are_elements() -> None:
    sample = make_grpc_exchange("/a.B/C", [b"a", b"b"], [b"\xff", b"c"], code=4)
    cut_off = replace(make_body(b"", whole=False, size=9), parts=[b"\xff", b"c"])
    trailers = [("grpc-message", "too late")]
    reading = read_by("raw-grpc", replace(sample, response=cut_off, response_trailers=trailers))
    assert reading.inferences[0].data == b"ab"
    document = orjson.loads(reading.inferences[0].response or b"")
    assert document["outputs"][0]["data"] == [{"b64": "/w=="}, "c"]
    assert (reading.error, reading.action) == ("too late", "/a.B/C")
    assert reading.problem == "of the answer's 9 bytes only 2 are there"
