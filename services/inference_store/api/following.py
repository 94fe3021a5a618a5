"""Follows what arrives in the index: server-sent events, for as long as the caller may.

Between two searches nothing is held: no connection, no transaction. Each search authenticates
again, so that a revoked key ends what it follows.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from inference_store.query.search import Arrival

from .answer import encode_json
from .problems import build_body, find_refusal
from .streams import Stream

EVENTS: Final = "text/event-stream"
MOST_SHOWN: Final = 50
"""Inferences of an event: the last that arrived."""
LOOK_SECONDS: Final = 1.0
"""Between two searches; so there are at most two events a second, of which one may be a problem."""
HEARTBEAT_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 5.0
"""Until the next search after one that failed."""
_OVERLAP: Final = timedelta(seconds=5)
"""By how much a batch may be committed after one that was indexed later."""
_TEMPORARY: Final = frozenset({429, 503})
Arrived = tuple[Sequence[Arrival], Sequence[dict[str, Any]]]
Look = Callable[[datetime, frozenset[UUID]], Awaitable[Arrived]]
"""Returns what was indexed after an instant and is not among these, and how it is shown."""


class EventStream(Stream):
    """The answer that sends events, if the caller may follow one more."""

    media_type = EVENTS


@dataclass(slots=True)
class _RecentArrivals:
    """The arrivals of the last seconds that were shown."""

    until: datetime
    uids: dict[UUID, datetime] = field(default_factory=dict)

    @property
    def since(self) -> datetime:
        """The time from which to search again."""
        return self.until - _OVERLAP

    def add(self, arrivals: Sequence[Arrival]) -> None:
        """Record what was shown, and drop what cannot be found again."""
        self.uids.update((arrival.uid, arrival.indexed_at) for arrival in arrivals)
        self.until = max([self.until, *(arrival.indexed_at for arrival in arrivals)])
        self.uids = {uid: at for uid, at in self.uids.items() if at > self.since}


async def follow(
    look: Look,
    is_stopping: Callable[[], bool],
    *,
    seconds: float,
    look_seconds: float = LOOK_SECONDS,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> AsyncIterator[bytes]:
    """Yield events for so many seconds, while the caller may follow and the api runs."""
    recent, sent = _RecentArrivals(datetime.now(UTC)), time.monotonic()
    until = sent + seconds
    yield _format_event("begin", {"at": recent.until})
    while not is_stopping() and time.monotonic() < until:
        pause = look_seconds
        try:
            arrivals, shown = await look(recent.since, frozenset(recent.uids))
        except Exception as exc:  # the answer has begun: an event has the error
            refusal = find_refusal(exc)
            is_over = refusal.status not in _TEMPORARY
            yield _format_event("end" if is_over else "problem", build_body(refusal))
            if is_over:
                return
            pause, sent = _RETRY_SECONDS, time.monotonic()
        else:
            recent.add(arrivals)
            if shown:
                more = len(arrivals) > len(shown)
                yield _format_event("inferences", {"items": shown, "more": more})
                sent = time.monotonic()
            elif time.monotonic() - sent >= heartbeat_seconds:
                yield b": here\n\n"
                sent = time.monotonic()
        await asyncio.sleep(pause)


def _format_event(name: str, content: dict[str, Any]) -> bytes:
    """Format an event: JSON has no line ends of its own."""
    return b"event: " + name.encode() + b"\ndata: " + encode_json(content) + b"\n\n"
