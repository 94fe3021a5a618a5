"""Bodies are read exactly, ids in paths decoded once."""

import asyncio
import json
import threading
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from structlog.testing import capture_logs

from inference_store.api.answer import build_problem, find_refusal
from inference_store.api.http import (
    MOST_ITEMS,
    ExactRequest,
    decode_segment,
    escape_segment,
    exact_json,
    read_in_thread,
)
from inference_store.inference.errors import ObjectStoreUnavailable, QueryTimeout, TooLarge
from inference_store.inference.layout import is_id
from inference_store.query.deadline import OutOfTime, Overloaded


def test_numbers_are_exact() -> None:
    numbers = exact_json(b'[0.1, 1e400, -0.0, 98765432109876543210, 7, "0.1"]')
    decimals = [Decimal("0.1"), Decimal("1e400"), Decimal("-0.0")]
    assert numbers == [*decimals, 98765432109876543210, 7, "0.1"]
    assert isinstance(numbers[4], int)


def test_rejects_bodies_that_are_not_json(subtests: pytest.Subtests) -> None:
    for wrong in (b"{", b"\xff", b"NaN", b"[" * 100_000, b"", b"1 2"):
        with subtests.test(wrong=wrong), pytest.raises(json.JSONDecodeError):
            exact_json(wrong)


def _request(pieces: list[bytes]) -> ExactRequest:
    """Make a request whose body comes in these pieces, each taken from the list as it is read."""

    async def receive() -> Any:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    return ExactRequest({"type": "http", "headers": []}, receive)


async def test_a_body_of_too_many_items_or_bytes_is_not_parsed() -> None:
    for sign in (b",", b"[", b"{"):
        await _request([sign * 10_000, sign * (MOST_ITEMS - 10_000)]).load(1_000_000)
        over = _request([sign * 10_000, sign * (MOST_ITEMS - 9_999)])
        with pytest.raises(TooLarge, match="20,000 items"):
            await over.load(1_000_000)
    pieces = [b" " * 10] * 5
    with pytest.raises(TooLarge, match="API_MAX_BODY_BYTES"):
        await _request(pieces).load(25)
    assert len(pieces) == 2, "it is not read to its end"


async def test_a_large_body_is_parsed_beside_the_loop() -> None:
    let_go = threading.Event()
    busy = asyncio.create_task(read_in_thread(let_go.wait, 300))
    small, large = (json.dumps(" " * size).encode() for size in (60_000, 70_000))
    parsing = [asyncio.create_task(_parse_body(body)) for body in (small, large)]
    await parsing[0]
    assert not parsing[1].done(), "it waits for the thread that reads"
    let_go.set()
    assert await busy
    assert await parsing[1] == " " * 70_000


async def _parse_body(body: bytes) -> Any:
    request = _request([body])
    await request.load(1_000_000)
    return await request.json()


@given(st.text(st.characters(codec="utf-8"), max_size=256).filter(is_id))
def test_any_id_is_a_segment(name: str) -> None:
    assert "/" not in escape_segment(name)
    assert decode_segment(escape_segment(name)) == name


def test_ids_that_are_none(subtests: pytest.Subtests) -> None:
    for segment in ("%00", "%ff", "x" * 257, "", ".", "%2e%2E"):
        with subtests.test(segment), pytest.raises(ValueError, match="id"):
            decode_segment(segment)


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
