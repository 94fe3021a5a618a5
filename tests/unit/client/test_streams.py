"""A stream is whole, each inference once and in order, or it is an error."""

import json
import random
from collections.abc import Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any

import pytest

from inference_store_client import (
    Forbidden,
    StoreWarning,
    StreamIncomplete,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
)
from inference_store_client.commands import Response
from inference_store_client.decoding import decode
from inference_store_client.lines import LineDecoder
from inference_store_client.origin import Origin
from inference_store_client.question import Question
from inference_store_client.retries import Retries
from inference_store_client.settings import ClientSettings
from inference_store_client.streaming import stream
from inference_store_client.values.inference import InferenceFields
from tests.both_clients import make_problem

from .fake_stream import FakeStore, Line

_SETTINGS = ClientSettings(Origin("https://store.example"), retries=Retries(attempts=3))
_QUESTION = Question(path="/v1/models/m/inferences", filter="n > 1")


def read(store: FakeStore, question: Question = _QUESTION) -> list[str]:
    steps = stream(question, partial(decode, InferenceFields), _SETTINGS)
    return [inference.inference_id for inference in store.drive(steps)]


def expected(count: int) -> list[str]:
    return [f"frame-{number}" for number in range(count)]


def whole(*cuts: int) -> Iterator[int | None]:
    return chain(cuts, repeat(None))


def refuse(status: int, name: str = "some-problem", **headers: str) -> Response:
    response = make_problem(status, name)
    return Response(status, headers, response.content)


def test_a_whole_stream_is_one_connection() -> None:
    store = FakeStore(20, whole())
    assert read(store) == expected(20)
    assert len(store.bodies) == store.closed == 1
    assert store.bodies[0]["include"] == ["metadata", "predictions"]
    assert not store.waits


@pytest.mark.parametrize("is_silent", [False, True])
def test_it_is_whole_wherever_it_is_cut(*, is_silent: bool) -> None:
    size = len(FakeStore(4, whole()).encode(0))
    for cut in range(0, size, 7):
        store = FakeStore(4, whole(cut), is_silent=is_silent)
        assert read(store) == expected(4), cut
        assert len(store.bodies) == store.closed == 2


def test_it_is_whole_however_often_it_is_cut() -> None:
    chance = random.Random(20)
    for _ in range(20):
        cuts = [chance.randrange(2_000, 9_000) for _ in range(30)]
        store = FakeStore(60, whole(*cuts), piece_bytes=chance.randrange(1, 5000))
        assert read(store) == expected(60)


def test_the_question_stays_the_same_and_only_the_cursor_moves() -> None:
    store = FakeStore(9, whole(3_000, 3_000))
    read(store)
    assert len(store.bodies) == 3
    assert len({json.dumps(body | {"cursor": ""}) for body in store.bodies}) == 1
    cursors = [body.get("cursor") for body in store.bodies]
    assert cursors[0] is None
    assert len({*cursors}) == 3


@pytest.mark.parametrize("is_silent", [False, True])
def test_without_progress_it_is_an_error(*, is_silent: bool) -> None:
    store = FakeStore(5, repeat(100), is_silent=is_silent)
    with pytest.raises(StreamIncomplete, match="0 inferences had come"):
        read(store)
    assert len(store.bodies) == 3
    assert len(store.waits) == 2


def test_what_came_before_is_counted_in_the_error() -> None:
    store = FakeStore(5, chain([3_000], repeat(0)))
    with pytest.raises(StreamIncomplete, match="3 inferences had come, and they are not"):
        read(store)


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_refusal_that_passes_is_waited_for(status: int) -> None:
    store = FakeStore(5, whole(), refusals=[refuse(status, **{"retry-after": "7"})] * 2)
    assert read(store) == expected(5)
    assert store.waits == [7, 7]


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (refuse(403), Forbidden),
        (refuse(401), Unauthorized),
        (refuse(503, "query-timeout"), Unavailable),
        (refuse(429, **{"retry-after": "9999"}), Unavailable),
    ],
)
def test_another_refusal_is_raised(refusal: Response, error: type[Exception]) -> None:
    store = FakeStore(5, whole(), refusals=[refusal])
    with pytest.raises(error):
        read(store)
    assert not store.waits


def end_with(store_ends: list[Line]) -> Any:
    """Change the last lines of connections, one after the other."""
    ends = iter(store_ends)
    return lambda end: end | next(ends, {})


def test_a_stream_that_ran_out_of_time_goes_on() -> None:
    """From the cursor of its last line, which may be further than that of an inference."""
    problem = json.loads(refuse(503, "query-timeout").content)
    store = FakeStore(5, whole(), change_end=end_with([{"problem": problem, "next": "5"}]))
    assert read(store) == expected(5)
    assert [body.get("cursor") for body in store.bodies] == [None, "5"]


def test_a_stream_of_a_revoked_key_is_an_error() -> None:
    problem = json.loads(refuse(401).content)
    store = FakeStore(5, whole(), change_end=end_with([{"problem": problem, "next": "5"}]))
    with pytest.raises(Unauthorized) as raised:
        read(store)
    assert raised.value.__notes__ == ["5 inferences had come"]


@pytest.mark.parametrize("count", [4, 6])
def test_a_last_line_that_counts_otherwise_is_an_error(count: int) -> None:
    store = FakeStore(5, whole(), change_end=end_with([{"count": count}]))
    with pytest.raises(UnexpectedAnswer, match=f"counts {count}"):
        read(store)


def test_warnings_come_with_the_last_line() -> None:
    store = FakeStore(1, whole(), change_end=end_with([{"warnings": ["a remark"]}]))
    with pytest.warns(StoreWarning, match="a remark"):
        read(store)


def test_a_line_may_say_how_far_the_search_is() -> None:
    assert read(FakeStore(5, whole(2_000), is_searching=True)) == expected(5)


def test_a_sample_ends_at_its_size_over_all_connections() -> None:
    """The store begins to count again with each connection."""
    question = _QUESTION.take_sample(10, 1)
    for cut in (2_000, 6_000, 9_000):
        store = FakeStore(30, whole(cut))
        assert read(store, question) == expected(10)
        assert store.bodies[-1]["sample"] == {"size": 10, "seed": 1}


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b"\xff\n", b"\n"])
def test_a_line_that_is_no_object_is_an_error(line: bytes) -> None:
    with pytest.raises(UnexpectedAnswer, match="a line of the stream"):
        [*LineDecoder().feed(line)]


def test_a_line_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_store_client.lines.MOST_BYTES", 1000)
    decoder = LineDecoder()
    assert [*decoder.feed(b"x" * 900)] == []
    with pytest.raises(UnexpectedAnswer, match="1,000 bytes"):
        [*decoder.feed(b"x" * 101)]
