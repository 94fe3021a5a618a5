"""Streams: both dialects, and whose answer is whose."""

import json
from typing import Any

import pytest

from inference_store.proxy.protocols.protocol import Model, Reading
from inference_store.proxy.protocols.v2_grpc.dialects import find_dialect
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


def list_answers(reading: Reading) -> list[list[str]]:
    """Return the data of the outputs of each inference."""
    documents = [json.loads(inference.response or b"{}") for inference in reading.inferences]
    return [
        [datum for output in document.get("outputs", []) for datum in output["data"]]
        for document in documents
    ]


@DIALECTS
def test_answers_belong_to_requests_by_id(answer: Any, dialect: str | None) -> None:
    answers = [answer("a", id="1"), answer("b", id="1"), answer("c", id="1")]
    result = read_stream([make_request(JPEG, id="1")], answers, model=Model(dialect=dialect))
    assert list_answers(result) == [["a", "b", "c"]]
    assert (result.request_id, result.response_id, result.problem) == ("1", "1", None)
    assert result.model == "digits"

    requests = [make_request(JPEG + name.encode(), id=name) for name in "123"]
    answers = [answer("a", id="2"), answer("b", id="1"), answer("c", id="2")]
    model = Model(dialect=dialect, task_type="OBJECT_DETECTION")
    result = read_stream(requests, answers, model=model)
    assert list_data(result) == [JPEG + b"1", JPEG + b"2", JPEG + b"3"]
    assert list_answers(result) == [["b"], ["a", "c"], []]
    assert [inference.ok for inference in result.inferences] == [None] * 3


SURPLUS = "1 answers of the stream belong to no request that ids or order tell"


def test_uses_the_order_if_ids_do_not_match() -> None:
    for case, request_ids, answered, expected, problem in (
        ("ids that repeat", "11", "1a 1b", "a b", None),
        ("no ids", "--", "-a -b", "a b", None),
        ("ids of the server's", "--", "7a 8b", "a b", None),
        ("an answer without", "12", "1a -b", "a b", None),
        ("an answer to nobody", "12", "1a 3b", "a b", None),
        ("one that is nameless", "1-", "-b 1a -c 1d", "ad bc", None),
        ("one between two that repeat", "121", "2b 1a 1c", "a b c", None),
        ("one that is not answered", "--", "-a", "a ", None),
        ("two that are not answered", "123", "3c", "  c", None),
        ("one too many, without ids", "--", "-a -b -c", "a bc", SURPLUS),
        ("one too many, to nobody", "12", "1a 2b 3c", "a bc", SURPLUS),
    ):
        names = [id_text.strip("-") for id_text in request_ids]
        data = [f"datum {number}".encode() for number in range(len(names))]
        requests = [make_request(*pair[:1], id=pair[1]) for pair in zip(data, names, strict=True)]
        answers = [make_response(text[1:], id=text[:1].strip("-")) for text in answered.split()]
        result = read_stream(requests, answers)
        assert ["".join(texts) for texts in list_answers(result)] == expected.split(" "), case
        assert [inference.request_id or "" for inference in result.inferences] == names, case
        assert list_data(result) == data, case
        ids_and_problem = (result.request_id, result.response_id, result.problem)
        assert ids_and_problem == (None, None, problem), case


@DIALECTS
def test_each_request_of_a_stream_is_one_inference(answer: Any, dialect: str | None) -> None:
    requests = [make_request(JPEG + b"1", JPEG + b"2", id=request_id) for request_id in "ab"]
    answers = [answer("first", "second", id=request_id) for request_id in "ab"]
    result = read_stream(requests, answers, model=Model(dialect=dialect))
    assert [inference.request_id for inference in result.inferences] == ["a", "b"]
    assert list_answers(result) == [["first", "second"]] * 2
    assert result.problem is None
    alone = read_stream(requests[:1], answers[:1], model=Model(dialect=dialect))
    assert len(alone.inferences) == 1


TWO_REQUESTS = [make_request(JPEG, id="1"), make_request(JPEG, id="2")]


def test_tritons_error_in_band() -> None:
    alone = read_stream(TWO_REQUESTS[:1], [StreamResponse(error_message="no such model")])
    assert (alone.ok, alone.error) == (False, "no such model")
    answers = [make_wrapped_answer("a", id="1"), make_wrapped_answer(id="2", error="too large")]
    result = read_stream(TWO_REQUESTS, answers)
    outcomes = [(inference.ok, inference.error) for inference in result.inferences]
    assert outcomes == [(None, None), (False, "too large")]
    assert (result.ok, result.error) == (None, None)


def test_requests_answered_before_a_failure_are_ok() -> None:
    result = read_stream(TWO_REQUESTS, [make_response("a", id="1")], grpc_code=14)
    assert [inference.ok for inference in result.inferences] == [True, None]


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


def test_flags_an_incomplete_stream() -> None:
    result = read_stream(TWO_REQUESTS, [make_response("a", id="1")], whole=False)
    assert list_answers(result) == [["a"], []]
    assert "the requests break off after 2" in (result.problem or "")


def test_a_message_that_cannot_be_read_is_named() -> None:
    result = read_stream([make_request(b"x"), b"\xff"], [make_response("a"), b"\xff"])
    expected = "request 1 is no ModelInferRequest; answer 1 is no ModelInferResponse"
    assert result.problem == expected
    assert list_answers(result) == [["a"], []]
    assert list_data(result) == [b"x", b"\xff"]


def test_an_empty_stream() -> None:
    assert len(read_stream([], []).inferences) == 1
