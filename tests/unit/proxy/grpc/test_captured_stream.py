"""Whatever the order of a stream's messages, each request with its answers is an exchange."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.proxy.configuration import UpstreamEntry
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.grpc.captured_call import AnswerHead, read_answer, read_request
from inference_store.proxy.grpc.captured_stream import Limits, RecordedCall
from inference_store.proxy.protocols import PROTOCOLS, Call
from inference_store.proxy.routing import Route
from tests.fake_captures import FakeCaptures
from tests.unit.proxy.protocols.v2_grpc.calls import STREAM, Request, Response, StreamResponse

OK, CANCELLED = 0, 1
UPSTREAM = UpstreamEntry(name="up", grpc="up:1")
ASKS = "triton_enable_empty_final_response"


class Context:
    """The context of a call, and what captures it."""

    def __init__(self, captures: FakeCaptures | None = None, **limits: Any) -> None:
        self.captures = captures or FakeCaptures()
        self._done: list[Callable[[Any], None]] = []
        route = Route(UPSTREAM, Call(PROTOCOLS["v2-grpc"], "stream"))
        fakes: list[Any] = [self.captures, self]
        self.stream = RecordedCall(fakes[0], lambda _: route, STREAM, fakes[1], Limits(**limits))

    def invocation_metadata(self) -> Any:
        return ()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._done.append(callback)

    def end(self, code: int) -> list[tuple[bytes, list[bytes]]]:
        """End the call. Return the request of each exchange, and its answers."""
        self.stream.record_end(code, "cut off" if code else None)
        for callback in self._done:
            callback(None)
        exchanges = self.captures.exchanges
        return [(each.request.bytes, list(each.response.parts)) for each in exchanges]


def make_request(number: int, name: str = "", *, asks: bool = False) -> bytes:
    made = Request(model_name=str(number), id=name)
    if asks:
        made.parameters[ASKS].bool_param = True
    return bytes(made.SerializeToString())


def make_answer(text: str, name: str = "", *, is_last: bool | None = None) -> bytes:
    made = Response(model_name=text, id=name)
    made.outputs.add(name="o")
    if is_last is not None:
        made.parameters["triton_final_response"].bool_param = is_last
    return bytes(made.SerializeToString())


@dataclass(frozen=True)
class Sent:
    """A message of a case; `answers` is the number of the request that it answers."""

    message: bytes
    answers: int | None = None
    is_last: bool | None = None


@st.composite
def interleavings(draw: st.DrawFn, kind: str) -> Sequence[Sent]:
    """Draw a stream: requests in order, each answer behind its request."""
    count = draw(st.integers(1, 6))
    one = kind in {"order", "first id"}
    marked, named = kind.endswith("marked"), not kind.startswith(("order", "nameless"))
    answers = [1 if one else draw(st.integers(1 if marked else 0, 3)) for _ in range(count)]
    names = [f"r{number}" if named else "" for number in range(count)]
    given_ = [0] * count
    sent: list[Sent] = []
    requested = 0
    while requested < count or given_ != answers:
        open_ = [number for number in range(requested) if given_[number] < answers[number]]
        open_ = open_ if kind.startswith("ids") else open_[:1]
        if requested < count and (not open_ or draw(st.booleans())):
            asks = kind == "nameless marked"
            sent.append(Sent(make_request(requested, names[requested], asks=asks)))
            requested += 1
            continue
        number = draw(st.sampled_from(open_))
        given_[number] += 1
        is_last = given_[number] == answers[number] if marked else None
        name = names[0] if kind == "first id" else names[number]
        text = f"{number}.{given_[number]}"
        sent.append(Sent(make_answer(text, name, is_last=is_last), number, is_last))
    return sent


def expect(sent: Sequence[Sent]) -> list[tuple[bytes, list[bytes]]]:
    requests = [each.message for each in sent if each.answers is None]
    return [
        (request, [each.message for each in sent if each.answers == number])
        for number, request in enumerate(requests)
    ]


async def play(
    sent: Sequence[Sent], code: int
) -> tuple[list[tuple[bytes, list[bytes]]], list[Exchange]]:
    context = Context()
    stream = context.stream
    for each in sent:
        record = stream.record_request if each.answers is None else stream.record_response
        record(each.message)
        stream.hand_over_complete()
    return context.end(code), context.captures.exchanges


@pytest.mark.parametrize("kind", ["ids marked", "ids", "order", "nameless marked", "first id"])
@given(st.data(), st.sampled_from([OK, CANCELLED]))
def test_each_request_is_an_exchange_of_its_own(kind: str, data: st.DataObject, code: int) -> None:
    """A stream that is cut off anywhere: what is answered has succeeded, the rest is cut off."""
    sent = data.draw(interleavings(kind))
    sent = sent[: data.draw(st.integers(0, len(sent)))]
    if kind == "ids" and all(not each.answers for each in sent):
        return  # every answer has the first id
    pairs, exchanges = asyncio.run(play(sent, code))
    assert sorted(pairs) == sorted(expect(sent))
    for exchange in exchanges:
        answers = [each for each in sent if each.message in exchange.response.parts]
        is_answered = bool(answers) and answers[-1].is_last is not False
        ended = (OK, None) if is_answered or code == OK else (CANCELLED, "cut off")
        assert (exchange.grpc_code, exchange.error) == ended
        assert exchange.response.whole == (is_answered or code == OK or not answers)
        if kind != "first id":
            assert not exchange.is_matched_in_doubt


async def test_first_id_on_every_answer_is_flagged_and_settled_by_silence() -> None:
    context = Context(quiet_seconds=0, longest_quiet_seconds=0)
    stream = context.stream
    for number in range(3):
        stream.record_request(make_request(number, f"r{number}"))
    for number in range(2):
        stream.record_response(make_answer(str(number), "r0"))
        stream.hand_over_complete()
    settled = [await context.captures.exchange() for _ in range(2)]
    flags = {each.position: each.is_matched_in_doubt for each in settled}
    assert flags == {0: False, 1: True}
    stream.record_response(make_answer("2", "r0"))
    assert [answers for _, answers in context.end(OK)] == [
        [make_answer(str(number), "r0")] for number in range(3)
    ]


@pytest.mark.parametrize("room", [1 << 30, 100])
async def test_answers_with_the_first_id_wait_until_another_id_shows_that_ids_tell(
    room: int,
) -> None:
    """Those for which there is no memory go to the next request, and are flagged."""
    context = Context(FakeCaptures(room=room))
    for number in range(2):
        context.stream.record_request(make_request(number, f"r{number}"))
    answers = [make_answer("x" * 30, "r0"), make_answer("y" * 60, "r0"), make_answer("z", "r1")]
    for answer in answers:
        context.stream.record_response(answer)
    first, second = (parts for _, parts in context.end(OK))
    is_held = room > 100
    assert first == (answers[:2] if is_held else answers[:1])
    assert second == (answers[2:] if is_held else answers[1:])
    flags = [each.is_matched_in_doubt for each in context.captures.exchanges]
    assert flags == [False, not is_held]


@pytest.mark.parametrize("is_pipelined", [False, True])
async def test_nameless_requests_are_answered_in_order_whatever_ids_their_server_makes(
    is_pipelined: bool,
) -> None:
    """They are flagged if it is not certain which answer is whose."""
    context = Context()
    for number in range(3):
        context.stream.record_request(make_request(number))
        if not is_pipelined:
            context.stream.record_response(make_answer(str(number), "made"))
    for number in range(3 if is_pipelined else 0):
        context.stream.record_response(make_answer(str(number), "made"))
    assert context.end(OK) == [
        (make_request(number), [make_answer(str(number), "made")]) for number in range(3)
    ]
    assert {each.is_matched_in_doubt for each in context.captures.exchanges} == {is_pipelined}


async def test_an_exchange_is_handed_over_when_a_later_one_is_answered() -> None:
    context = Context()
    for number in range(5):
        context.stream.record_request(make_request(number))
        context.stream.record_response(make_answer(str(number)))
        context.stream.hand_over_complete()
        assert len(context.captures.finished) == number
    context.end(CANCELLED)
    assert [each.grpc_code for each in context.captures.exchanges] == [OK] * 5


async def test_each_exchange_has_a_budget_of_its_own() -> None:
    context = Context(FakeCaptures(room=1 << 10))
    for number in range(20):
        context.stream.record_request(make_request(number))
        context.stream.record_response(make_answer("x" * 900))
    assert len(context.end(OK)) == 20
    assert all(each.response.whole for each in context.captures.exchanges)


async def test_a_request_without_room_keeps_its_place() -> None:
    context = Context(FakeCaptures(refused={1}))
    for number in range(3):
        context.stream.record_request(make_request(number))
    for number in range(3):
        context.stream.record_response(make_answer(str(number)))
    assert context.end(OK) == [
        (make_request(number), [make_answer(str(number))]) for number in (0, 2)
    ]


async def test_requests_over_the_limit_end_the_oldest() -> None:
    """Its answer is kept as an exchange without a request, and moves no other."""
    context = Context(open_requests=2)
    for number in range(3):
        context.stream.record_request(make_request(number))
    context.stream.hand_over_complete()
    (given_up,) = context.captures.exchanges
    assert "too many requests" in (given_up.error or "")
    for number in range(3):
        context.stream.record_response(make_answer(str(number)))
    assert sorted(context.end(OK)) == sorted(
        [
            (make_request(0), []),
            (b"", [make_answer("0")]),
            *((make_request(number), [make_answer(str(number))]) for number in (1, 2)),
        ]
    )
    (stray,) = [each for each in context.captures.exchanges if not each.request.parts]
    assert stray.is_matched_in_doubt


@given(st.binary(max_size=200), st.sampled_from([None, "triton", "mlserver"]))
def test_any_bytes_have_a_head(written: bytes, dialect: str | None) -> None:
    read_request(written)
    read_answer(written, dialect)


def test_heads() -> None:
    plain = make_answer("a", "7", is_last=False)
    wrapped = StreamResponse(infer_response=Response.FromString(plain)).SerializeToString()
    error = StreamResponse(error_message="why", infer_response=Response(id="7"))
    for case, written, expected in (
        ("MLServer's", plain, AnswerHead("7", is_last=False)),
        ("Triton's", wrapped, AnswerHead("7", is_last=False)),
        ("without anything", make_answer("a"), AnswerHead()),
        ("an error", error.SerializeToString(), AnswerHead("7", is_last=True)),
    ):
        assert read_answer(written, None) == expected, case
    assert read_request(make_request(1, "7", asks=True)) == ("7", True)
