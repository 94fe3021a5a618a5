"""Streams: both dialects, and whose answer is whose."""

import json
from typing import Any

import pytest

from inference_store.proxy.protocols.protocol import Inference, Model, Reading
from inference_store.proxy.protocols.v2_grpc.dialects import find_dialect
from tests.unit.proxy.protocols.v2_grpc.calls import (
    JPEG,
    STREAM,
    Response,
    StreamResponse,
    make_request,
    make_response,
    read_exchange,
)


def make_plain_answer(*texts: str, **members: Any) -> Any:
    """Make MLServer's answer."""
    return make_response(*texts, **members)


def make_wrapped_answer(*texts: str, error: str = "", **members: Any) -> Any:
    """Make Triton's answer."""
    return StreamResponse(error_message=error, infer_response=make_response(*texts, **members))


DIALECTS = pytest.mark.parametrize(
    ("answer", "dialect"),
    [
        (make_plain_answer, "mlserver"),
        (make_plain_answer, None),
        (make_wrapped_answer, "triton"),
        (make_wrapped_answer, None),
    ],
)


def read_stream(requests: list[Any], responses: list[Any], **more: Any) -> Reading:
    return read_exchange(requests, responses, path=STREAM, **more)


def list_data(inference: Inference) -> list[str]:
    outputs = json.loads(inference.response or b"{}").get("outputs", [])
    return [datum for output in outputs for datum in output["data"]]


@DIALECTS
def test_one_request_has_all_answers_in_order(answer: Any, dialect: str | None) -> None:
    answers = [answer("a", id="1"), answer("b", id="1"), answer("c", id="1")]
    result = read_stream([make_request(JPEG, id="1")], answers, model=Model(dialect=dialect))
    assert [list_data(inference) for inference in result.inferences] == [["a", "b", "c"]]
    assert (result.request_id, result.response_id, result.problem) == ("1", "1", None)
    assert result.model == "digits"


@DIALECTS
def test_requests_have_their_answers_by_id(answer: Any, dialect: str | None) -> None:
    requests = [
        make_request(JPEG + id_bytes, id=id_bytes.decode()) for id_bytes in (b"1", b"2", b"3")
    ]
    answers = [answer("a", id="2"), answer("b", id="1"), answer("c", id="2")]
    model = Model(dialect=dialect, task_type="OBJECT_DETECTION")
    result = read_stream(requests, answers, model=model)
    assert [inference.data for inference in result.inferences] == [
        JPEG + b"1",
        JPEG + b"2",
        JPEG + b"3",
    ]
    assert [list_data(inference) for inference in result.inferences] == [["b"], ["a", "c"], []]
    assert [inference.ok for inference in result.inferences] == [None] * 3


@pytest.mark.parametrize(
    ("request_ids", "answered", "expected"),
    [
        pytest.param("11", ["1a", "1b"], "a b", id="ids that repeat"),
        pytest.param("--", ["-a", "-b"], "a b", id="no ids"),
        pytest.param("--", ["7a", "8b"], "a b", id="ids of the server's"),
        pytest.param("12", ["1a", "-b"], "a b", id="an answer without"),
        pytest.param("12", ["1a", "3b"], "a b", id="an answer to nobody"),
        pytest.param("1-", ["-b", "1a", "-c", "1d"], "ad bc", id="one that is nameless"),
        pytest.param("121", ["2b", "1a", "1c"], "a b c", id="one between two that repeat"),
        pytest.param("--", ["-a"], "a ", id="one that is not answered"),
        pytest.param("123", ["3c"], "  c", id="two that are not answered"),
    ],
)
def test_uses_the_order_if_ids_do_not_match(
    request_ids: str, answered: list[str], expected: str
) -> None:
    names = [id_text.strip("-") for id_text in request_ids]
    requests = [make_request(f"datum {n}".encode(), id=name) for n, name in enumerate(names)]
    result = read_stream(
        requests, [make_plain_answer(text[1:], id=text[:1].strip("-")) for text in answered]
    )
    assert ["".join(list_data(inference)) for inference in result.inferences] == expected.split(" ")
    assert [inference.request_id or "" for inference in result.inferences] == names
    assert [inference.data for inference in result.inferences] == [
        f"datum {n}".encode() for n in range(len(names))
    ]
    assert (result.request_id, result.response_id, result.problem) == (None, None, None)


