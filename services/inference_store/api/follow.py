"""Follows what arrives in the index: server-sent events, for as long as the caller may.

Between two searches nothing is held: no connection, no transaction. Each search authenticates
again, so that a revoked key ends what it follows.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import StreamingResponse

from inference_store.access.rights import Right
from inference_store.api.answer import build_body, find_refusal
from inference_store.query.cql2 import FilterLang
from inference_store.query.deadline import Deadline
from inference_store.query.preparation import prepare
from inference_store.query.read import read
from inference_store.query.search import Arrival, find_arrivals

from .access import Access, Asking
from .answer import Shown, encode_json
from .conditions import Conditions, read_requested_filter
from .dependencies import querying
from .fields import InQuery, Parameters
from .http import INFERENCES, ModelId
from .inference_pages import limit_query_time
from .routing import Router
from .streams import Stream


class FollowLink(Parameters):
    """Which arrivals."""

    filter: str | None = Field(default=None, examples=["NOT ok"])
    """A filter in CQL2. Its relative times are resolved at each look."""
    filter_lang: FilterLang = Field(default="cql2-text", alias="filter-lang")
    """The filter's language."""
    seconds: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 3_600.0
    """The stream ends after this time. Open another one then."""


class ArrivedInference(Shown):
    """An inference that was indexed."""

    uid: UUID
    inference_id: str
    received_at: datetime
    indexed_at: datetime
    ok: bool | None
    top_label: str | None
    top_score: float | None
    prediction_count: int | None


class Arrivals(Shown):
    """The data of an event `inferences`."""

    items: list[ArrivedInference]
    """The last 50, in the order in which they were indexed."""
    more: bool
    """Whether others arrived with them."""


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
router = Router("inferences")
_STALLED_SECONDS = 60.0
_MOST_FETCHED = 500
_NARROW = "Looking for arrivals took too long: use a filter that an index serves, or none."
# OpenAPI 3.1 has no schema of events: some tools apply one to the text, others to each event.
_STREAM = {
    "content": {EVENTS: {"schema": {}}},
    "description": "Events `inferences`, whose data is an `Arrivals`; before them `begin`;"
    " `problem` while it cannot look; `end` with the reason.",
}


@router.add(f"GET {INFERENCES}/follow", Right.READ, "Follow what arrives", 501, also={200: _STREAM})
async def follow_inferences(
    model_id: ModelId, link: InQuery[FollowLink], access: Asking
) -> StreamingResponse:
    """Inferences in the order in which they are indexed, as server-sent events: at most one a
    second, with the last 50. Those received more than a day before they were indexed are left
    out."""
    app = access.app

    async def look(since: datetime, seen: frozenset[UUID]) -> Arrived:
        again = await app.authenticator.authenticate(access.request, access.needed, counted=False)
        async with querying(again) as connection:
            return await _look(connection, again, model_id, link, since, seen)

    def is_stopping() -> bool:
        stops: bool = app.is_stopping()
        return stops

    app.follow_admission.require_free(access.admission_name)
    async with querying(access) as connection:  # its refusals are ordinary refusals
        await _look(connection, access, model_id, link, datetime.now(UTC), frozenset())
    events = iterate_events(look, is_stopping, seconds=link.seconds)
    caller = access.admission_name
    return Stream(
        app.follow_admission,
        caller,
        events,
        media_type=EVENTS,
        headers={"X-Accel-Buffering": "no"},
        stalled_seconds=_STALLED_SECONDS,
    )


async def _look(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    model_id: str,
    link: FollowLink,
    since: datetime,
    seen_uids: frozenset[UUID],
) -> Arrived:
    registration, extent = await access.find_model_to_query(connection, model_id)
    filter = await read_requested_filter(link.filter, link.filter_lang)
    question = Conditions(unknown_keys="empty").to_query_request(filter)
    prepared = await prepare(connection, registration.model, question, extent)
    deadline = Deadline.after(access.settings.query_timeout_seconds)
    with limit_query_time("page", _NARROW, prepared.query):
        arrivals = await find_arrivals(
            connection, prepared.query, since, limit=_MOST_FETCHED, deadline=deadline
        )
    new = [arrival for arrival in arrivals if arrival.uid not in seen_uids]
    shown_uids = [arrival.uid for arrival in new[-MOST_SHOWN:]]
    names = ("uid", "inference_id", "received_at", "indexed_at", "ok", "top_score")
    return new, [
        {name: inference.row[name] for name in (*names, "prediction_count")}
        | {"top_label": inference.top_label}
        for inference in await read(connection, registration.model, shown_uids)
    ]


@dataclass(slots=True)
class _RecentArrivals:
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


async def iterate_events(
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
