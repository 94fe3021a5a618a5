"""Turns: how many run at once, who is next, who is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_store.api import follow
from inference_store.api.dependencies import AdmissionControl
from inference_store.api.follow import Arrived, iterate_events
from inference_store.api.middleware import Foreground, Surroundings
from inference_store.inference.errors import Busy, TooManyQueries, Unauthorized
from inference_store.platform.metrics import SHOWN
from inference_store.query.search import Arrival


def _read(metric: str) -> float:
    name = f"inference_store_api_turns_{metric}"
    return SHOWN["api"].get_sample_value(name, {"kind": "query"}) or 0


async def _let_wait(count: int) -> None:
    """Let the tasks begin, of which so many wait."""
    await asyncio.sleep(0)
    assert _read("waiting") == count


async def _ask(admission: AdmissionControl, caller: str) -> None:
    async with admission.admit(caller):
        await asyncio.sleep(0)


@asynccontextmanager
async def _hold_turns(admission: AdmissionControl, *callers: str) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for caller in callers:
            await stack.enter_async_context(admission.admit(caller))
        yield


async def test_one_caller_cannot_take_more_than_its_share() -> None:
    admission = AdmissionControl("query", 3, 2, wait_seconds=0)
    async with _hold_turns(admission, "a", "a"):
        with pytest.raises(TooManyQueries, match="of yours") as refused:
            await _ask(admission, "a")
        assert refused.value.retry_after_seconds == 1
        async with admission.admit("b"):
            with pytest.raises(TooManyQueries, match="POSTGRES_POOL_SIZE"):
                await _ask(admission, "c")
    async with _hold_turns(admission, "a", "a", "c"):
        pass


async def test_admits_the_caller_with_fewest_running_then_the_first_to_arrive() -> None:
    admission = AdmissionControl("query", 2, 2, wait_seconds=300)
    order: list[str] = []

    async def ask(name: str) -> None:
        async with admission.admit(name[0]):
            order.append(name)
            await asyncio.sleep(0)

    async with _hold_turns(admission, "a", "a"):
        requests = [asyncio.create_task(ask(name)) for name in ("a1", "a2", "b1", "b2")]
        await _let_wait(4)
        assert order == []
    await asyncio.gather(*requests)
    assert order[:2] == ["b1", "a1"]
    assert sorted(order) == ["a1", "a2", "b1", "b2"]


async def test_a_caller_that_leaves_while_waiting_takes_no_turn() -> None:
    admission, before = AdmissionControl("query", 1, 1, wait_seconds=300), _read("taken")
    async with admission.admit("b"):
        leaving, staying = (asyncio.create_task(_ask(admission, "a")) for _ in range(2))
        await _let_wait(2)
        leaving.cancel()
    await asyncio.wait([leaving])
    await asyncio.wait_for(staying, 300)
    assert leaving.cancelled()
    assert _read("taken") == before
    async with admission.admit("c", wait_seconds=0):
        assert _read("taken") == before + 1


async def test_a_crowd_does_not_wait() -> None:
    admission = AdmissionControl("query", 1, 1, wait_seconds=30)
    async with admission.admit("a"):
        waiting = [asyncio.create_task(_ask(admission, "a")) for _ in range(32)]
        await _let_wait(32)
        with pytest.raises(TooManyQueries) as refused:
            await _ask(admission, "a")
        assert refused.value.retry_after_seconds == 30
        for request in waiting:
            request.cancel()
    await asyncio.wait(waiting)


# The loop that follows: once each, with heartbeats, and through trouble.

Requests = list[tuple[datetime, frozenset[UUID]]]


async def _collect_events(*looks: Any, heartbeat: float = 1e6) -> tuple[list[Any], Requests]:
    """The events of a stream that looks so often, and what each look asked for."""
    requests: Requests = []
    remaining = list(looks)

    async def look(since: datetime, seen_uids: frozenset[UUID]) -> Arrived:
        requests.append((since, seen_uids))
        arrivals = remaining.pop(0)
        if isinstance(arrivals, Exception):
            raise arrivals
        return arrivals, [{"uid": arrival.uid} for arrival in arrivals[-follow.MOST_SHOWN :]]

    times = {"seconds": 1e6, "look_seconds": 0.0, "heartbeat_seconds": heartbeat}
    pieces = iterate_events(look, lambda: not remaining, **times)
    return [_read_event(piece) async for piece in pieces], requests


def _read_event(piece: bytes) -> Any:
    assert piece.endswith(b"\n\n")
    if piece.startswith(b":"):
        return "heartbeat"
    name, data = piece.decode().removesuffix("\n\n").split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def _make_arrivals(count: int, at: datetime) -> list[Arrival]:
    return [Arrival(at + timedelta(milliseconds=n), uuid4()) for n in range(count)]


async def test_passes_shown_inferences_to_the_next_look() -> None:
    """And forgotten when it cannot be met any more."""
    now = datetime.now(UTC) + timedelta(seconds=60)  # later than the stream begins
    first, second = _make_arrivals(2, now), _make_arrivals(1, now + timedelta(seconds=60))
    events, requests = await _collect_events(first, second, [])
    assert [name for name, _ in events] == ["begin", "inferences", "inferences"]
    seen_uids = [uids for _, uids in requests]
    assert seen_uids == [frozenset(), {arrival.uid for arrival in first}, {second[0].uid}]
    assert requests[2][0] == second[0].indexed_at - timedelta(seconds=5)


async def test_a_silent_stream_has_heartbeats() -> None:
    events, _ = await _collect_events([], [], heartbeat=0)
    assert events[1:] == ["heartbeat", "heartbeat"]
    events, _ = await _collect_events([], [])
    assert len(events) == 1


async def test_trouble_passes_and_a_refusal_ends_it(monkeypatch: Any) -> None:
    monkeypatch.setattr(follow, "_RETRY_SECONDS", 0)
    events, _ = await _collect_events(Busy("x"), [], Unauthorized("y"), [])
    assert [(name, data["status"]) for name, data in events[1:]] == [("problem", 503), ("end", 401)]


# A request is in the foreground until its answer begins, and streams wait for it, not for ever.


async def test_a_stream_waits_for_the_last_request_and_no_longer() -> None:
    foreground = Foreground()
    foreground.enter()
    assert await foreground.wait_until_idle(0, since=0), "it does not wait for ever"
    foreground.enter()
    waiting = asyncio.create_task(foreground.wait_until_idle(300, since=0))
    await asyncio.sleep(0)
    foreground.leave()
    await asyncio.sleep(0)
    assert not waiting.done()
    foreground.leave()
    assert await waiting


async def serve(app: ASGIApp, foreground: Foreground) -> list[Message]:
    """Return the messages of an answer."""
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    await Surroundings(app, foreground)(scope, receive, send)
    return messages


async def is_idle(foreground: Foreground) -> bool:
    return not await foreground.wait_until_idle(0, since=foreground.clock())


async def test_a_request_leaves_when_its_answer_begins() -> None:
    foreground = Foreground()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        assert not await is_idle(foreground)
        await send({"type": "http.response.start", "status": 200})
        assert await is_idle(foreground)
        await send({"type": "http.response.body", "body": b""})

    assert len(await serve(app, foreground)) == 2
    assert await is_idle(foreground)