@pytest.mark.parametrize(
    ("request_ids", "answered", "expected"),
    [
        pytest.param("--", ["-a", "-b", "-c"], ["a", "bc"], id="no ids"),
        pytest.param("12", ["1a", "2b", "3c"], ["a", "bc"], id="an answer to nobody"),
    ],
)
def test_keeps_surplus_answers_with_the_last_request(
    request_ids: str, answered: list[str], expected: list[str]
) -> None:
    requests = [make_request(b"x", id=name.strip("-")) for name in request_ids]
    result = read_stream(
        requests, [make_plain_answer(text[1:], id=text[:1].strip("-")) for text in answered]
    )
    assert ["".join(list_data(inference)) for inference in result.inferences] == expected
    assert result.problem == "1 answers of the stream belong to no request that ids or order tell"


@DIALECTS
def test_each_request_of_a_stream_is_one_inference(answer: Any, dialect: str | None) -> None:
    requests = [make_request(JPEG + b"1", JPEG + b"2", id=request_id) for request_id in "ab"]
    answers = [answer("first", "second", id=request_id) for request_id in "ab"]
    result = read_stream(requests, answers, model=Model(dialect=dialect))
    assert [inference.request_id for inference in result.inferences] == ["a", "b"]
    assert [list_data(inference) for inference in result.inferences] == [["first", "second"]] * 2
    assert result.problem is None
    alone = read_stream(requests[:1], answers[:1], model=Model(dialect=dialect))
    assert len(alone.inferences) == 1


def test_tritons_error_in_band() -> None:
    alone = read_stream(
        [make_request(JPEG, id="1")], [StreamResponse(error_message="no such model")]
    )
    assert (alone.ok, alone.error) == (False, "no such model")
    requests = [make_request(JPEG, id="1"), make_request(JPEG, id="2")]
    result = read_stream(
        requests, [make_wrapped_answer("a", id="1"), make_wrapped_answer(id="2", error="too large")]
    )
    assert [(inference.ok, inference.error) for inference in result.inferences] == [
        (None, None),
        (False, "too large"),
    ]
    assert (result.ok, result.error) == (None, None)


def test_requests_answered_before_a_failure_are_ok() -> None:
    requests = [make_request(JPEG, id="1"), make_request(JPEG, id="2")]
    result = read_stream(requests, [make_plain_answer("a", id="1")], grpc_code=14)
    assert [inference.ok for inference in result.inferences] == [True, None]


@pytest.mark.parametrize(
    ("answer", "dialect"),
    [
        (make_plain_answer("a"), "mlserver"),
        (Response(model_name="m", model_version="1"), "mlserver"),
        (Response(model_name="m", model_version="v0.1.3"), "mlserver"),
        (Response(id="7"), "mlserver"),
        (make_wrapped_answer("a"), "triton"),
        (make_wrapped_answer(error="why"), "triton"),
        (StreamResponse(error_message="why"), "triton"),
        (StreamResponse(infer_response=Response(id="\x01" * 200)), "triton"),
    ],
)
def test_recognises_the_dialect_by_the_shape_of_an_answer(answer: Any, dialect: str) -> None:
    assert find_dialect([b"", b"\xff", answer.SerializeToString()]) == dialect


def test_the_configured_dialect_wins() -> None:
    answer = StreamResponse(error_message="digits").SerializeToString()
    assert read_stream([make_request(b"x")], [answer], model=Model(dialect="mlserver")).ok is None
    assert read_stream([make_request(b"x")], [answer], model=Model(dialect="triton")).ok is False


def test_flags_an_incomplete_stream() -> None:
    result = read_stream(
        [make_request(b"x", id="1"), make_request(b"y", id="2")],
        [make_plain_answer("a", id="1")],
        whole=False,
    )
    assert [list_data(inference) for inference in result.inferences] == [["a"], []]
    assert result.problem is not None
    assert "the requests break off after 2" in result.problem


def test_a_message_that_cannot_be_read_is_named() -> None:
    result = read_stream([make_request(b"x"), b"\xff"], [make_plain_answer("a"), b"\xff"])
    assert result.problem == (
        "request 1 is no ModelInferRequest; answer 1 is no ModelInferResponse"
    )
    assert [list_data(inference) for inference in result.inferences] == [["a"], []]
    assert result.inferences[1].data == b"\xff"


def test_an_empty_stream() -> None:
    assert len(read_stream([], []).inferences) == 1
