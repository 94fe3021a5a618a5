"""Streams: both dialects, and whose answer is whose."""

import json
from typing import Any

import pytest

from inference_store.proxy.protocols.protocol import Model, Reading
from inference_store.proxy.protocols.v2_grpc import find_dialect
from tests.unit.proxy.protocols.exchanged import list_data
from tests.unit.proxy.protocols.v2_grpc.calls import (
    JPEG,
    STREAM,
    Response,
    StreamResponse,
    make_request,
    make_response,
    read_exchange,
)


def make_wrapped_answer(*texts: str, error: str = "", **members: Any) -> Any:
    """Make Triton's answer; MLServer's is `make_response`."""
    return StreamResponse(error_message=error, infer_response=make_response(*texts, **members))


DIALECTS = pytest.mark.parametrize(
    ("answer", "dialect"),
    [
        (make_response, "mlserver"),
        (make_response, None),
        (make_wrapped_answer, "triton"),
        (make_wrapped_answer, None),
    ],
)


def read_stream(requests: list[Any], responses: list[Any], **more: Any) -> Reading:
    return read_exchange(requests, responses, path=STREAM, **more)


def list_answers(reading: Reading) -> list[str]:
    (inference,) = reading.inferences
    outputs = json.loads(inference.response or b"{}").get("outputs", [])
    return [datum for output in outputs for datum in output["data"]]


@DIALECTS
def test_a_request_and_its_answers_are_one_inference(answer: Any, dialect: str | None) -> None:
    answers = [answer("a", id="1"), answer("b", "c", id="1")]
    request = make_request(JPEG + b"1", JPEG + b"2", id="1")
    result = read_stream([request], answers, model=Model(dialect=dialect))
    assert list_answers(result) == ["a", "b", "c"]
    assert (result.request_id, result.response_id, result.problem) == ("1", "1", None)
    assert result.model == "digits"
    vision = Model(dialect=dialect, task_type="OBJECT_DETECTION")
    assert list_data(read_stream([make_request(JPEG)], answers, model=vision)) == [JPEG]


def test_answers_that_may_be_another_requests_are_flagged() -> None:
    request, answer = make_request(JPEG, id="2"), make_response("a", id="1")
    result = read_stream([request], [answer], in_doubt=True)
    assert list_answers(result) == ["a"]
    assert (result.request_id, result.response_id) == ("2", None)
    assert result.problem is not None
    assert result.problem.reasons == (("response", "not_divided"),)


def test_tritons_error_in_band() -> None:
    result = read_stream([make_request(JPEG)], [StreamResponse(error_message="no such model")])
    assert (result.ok, result.error) == (False, "no such model")


def test_recognises_the_dialect_by_the_shape_of_an_answer() -> None:
    for answer, dialect in (
        (make_response("a"), "mlserver"),
        (Response(model_name="m", model_version="1"), "mlserver"),
        (Response(model_name="m", model_version="v0.1.3"), "mlserver"),
        (Response(id="7"), "mlserver"),
        (make_wrapped_answer("a"), "triton"),
        (make_wrapped_answer(error="why"), "triton"),
        (StreamResponse(error_message="why"), "triton"),
        (StreamResponse(infer_response=Response(id="\x01" * 200)), "triton"),
    ):
        assert find_dialect([b"", b"\xff", answer.SerializeToString()]) == dialect


def test_the_configured_dialect_wins() -> None:
    answer = StreamResponse(error_message="digits").SerializeToString()
    assert read_stream([make_request(b"x")], [answer], model=Model(dialect="mlserver")).ok is None
    assert read_stream([make_request(b"x")], [answer], model=Model(dialect="triton")).ok is False


def test_flags_incomplete_answers() -> None:
    result = read_stream([make_request(b"x")], [make_response("a")], whole=False)
    assert list_answers(result) == ["a"]
    assert "of the answer's" in (result.problem or "")


def test_a_message_that_cannot_be_read_is_named() -> None:
    result = read_stream([b"\xff"], [make_response("a"), b"\xff"])
    expected = "the request is no ModelInferRequest; answer 1 is no ModelInferResponse"
    assert result.problem == expected
    assert list_answers(result) == ["a"]
    assert list_data(result) == [b"\xff"]


def test_an_answer_without_a_request() -> None:
    assert list_answers(read_stream([], [make_response("a")])) == ["a"]
    assert len(read_stream([], []).inferences) == 1
