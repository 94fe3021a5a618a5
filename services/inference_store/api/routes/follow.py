"""Arrivals in the index, as server-sent events."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query, Request
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response, StreamingResponse

from inference_store.access.rights import Right
from inference_store.api.access import Access, Asking, needs
from inference_store.api.dependencies import Settings, querying
from inference_store.api.filters import read_requested_filter
from inference_store.api.following import EVENTS, MOST_SHOWN, Arrived, EventStream, follow
from inference_store.api.paths import ModelId
from inference_store.api.problems import document_refusals
from inference_store.api.query_timing import limit_query_time
from inference_store.api.routers import make_router
from inference_store.api.schemas.following import FollowLink
from inference_store.api.schemas.questions import Conditions
from inference_store.platform.settings import ApiSettings
from inference_store.query.deadline import Deadline
from inference_store.query.preparation import prepare
from inference_store.query.read import read
from inference_store.query.search import Arrival, find_arrivals

router = make_router("inferences")
_STALLED_SECONDS = 60.0
_MOST_FETCHED = 500
_NARROW = "Looking for arrivals took too long: use a filter that an index can drive, or none."
# OpenAPI 3.1 has no schema of events: some tools apply one to the text, others to each event.
_STREAM = {
    "content": {EVENTS: {"schema": {}}},
    "description": "Events `inferences`, whose data is an `Arrivals`; before them `begin`;"
    " `problem` while it cannot look; `end` with the reason.",
}


@router.get(
    "/models/{model_id}/inferences/follow",
    response_class=StreamingResponse,
    responses=document_refusals(404, 501, also={200: _STREAM}),
    openapi_extra=needs(Right.READ),
    summary="Follow what arrives",
)
async def follow_inferences(
    model_id: ModelId,
    link: Annotated[FollowLink, Query()],
    request: Request,
    to: Settings,
    access: Asking,
) -> Response:
    """Inferences as they are indexed, in that order, as server-sent events: one a second at most,
    with the last 50. Those that were received over a day before they were indexed are left out."""
    app = request.app

    async def look(since: datetime, seen: frozenset[UUID]) -> Arrived:
        again = await app.state.authenticator.authenticate(request, access.needed, counted=False)
        async with querying(request, again) as connection:
            return await _look(connection, again, to, model_id, link, since, seen)

    def is_stopping() -> bool:
        stops: bool = app.state.is_stopping()
        return stops

    app.state.follow_admission.require_free(access.admission_name)
    async with querying(request, access) as connection:  # its refusals are ordinary refusals
        await _look(connection, access, to, model_id, link, datetime.now(UTC), frozenset())
    events = follow(look, is_stopping, seconds=link.seconds)
    caller = access.admission_name
    answer = EventStream(
        app.state.follow_admission, caller, events, stalled_seconds=_STALLED_SECONDS
    )
    answer.headers["X-Accel-Buffering"] = "no"
    return answer


async def _look(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    to: ApiSettings,
    model_id: str,
    link: FollowLink,
    since: datetime,
    seen_uids: frozenset[UUID],
) -> Arrived:
    registration, extent = await access.find_model_to_query(connection, model_id)
    filter = await read_requested_filter(link.filter, link.filter_lang)
    question = Conditions(unknown_keys="empty").to_query_request(filter.tree)
    prepared = await prepare(connection, registration.model, question, extent)
    deadline = Deadline.after(to.query_timeout_seconds)
    with limit_query_time("page", _NARROW, prepared.query):
        arrivals = await find_arrivals(
            connection, prepared.query, since, limit=_MOST_FETCHED, deadline=deadline
        )
    new = [arrival for arrival in arrivals if arrival.uid not in seen_uids]
    return new, await _show(connection, registration.model, new[-MOST_SHOWN:])


async def _show(
    connection: AsyncConnection, model: int, arrivals: Sequence[Arrival]
) -> list[dict[str, Any]]:
    names = ("uid", "inference_id", "received_at", "indexed_at", "ok", "top_score")
    return [
        {name: arrival.row[name] for name in (*names, "prediction_count")}
        | {"top_label": arrival.top_label}
        for arrival in await read(connection, model, [inference.uid for inference in arrivals])
    ]
