"""chariot-v2: one datum, a line each, or the body itself; and the same without its metadata."""

import gzip
import json
from base64 import b64encode
from typing import Any

import orjson
import pytest

from inference_store.proxy.exchange import Headers
from inference_store.proxy.protocols import PROTOCOLS, recognised

from .exchanged import exchange, metadata, predictions, read

PIXEL = b"\x89PNG\r\n\x1a\n pixel"
BASE64 = b64encode(PIXEL).decode()
ITEMS = [{"key": "frame", "type": "int", "value": "7"}]
LINES = (("content-type", "application/jsonl"),)
OUTPUT = {"output": [{"label": "cat", "score": 0.5}]}


def asked(given: Any = BASE64, **parameters: Any) -> dict[str, Any]:
    return {"input": given, "parameters": parameters}


def lines(*documents: Any) -> bytes:
    return b"".join(orjson.dumps(each) + b"\n" for each in documents)


def stripped(body: bytes, headers: Headers) -> tuple[bytes, Headers] | None:
    strip = PROTOCOLS["chariot-v2"].strip
    assert strip is not None
    return strip(body, headers)


def test_which_calls_are_its_own() -> None:
    assert recognised(["chariot-v2"], "rest", "POST", "/infer") is not None
    assert recognised(["chariot-v2"], "rest", "GET", "/ready") is None
    assert recognised(["chariot-v2"], "rest", "POST", "/v2/models/m/infer") is None


@pytest.mark.parametrize("sent", [[("content-type", "application/json")], []])
def test_the_input_is_decoded_and_the_answer_kept_as_it_came(sent: Headers) -> None:
    answer = b'{ "output": [{"label": "cat", "score": 0.5}] }'
    parameters = {"action": "predict", "prompts": ["what?"], "metadata": json.dumps(ITEMS)}
    found = read(exchange("/infer", asked(**parameters), answer, sent=sent))
    (inference,) = found.inferences
    assert (inference.data, inference.response) == (PIXEL, answer)
    assert predictions(inference.response, "image_classification")[0].label == "cat"
    assert metadata(inference.metadata) == {"frame": "7"}
    assert (found.action, found.standard) == ("predict", {"prompts": ["what?"]})
    assert found.problem is None


def test_both_envelopes_of_metadata_are_read_and_no_number_rounded() -> None:
    raw = (
        b'{"input": "aGk=", "parameters": {"metadata": {"standard_metadata": {}, '
        b'"extended_metadata": [{"key": "a", "type": "float", "value": 1.10}]}}}'
    )
    (inference,) = read(exchange("/infer", raw, OUTPUT)).inferences
    assert b"1.10" in inference.metadata[0]
    assert metadata(inference.metadata) == {"a": "1.10"}


def test_a_text_that_is_not_base64_is_the_datum_itself() -> None:
    (inference,) = read(exchange("/infer", asked("good morning!"), OUTPUT)).inferences
    assert inference.data == b"good morning!"


def test_lines_are_an_inference_each() -> None:
    request = lines(asked(), asked("hello, you", metadata=ITEMS), asked("b25l"))
    answers = lines({"output": ["a"]}, {"error": "too dark"}, {"output": ["c"]})
    found = read(exchange("/infer", request, answers, sent=LINES, answered=LINES))
    assert [each.data for each in found.inferences] == [PIXEL, b"hello, you", b"one"]
    assert [each.ok for each in found.inferences] == [None, False, None]
    assert found.inferences[1].error == "too dark"
    assert found.inferences[2].response == b'{"output":["c"]}'
    assert metadata(found.inferences[1].metadata) == {"frame": "7"}
    assert (found.ok, found.problem) == (None, None)


def test_lines_without_an_answer_to_each_are_one_inference() -> None:
    request = lines(asked(), asked(metadata=ITEMS))
    found = read(exchange("/infer", request, lines(OUTPUT), sent=LINES, answered=LINES))
    (inference,) = found.inferences
    assert (inference.data, inference.data_content_type) == (request, "application/jsonl")
    assert metadata(inference.metadata) == {"frame": "7"}
    assert "1 answer lines to 2 lines" in (found.problem or "")


def test_a_failed_batch_is_about_every_line() -> None:
    went = exchange("/infer", lines(asked(), asked()), {"error": "busy"}, sent=LINES, status=503)
    found = read(went)
    assert len(found.inferences) == 2
    assert {each.response for each in found.inferences} == {b'{"error":"busy"}'}
    assert (found.ok, found.error) == (None, "busy")


