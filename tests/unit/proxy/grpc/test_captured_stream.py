"""Whatever the order of a stream's messages, each request with its answers is an exchange."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from tests.unit.proxy.protocols.v2_grpc.calls import STREAM, Request, Response, StreamResponse

OK, CANCELLED = 0, 1
UPSTREAM = UpstreamEntry(name="up", grpc="up:1")
ASKS = "triton_enable_empty_final_response"


@dataclass
class Ticket:
    """A reservation of a body's cap."""

    captures: "Captures"
    room: int
    refused: bool = False

    def reserve_more(self, size: int) -> bool:
        self.room -= size
        return self.room >= 0

    def finish(self, exchange: Exchange, *_: Any) -> None:
        self.captures.finished.append(exchange)
        self.captures.handed_over.set()


@dataclass
class Captures:
    """Takes exchanges while there is room; it is also the context of the call."""

    room: int = 1 << 20
    refused: set[int] = field(default_factory=set)
    """The numbers of the exchanges for which there is no room."""
    begun: int = 0
    finished: list[Exchange] = field(default_factory=list)
    handed_over: asyncio.Event = field(default_factory=asyncio.Event)
    done: list[Callable[[Any], None]] = field(default_factory=list)

    def begin(self, size: int, head: int) -> Ticket | None:
        assert head == 0
        self.begun += 1
        return None if self.begun - 1 in self.refused else Ticket(self, self.room - size)

    def invocation_metadata(self) -> Any:
        return ()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.done.append(callback)

    def open(self, **limits: Any) -> RecordedCall:
        route = Route(UPSTREAM, Call(PROTOCOLS["v2-grpc"], "stream"))
        fake: Any = self
        return RecordedCall(fake, lambda _: route, STREAM, fake, Limits(**limits))

    def end(self, stream: RecordedCall, code: int) -> None:
        stream.record_end(code, "cut off" if code else None)
        for callback in self.done:
            callback(None)

    def list_pairs(self) -> list[tuple[bytes, list[bytes]]]:
        """The request of each exchange, and its answers."""
        return [(each.request.bytes, list(each.response.parts)) for each in self.finished]


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


async def play(sent: Sequence[Sent], code: int) -> Captures:
    captures = Captures()
    stream = captures.open()
    for each in sent:
        record = stream.record_request if each.answers is None else stream.record_response
        record(each.message)
        stream.hand_over_complete()
    captures.end(stream, code)
    return captures


@pytest.mark.parametrize("kind", ["ids marked", "ids", "order", "nameless marked", "first id"])
@given(st.data(), st.sampled_from([OK, CANCELLED]))
def test_each_request_is_an_exchange_of_its_own(kind: str, data: st.DataObject, code: int) -> None:
    """A stream that is cut off anywhere: what is answered has succeeded, the rest is cut off."""
    sent = data.draw(interleavings(kind))
    sent = sent[: data.draw(st.integers(0, len(sent)))]
    if kind == "ids" and all(not each.answers for each in sent):
        return  # every answer has the first id
    captures = asyncio.run(play(sent, code))
    expected = expect(sent)
    assert sorted(captures.list_pairs()) == sorted(expected)
    for exchange in captures.finished:
        answers = [each for each in sent if each.message in exchange.response.parts]
        is_answered = bool(answers) and answers[-1].is_last is not False
        ended = (OK, None) if is_answered or code == OK else (CANCELLED, "cut off")
        assert (exchange.grpc_code, exchange.error) == ended
        assert exchange.response.whole == (is_answered or code == OK or not answers)
        if kind != "first id":
            assert not exchange.is_matched_in_doubt


async def test_first_id_on_every_answer_is_flagged_and_settled_by_silence() -> None:
    captures = Captures()
    stream = captures.open(quiet_seconds=0, longest_quiet_seconds=0)
    for number in range(3):
        stream.record_request(make_request(number, f"r{number}"))
    for number in range(2):
        stream.record_response(make_answer(str(number), "r0"))
        stream.hand_over_complete()
    async with asyncio.timeout(300):
        while len(captures.finished) < 2:
            captures.handed_over.clear()
            await captures.handed_over.wait()
    flags = {each.position: each.is_matched_in_doubt for each in captures.finished}
    assert flags == {0: False, 1: True}
    stream.record_response(make_answer("2", "r0"))
    captures.end(stream, OK)
    assert [answers for _, answers in captures.list_pairs()] == [
        [make_answer(str(number), "r0")] for number in range(3)
    ]


async def test_an_exchange_is_handed_over_when_a_later_one_is_answered() -> None:
    captures = Captures()
    stream = captures.open()
    for number in range(5):
        stream.record_request(make_request(number))
        stream.record_response(make_answer(str(number)))
        stream.hand_over_complete()
        assert len(captures.finished) == number
    captures.end(stream, CANCELLED)
    assert [each.grpc_code for each in captures.finished] == [OK] * 5


async def test_each_exchange_has_a_budget_of_its_own() -> None:
    captures = Captures(room=1 << 10)
    stream = captures.open()
    answer = make_answer("x" * 900)
    for number in range(20):
        stream.record_request(make_request(number))
        stream.record_response(answer)
    captures.end(stream, OK)
    assert all(each.response.whole for each in captures.finished)
    assert len(captures.finished) == 20


async def test_a_request_without_room_keeps_its_place() -> None:
    captures = Captures(refused={1})
    stream = captures.open()
    for number in range(3):
        stream.record_request(make_request(number))
    for number in range(3):
        stream.record_response(make_answer(str(number)))
    captures.end(stream, OK)
    assert captures.list_pairs() == [
        (make_request(number), [make_answer(str(number))]) for number in (0, 2)
    ]


async def test_requests_over_the_limit_end_the_oldest() -> None:
    """Its answer is kept as an exchange without a request, and moves no other."""
    captures = Captures()
    stream = captures.open(open_requests=2)
    for number in range(3):
        stream.record_request(make_request(number))
    stream.hand_over_complete()
    (given_up,) = captures.finished
    assert "too many requests" in (given_up.error or "")
    for number in range(3):
        stream.record_response(make_answer(str(number)))
    captures.end(stream, OK)
    assert sorted(captures.list_pairs()) == sorted(
        [
            (make_request(0), []),
            (b"", [make_answer("0")]),
            *((make_request(number), [make_answer(str(number))]) for number in (1, 2)),
        ]
    )
    (stray,) = [each for each in captures.finished if not each.request.parts]
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
    assert read_request(make_request(1, "7", asks=True)).asks_for_end
