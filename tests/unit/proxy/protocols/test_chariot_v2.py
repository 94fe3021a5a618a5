"""chariot-v2: one datum, a line each, or the body itself; and the same without its metadata."""

import gzip
import json
from base64 import b64encode
from typing import Any

import orjson

from inference_store.proxy.exchange import Headers
from inference_store.proxy.protocols import PROTOCOLS, Reading

from .exchanged import JSON, PIXEL, list_data, list_predictions, read_call, read_envelope

BASE64 = b64encode(PIXEL).decode()
ITEMS = [{"key": "frame", "type": "int", "value": "7"}]
LINES: Headers = (("content-type", "application/jsonl"),)
OUTPUT = {"output": [{"label": "cat", "score": 0.5}]}


def make_request(input_value: Any = BASE64, **parameters: Any) -> dict[str, Any]:
    return {"input": input_value, "parameters": parameters}


def make_lines(*documents: Any) -> bytes:
    return b"".join(orjson.dumps(document) + b"\n" for document in documents)


def read_lines(request: bytes, *answers: Any) -> Reading:
    return read_call("/infer", request, make_lines(*answers), sent=LINES, answered=LINES)


def strip_metadata(body: bytes, headers: Headers) -> tuple[bytes, dict[str, str]] | None:
    strip = PROTOCOLS["chariot-v2"].strip
    assert strip is not None
    stripped = strip(body, headers)
    return stripped and (stripped[0], dict(stripped[1]))


def test_the_input_is_decoded_and_the_answer_kept_as_it_came() -> None:
    answer = b'{ "output": [{"label": "cat", "score": 0.5}] }'
    request = make_request(action="predict", prompts=["what?"], metadata=json.dumps(ITEMS))
    for sent in (JSON, ()):
        reading = read_call("/infer", request, answer, sent=sent)
        (inference,) = reading.inferences
        assert (inference.data, inference.response) == (PIXEL, answer)
        assert list_predictions(inference.response, "image_classification")[0].label == "cat"
        assert read_envelope(inference.metadata) == {"frame": "7"}
        assert (reading.action, reading.standard) == ("predict", {"prompts": ["what?"]})
        assert reading.problem is None


def test_both_envelopes_of_metadata_are_read_and_no_number_rounded() -> None:
    raw = (
        b'{"input": "aGk=", "parameters": {"metadata": {"standard_metadata": {}, '
        b'"extended_metadata": [{"key": "a", "type": "float", "value": 1.10}]}}}'
    )
    (inference,) = read_call("/infer", raw, OUTPUT).inferences
    assert b"1.10" in inference.metadata[0]
    assert read_envelope(inference.metadata) == {"a": "1.10"}


def test_a_text_that_is_not_base64_is_the_datum_itself() -> None:
    reading = read_call("/infer", make_request("good morning!"), OUTPUT)
    assert list_data(reading) == [b"good morning!"]


def test_lines_are_an_inference_each() -> None:
    second = make_request("hello, you", metadata=ITEMS)
    request = make_lines(make_request(), second, make_request("b25l"))
    reading = read_lines(request, {"output": ["a"]}, {"error": "too dark"}, {"output": ["c"]})
    assert list_data(reading) == [PIXEL, b"hello, you", b"one"]
    assert [inference.error for inference in reading.inferences] == [None, "too dark", None]
    assert reading.inferences[2].response == b'{"output":["c"]}'
    assert read_envelope(reading.inferences[1].metadata) == {"frame": "7"}
    assert (reading.error, reading.problem) == (None, None)


def test_lines_without_an_answer_to_each_are_one_inference() -> None:
    request = make_lines(make_request(), make_request(metadata=ITEMS))
    reading = read_lines(request, OUTPUT)
    (inference,) = reading.inferences
    assert (inference.data, inference.data_content_type) == (request, "application/jsonl")
    assert read_envelope(inference.metadata) == {"frame": "7"}
    assert "1 answer lines to 2 lines" in (reading.problem or "")


def test_a_failed_batch_is_about_every_line() -> None:
    error = b'{"error":"busy"}'
    request = make_lines(make_request(), make_request())
    reading = read_call("/infer", request, error, sent=LINES, status=503)
    assert [inference.response for inference in reading.inferences] == [error, error]
    assert reading.error == "busy"


def test_reports_a_line_that_is_not_json_and_keeps_it_as_datum() -> None:
    reading = read_lines(make_lines(make_request()) + b"oops\n", OUTPUT, OUTPUT)
    assert list_data(reading) == [PIXEL, b"oops"]
    assert "line 2 is not JSON" in (reading.problem or "")


def test_any_other_body_is_the_datum_and_its_parameters_a_header() -> None:
    parameters = json.dumps({"action": "predict", "metadata": json.dumps(ITEMS)})
    sent = [("content-type", "image/png"), ("chariot-inference-parameters", parameters)]
    reading = read_call("/infer", PIXEL, OUTPUT, sent=sent)
    (inference,) = reading.inferences
    assert (inference.data, inference.data_content_type) == (PIXEL, "image/png")
    assert read_envelope(inference.metadata) == {"frame": "7"}
    assert reading.action == "predict"


def test_reports_a_header_that_is_not_json() -> None:
    for text, problem in (("{", "the header chariot-inference-parameters is not JSON"), (" ", "")):
        sent = [("content-type", "image/png"), ("chariot-inference-parameters", text)]
        reading = read_call("/infer", PIXEL, OUTPUT, sent=sent)
        assert list_data(reading) == [PIXEL]
        assert problem in (reading.problem or "")
        assert bool(reading.problem) is bool(problem)


def test_an_error_in_band_is_a_failure() -> None:
    reading = read_call("/infer", make_request(), {"error": "no model"})
    assert reading.error == "no model"


def test_metadata_is_taken_out_of_every_line() -> None:
    body = make_lines(make_request(metadata=ITEMS), make_request(x=1), make_request(metadata="[]"))
    remaining = strip_metadata(body, LINES)
    assert remaining is not None
    lines = [json.loads(line) for line in remaining[0].splitlines()]
    assert lines == [make_request(), make_request(x=1), make_request()]


def test_a_compressed_body_is_compressed_again() -> None:
    headers = [("content-encoding", "gzip"), ("content-length", "1")]
    remaining = strip_metadata(gzip.compress(orjson.dumps(make_request(metadata=ITEMS))), headers)
    assert remaining is not None
    assert json.loads(gzip.decompress(remaining[0])) == make_request()
    assert remaining[1]["content-length"] == str(len(remaining[0]))


def test_metadata_is_taken_out_of_the_header() -> None:
    parameters = '{"metadata": "[]", "action": "é"}'.encode().decode("latin-1")
    sent = [("content-type", "image/png"), ("chariot-inference-parameters", parameters)]
    remaining = strip_metadata(PIXEL, sent)
    assert remaining is not None
    assert remaining[0] == PIXEL
    kept = remaining[1]["chariot-inference-parameters"]
    assert kept.encode("latin-1").decode() == '{"action": "é"}'


def test_without_metadata_nothing_is_rewritten() -> None:
    for body in (orjson.dumps(make_request(x=1)), b"{", b"", b"[1]", b'{"parameters": 3}'):
        for header in (*JSON, ("content-type", "image/png"), ("content-encoding", "br")):
            assert strip_metadata(body, [header]) is None, (body, header)
