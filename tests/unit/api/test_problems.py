"""Answers to errors that no route names."""

import json

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from structlog.testing import capture_logs

from inference_store.api.problems import build_problem, find_refusal
from inference_store.inference.errors import ObjectStoreUnavailable, QueryTimeout
from inference_store.platform.metrics import REFUSED
from inference_store.query.deadline import OutOfTime, Overloaded


def test_distinguishes_overload_from_timeouts() -> None:
    for error, kind in (
        (PoolTimeout("QueuePool limit of size 10 overflow 0 reached"), "busy"),
        (Overloaded(), "busy"),
        (OutOfTime(), "query-timeout"),
        (OSError("Connection refused"), "unavailable"),
    ):
        answer = build_problem(find_refusal(error))
        body = json.loads(bytes(answer.body))
        assert (answer.status_code, body["type"]) == (503, f"/docs/errors#{kind}"), error
        assert int(answer.headers["Retry-After"]) > 0, error
        # narrowing a question that did not run does not help
        assert ("narrow" in body["detail"]) == (kind == "query-timeout"), error


def test_a_slow_look_up_gets_no_advice_to_narrow_its_window() -> None:
    error = DBAPIError("SELECT", {}, Exception("canceling statement due to statement timeout"))
    refused = find_refusal(error)
    assert isinstance(refused, QueryTimeout)
    assert ("again" in refused.detail, "narrow" in refused.detail) == (True, False)


def test_callers_are_not_told_where_the_object_store_is() -> None:
    words = "Error performing GET http://127.0.0.1:18800/opb/ledger/0000000009"
    with capture_logs() as lines:
        refused = find_refusal(ObjectStoreUnavailable(words))
    assert refused.detail.startswith("The object store is unavailable, or is not taking requests.")
    assert "127.0.0.1" not in refused.detail
    assert [line["error"] for line in lines] == [words]


def test_counts_callers_refused_for_load() -> None:
    busy = REFUSED.labels("busy")
    before = busy._value.get()
    build_problem(find_refusal(Overloaded()))
    assert busy._value.get() == before + 1
