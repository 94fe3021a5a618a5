"""A stream is whole, each inference once and in order, or it is an error."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import chain, product, repeat
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
from inference_store_client.command_line.tail import Event, EventDecoder
from inference_store_client.decoding import decode
from inference_store_client.question import Question
from inference_store_client.streaming import LineDecoder, read_line, stream
from inference_store_client.transport import Response, iterate
from inference_store_client.values.inference import InferenceFields
from tests.both_clients import make_problem

from .fake_stream import QUESTION, FakeStore, Line, cut_up


def read(store: FakeStore, question: Question = QUESTION) -> list[str]:
    items = stream(store.transport, question, partial(decode, InferenceFields))
    return [inference.inference_id for inference in iterate(items)]


def expected(count: int) -> list[str]:
    return [f"frame-{number}" for number in range(count)]


def whole(*cuts: int) -> Iterator[int | None]:
    return chain(cuts, repeat(None))


def refuse(status: int, name: str = "some-problem", **headers: str) -> Response:
    response = make_problem(status, name)
    return Response(status, headers, response.content)


def test_a_whole_stream_is_one_connection_and_a_cut_one_asks_the_same() -> None:
    store = FakeStore(20, whole())
    assert read(store) == expected(20)
    assert len(store.bodies) == store.transport.closed == 1
    assert store.bodies[0]["include"] == ["metadata", "predictions"]
    assert not store.transport.waits
    store = FakeStore(9, whole(3_000, 3_000))
    read(store)
    assert len(store.bodies) == 3
    assert len({json.dumps(body | {"cursor": ""}) for body in store.bodies}) == 1
    cursors = [body.get("cursor") for body in store.bodies]
    assert cursors[0] is None
    assert len({*cursors}) == 3


def test_it_is_whole_wherever_it_is_cut() -> None:
    content = FakeStore(3, whole()).encode(0)
    ends = [at + more for at, byte in enumerate(content) if byte == 0x0A for more in (0, 1, 2)]
    for cut, is_silent in product([*ends[:-2], *range(0, len(content), 67)], (False, True)):
        store = FakeStore(3, whole(cut), is_silent=is_silent)
        assert read(store) == expected(3), (cut, is_silent)
        assert len(store.bodies) == store.transport.closed == 2, (cut, is_silent)


def test_without_progress_it_is_an_error() -> None:
    for is_silent in (False, True):
        store = FakeStore(5, repeat(100), is_silent=is_silent)
        with pytest.raises(StreamIncomplete, match="0 inferences had come"):
            read(store)
        assert (len(store.bodies), len(store.transport.waits)) == (4, 3)
    with pytest.raises(StreamIncomplete, match="3 inferences had come, and they are not"):
        read(FakeStore(5, chain([3_000], repeat(0))))


def test_a_refusal_that_passes_is_waited_for_and_another_raised(subtests: pytest.Subtests) -> None:
    for status in (429, 502, 503):
        store = FakeStore(5, whole(), refusals=[refuse(status, **{"retry-after": "7"})] * 2)
        assert read(store) == expected(5), status
        assert store.transport.waits == [7, 7], status
    for refusal, error in [
        (refuse(403), Forbidden),
        (refuse(401), Unauthorized),
        (refuse(503, "query-timeout"), Unavailable),
        (refuse(429, **{"retry-after": "9999"}), Unavailable),
    ]:
        store = FakeStore(5, whole(), refusals=[refusal])
        with subtests.test(str(refusal)), pytest.raises(error):
            read(store)
        assert not store.transport.waits, refusal


def end_with(*store_ends: Line) -> Any:
    """Change the last lines of connections, one after the other."""
    ends = iter(store_ends)
    return lambda end: end | next(ends, {})


def test_a_stream_out_of_time_goes_on_and_one_of_a_revoked_key_ends() -> None:
    """From the cursor of its last line, which may be further than that of an inference."""
    problem = json.loads(refuse(503, "query-timeout").content)
    store = FakeStore(5, whole(), change_end=end_with({"problem": problem, "next": "5"}))
    assert read(store) == expected(5)
    assert [body.get("cursor") for body in store.bodies] == [None, "5"]
    problem = json.loads(refuse(401).content)
    store = FakeStore(5, whole(), change_end=end_with({"problem": problem, "next": "5"}))
    with pytest.raises(Unauthorized) as raised:
        read(store)
    assert raised.value.__notes__ == ["5 inferences had come"]
    for count in (4, 6):
        with pytest.raises(UnexpectedAnswer, match=f"counts {count}"):
            read(FakeStore(5, whole(), change_end=end_with({"count": count})))


def test_lines_may_warn_say_how_far_the_search_is_or_end_a_sample() -> None:
    with pytest.warns(StoreWarning, match="a remark"):
        read(FakeStore(1, whole(), change_end=end_with({"warnings": ["a remark"]})))
    assert read(FakeStore(5, whole(2_000), is_searching=True)) == expected(5)
    # The store begins to count again with each connection.
    for cut in (2_000, 6_000, 9_000):
        store = FakeStore(30, whole(cut))
        assert read(store, QUESTION.take_sample(10, 1)) == expected(10), cut
        assert store.bodies[-1]["sample"] == {"size": 10, "seed": 1}, cut


def test_what_is_no_line_or_event_or_too_long_is_an_error(
    subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in (b"{\n", b"[]\n", b"\xff\n", b"\n"):
        with subtests.test(str(line)), pytest.raises(UnexpectedAnswer, match="a line of the str"):
            [*map(read_line, LineDecoder().feed(line))]
    with pytest.raises(UnexpectedAnswer):
        [*EventDecoder().feed(b"event: begin\ndata: {\n\n")]
    monkeypatch.setattr("inference_store_client.streaming.MOST_BYTES", 1000)
    decoder = LineDecoder()
    assert [*decoder.feed(b"x" * 900)] == []
    with pytest.raises(UnexpectedAnswer, match="1,000 bytes"):
        [*decoder.feed(b"x" * 101)]


_BEGIN = b'event: begin\ndata: {"at": "2026-11-01T00:00:00Z"}\n\n'
_ARRIVED = b'event: inferences\ndata: {"items": [], "more": false}\n\n'


def test_events_are_cut_whatever_the_pieces_are() -> None:
    content = b": here\n\n" + _BEGIN + b": here\n\n" + _ARRIVED
    for size in (1, 7, 1000):
        decoder = EventDecoder()
        assert [event for piece in cut_up(content, size) for event in decoder.feed(piece)] == [
            Event("begin", {"at": "2026-11-01T00:00:00Z"}),
            Event("inferences", {"items": [], "more": False}),
        ], size