def test_a_line_that_is_not_json_is_a_datum_and_said() -> None:
    request = lines(asked()) + b"oops\n"
    found = read(exchange("/infer", request, lines(OUTPUT, OUTPUT), sent=LINES, answered=LINES))
    assert [each.data for each in found.inferences] == [PIXEL, b"oops"]
    assert "line 2 is not JSON" in (found.problem or "")


def test_any_other_body_is_the_datum_and_its_parameters_a_header() -> None:
    parameters = json.dumps({"action": "predict", "metadata": json.dumps(ITEMS)})
    sent = [("content-type", "image/png"), ("chariot-inference-parameters", parameters)]
    found = read(exchange("/infer", PIXEL, OUTPUT, sent=sent))
    (inference,) = found.inferences
    assert (inference.data, inference.data_content_type) == (PIXEL, "image/png")
    assert metadata(inference.metadata) == {"frame": "7"}
    assert found.action == "predict"


def test_a_header_that_is_not_json_is_said() -> None:
    sent = [("content-type", "image/png"), ("chariot-inference-parameters", "{")]
    found = read(exchange("/infer", PIXEL, OUTPUT, sent=sent))
    assert found.inferences[0].data == PIXEL
    assert "the header chariot-inference-parameters is not JSON" in (found.problem or "")


@pytest.mark.parametrize("raw", [b"", b"{", b"{}", b"[1]", b'{"input": null}'])
def test_a_request_that_cannot_be_read_is_kept_whole(raw: bytes) -> None:
    found = read(exchange("/infer", raw, OUTPUT))
    assert found.inferences[0].data == raw
    assert found.problem


def test_an_error_in_band_is_a_failure() -> None:
    found = read(exchange("/infer", asked(), {"error": "no model"}))
    assert (found.ok, found.error) == (False, "no model")


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            b'{"input": "aGk=", "parameters": {"a": 1.10, "metadata": "[]", "b" : 2}}',
            b'{"input": "aGk=", "parameters": {"a": 1.10, "b" : 2}}',
        ),
        (b'{"parameters":{"metadata":[{}]}, "input":"aGk="}', b'{"parameters":{}, "input":"aGk="}'),
    ],
)
def test_metadata_is_taken_out_and_the_rest_untouched(body: bytes, left: bytes) -> None:
    sent = [("Content-Type", "application/json"), ("content-length", str(len(body)))]
    found = stripped(body, [(name.lower(), value) for name, value in sent])
    assert found is not None
    assert found[0] == left
    assert dict(found[1]) == {"content-type": "application/json", "content-length": str(len(left))}


def test_metadata_is_taken_out_of_every_line() -> None:
    body = lines(asked(metadata=ITEMS), asked(x=1), asked(metadata="[]"))
    found = stripped(body, LINES)
    assert found is not None
    assert [json.loads(line) for line in found[0].splitlines()] == [asked(), asked(x=1), asked()]


def test_a_compressed_body_is_compressed_again() -> None:
    headers = [("content-encoding", "gzip"), ("content-length", "1")]
    found = stripped(gzip.compress(orjson.dumps(asked(metadata=ITEMS))), headers)
    assert found is not None
    assert json.loads(gzip.decompress(found[0])) == asked()
    assert dict(found[1])["content-length"] == str(len(found[0]))


def test_metadata_is_taken_out_of_the_header() -> None:
    headers = [
        ("content-type", "image/png"),
        (
            "chariot-inference-parameters",
            '{"metadata": "[]", "action": "é"}'.encode().decode("latin-1"),
        ),
    ]
    found = stripped(PIXEL, headers)
    assert found is not None
    assert found[0] == PIXEL
    assert (
        dict(found[1])["chariot-inference-parameters"].encode("latin-1").decode()
        == '{"action": "é"}'
    )


@pytest.mark.parametrize(
    "body", [orjson.dumps(asked(x=1)), b"{", b"", b"[1]", b'{"parameters": 3}']
)
def test_without_metadata_nothing_is_rewritten(body: bytes) -> None:
    assert stripped(body, [("content-type", "application/json")]) is None
    assert stripped(body, [("content-type", "image/png")]) is None
    assert stripped(body, [("content-encoding", "br")]) is None


def test_very_many_lines_are_one_inference() -> None:
    request, answers = lines(*[asked("YQ==")] * 1025), lines(*[OUTPUT] * 1025)
    found = read(exchange("/infer", request, answers, sent=LINES, answered=LINES))
    assert len(found.inferences) == 1
    assert "1025 lines, over 1024" in (found.problem or "")
