"""The loop that follows: once each, with heartbeats, and through trouble."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from inference_store.api import follow
from inference_store.api.follow import Arrived, iterate_events
from inference_store.inference.errors import Busy, Unauthorized
from inference_store.query.search import Arrival

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
