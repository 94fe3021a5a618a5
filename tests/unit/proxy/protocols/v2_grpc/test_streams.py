"""Streams: both dialects, and whose answer is whose."""

import json
from typing import Any

import pytest

from inference_store.proxy.protocols.protocol import Inference, Model, Reading
from inference_store.proxy.protocols.v2_grpc.dialects import dialect_of
from tests.unit.proxy.protocols.v2_grpc.calls import (
    JPEG,
    STREAM,
    Response,
    StreamResponse,
    reading,
    request,
    response,
)


def plain(*texts: str, **members: Any) -> Any:
    """MLServer's answer."""
    return response(*texts, **members)


def wrapped(*texts: str, error: str = "", **members: Any) -> Any:
    """Triton's answer."""
    return StreamResponse(error_message=error, infer_response=response(*texts, **members))


DIALECTS = pytest.mark.parametrize(
    ("answer", "dialect"),
    [(plain, "mlserver"), (plain, None), (wrapped, "triton"), (wrapped, None)],
)


def stream(requests: list[Any], responses: list[Any], **more: Any) -> Reading:
    return reading(requests, responses, path=STREAM, **more)


def data_of(inference: Inference) -> list[str]:
    outputs = json.loads(inference.response or b"{}").get("outputs", [])
    return [each for output in outputs for each in output["data"]]


@DIALECTS
def test_one_request_has_all_answers_in_order(answer: Any, dialect: str | None) -> None:
    answers = [answer("a", id="1"), answer("b", id="1"), answer("c", id="1")]
    found = stream([request(JPEG, id="1")], answers, model=Model(dialect=dialect))
    assert [data_of(each) for each in found.inferences] == [["a", "b", "c"]]
    assert (found.request_id, found.response_id, found.problem) == ("1", "1", None)
    assert found.model == "digits"


@DIALECTS
def test_requests_have_their_answers_by_id(answer: Any, dialect: str | None) -> None:
    requests = [request(JPEG + each, id=each.decode()) for each in (b"1", b"2", b"3")]
    answers = [answer("a", id="2"), answer("b", id="1"), answer("c", id="2")]
    model = Model(dialect=dialect, task_type="OBJECT_DETECTION")
    found = stream(requests, answers, model=model)
    assert [each.data for each in found.inferences] == [JPEG + b"1", JPEG + b"2", JPEG + b"3"]
    assert [data_of(each) for each in found.inferences] == [["b"], ["a", "c"], []]
    assert [each.ok for each in found.inferences] == [None] * 3


@pytest.mark.parametrize(
    ("asked", "answered", "expected"),
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
def test_where_ids_do_not_tell_the_order_does(
    asked: str, answered: list[str], expected: str
) -> None:
    names = [each.strip("-") for each in asked]
    requests = [request(f"datum {n}".encode(), id=name) for n, name in enumerate(names)]
    found = stream(requests, [plain(each[1:], id=each[:1].strip("-")) for each in answered])
    assert ["".join(data_of(each)) for each in found.inferences] == expected.split(" ")
    assert [each.request_id or "" for each in found.inferences] == names
    assert [each.data for each in found.inferences] == [
        f"datum {n}".encode() for n in range(len(names))
    ]
    assert (found.request_id, found.response_id, found.problem) == (None, None, None)


@pytest.mark.parametrize(
    ("asked", "answered", "expected"),
    [
        pytest.param("--", ["-a", "-b", "-c"], ["a", "bc"], id="no ids"),
        pytest.param("12", ["1a", "2b", "3c"], ["a", "bc"], id="an answer to nobody"),
    ],
)
def test_answers_that_are_left_over_are_kept_with_the_last_and_named(
    asked: str, answered: list[str], expected: list[str]
) -> None:
    requests = [request(b"x", id=name.strip("-")) for name in asked]
    found = stream(requests, [plain(each[1:], id=each[:1].strip("-")) for each in answered])
    assert ["".join(data_of(each)) for each in found.inferences] == expected
    assert found.problem == "1 answers of the stream belong to no request that ids or order tell"


@DIALECTS
def test_a_request_of_a_stream_is_one_inference_whatever_it_holds(
    answer: Any, dialect: str | None
) -> None:
    requests = [request(JPEG + b"1", JPEG + b"2", id=each) for each in "ab"]
    answers = [answer("first", "second", id=each) for each in "ab"]
    found = stream(requests, answers, model=Model(dialect=dialect))
    assert [each.request_id for each in found.inferences] == ["a", "b"]
    assert [data_of(each) for each in found.inferences] == [["first", "second"]] * 2
    assert found.problem is None
    alone = stream(requests[:1], answers[:1], model=Model(dialect=dialect))
    assert len(alone.inferences) == 1


def test_tritons_error_in_band() -> None:
    alone = stream([request(JPEG, id="1")], [StreamResponse(error_message="no such model")])
    assert (alone.ok, alone.error) == (False, "no such model")
    requests = [request(JPEG, id="1"), request(JPEG, id="2")]
    found = stream(requests, [wrapped("a", id="1"), wrapped(id="2", error="too large")])
    assert [(each.ok, each.error) for each in found.inferences] == [
        (None, None),
        (False, "too large"),
    ]
    assert (found.ok, found.error) == (None, None)


def test_what_was_answered_before_the_call_failed_went_well() -> None:
    requests = [request(JPEG, id="1"), request(JPEG, id="2")]
    found = stream(requests, [plain("a", id="1")], grpc_code=14)
    assert [each.ok for each in found.inferences] == [True, None]


@pytest.mark.parametrize(
    ("answer", "dialect"),
    [
        (plain("a"), "mlserver"),
        (Response(model_name="m", model_version="1"), "mlserver"),
        (Response(model_name="m", model_version="v0.1.3"), "mlserver"),
        (Response(id="7"), "mlserver"),
        (wrapped("a"), "triton"),
        (wrapped(error="why"), "triton"),
        (StreamResponse(error_message="why"), "triton"),
        (StreamResponse(infer_response=Response(id="\x01" * 200)), "triton"),
    ],
)
def test_a_dialect_is_told_by_an_answers_shape(answer: Any, dialect: str) -> None:
    assert dialect_of([b"", b"\xff", answer.SerializeToString()]) == dialect


def test_the_configured_dialect_wins() -> None:
    answer = StreamResponse(error_message="digits").SerializeToString()
    assert stream([request(b"x")], [answer], model=Model(dialect="mlserver")).ok is None
    assert stream([request(b"x")], [answer], model=Model(dialect="triton")).ok is False


def test_a_stream_that_is_not_whole_says_so() -> None:
    found = stream(
        [request(b"x", id="1"), request(b"y", id="2")], [plain("a", id="1")], whole=False
    )
    assert [data_of(each) for each in found.inferences] == [["a"], []]
    assert found.problem is not None
    assert "the requests break off after 2" in found.problem


def test_a_message_that_cannot_be_read_is_named() -> None:
    found = stream([request(b"x"), b"\xff"], [plain("a"), b"\xff"])
    assert found.problem == ("request 1 is no ModelInferRequest; answer 1 is no ModelInferResponse")
    assert [data_of(each) for each in found.inferences] == [["a"], []]
    assert found.inferences[1].data == b"\xff"


def test_an_empty_stream() -> None:
    assert len(stream([], []).inferences) == 1
