"""Which inferences, and how many."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.api.access import Access, Asking, GuardedRoute, needs
from inference_store.api.answer import Answer
from inference_store.api.asking import asking
from inference_store.api.dependencies import BlobStore, Reading, Settings
from inference_store.api.paths import ModelId
from inference_store.api.problems import refusals
from inference_store.api.schemas.inferences import InferenceCount, InferencePage
from inference_store.api.schemas.links import InferenceLink
from inference_store.api.schemas.questions import Conditions, InferenceQuery
from inference_store.api.shown import links, shown
from inference_store.store.access import Action
from inference_store.store.blobs import Blobs
from inference_store.store.errors import QueryTimeout
from inference_store.store.events.uid import received_at_of
from inference_store.store.metrics import QUERY_TIMEOUTS
from inference_store.store.queries import cursor as cursors
from inference_store.store.queries.ask import prepare
from inference_store.store.queries.bounded import Deadline, OutOfTime
from inference_store.store.queries.count import count as count_matches
from inference_store.store.queries.page import Found, find
from inference_store.store.queries.read import read
from inference_store.store.rights import Right
from inference_store.store.settings import ApiSettings

router = APIRouter(route_class=GuardedRoute, tags=["inferences"])
_NARROW = "The query took too long: narrow received_at, or add a condition that fewer match."


@router.post(
    "/models/{model_id}/inferences/query",
    response_model=InferencePage,
    responses=refusals(400, 404, 413),
    openapi_extra=needs(Right.READ),
    summary="Query inferences",
)
async def query_inferences(  # noqa: PLR0917  (FastAPI calls it by name)
    model_id: ModelId,
    body: InferenceQuery,
    connection: Reading,
    blobs: BlobStore,
    to: Settings,
    access: Asking,
) -> Answer:
    """A page of the inferences that satisfy every condition, in order of time."""
    return Answer(await _page(connection, access, model_id, body, blobs, to))


@router.get(
    "/models/{model_id}/inferences",
    response_model=InferencePage,
    responses=refusals(404),
    openapi_extra=needs(Right.READ),
    summary="List inferences",
)
async def list_inferences(  # noqa: PLR0917  (FastAPI calls it by name)
    model_id: ModelId,
    link: Annotated[InferenceLink, Query()],
    connection: Reading,
    blobs: BlobStore,
    to: Settings,
    access: Asking,
) -> Answer:
    """The query as a link, as far as it fits into one."""
    return Answer(await _page(connection, access, model_id, link.query(), blobs, to))


@router.post(
    "/models/{model_id}/inferences/count",
    response_model=InferenceCount,
    responses=refusals(400, 404, 413),
    openapi_extra=needs(Right.READ),
    summary="Count inferences",
)
async def count_inferences(
    model_id: ModelId, body: Conditions, connection: Reading, to: Settings, access: Asking
) -> Answer:
    """How many inferences satisfy every condition, exactly."""
    model = (await access.model(connection, model_id)).model
    asked = await prepare(connection, model, body.question())
    deadline = Deadline.after(to.query_timeout_seconds)
    try:
        with asking("count", asked.query):
            number = await count_matches(connection, asked.query, deadline=deadline)
    except OutOfTime:
        QUERY_TIMEOUTS.labels("count").inc()
        raise QueryTimeout(_NARROW) from None
    return Answer({"count": number, "warnings": asked.warnings})


async def _page(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    model_id: str,
    body: InferenceQuery,
    blobs: Blobs,
    settings: ApiSettings,
) -> dict[str, Any]:
    registration = await access.model(connection, model_id)
    model = registration.model
    if "urls" in body.include:
        access.demand(Right.READ_INPUTS, registration)
    newest_first = body.sort == "-received_at"
    asked = await prepare(connection, model, body.question(newest_first=newest_first))
    fingerprint, query = _fingerprint(model_id, body), asked.query
    if body.cursor is not None:
        after = cursors.decode(fingerprint, body.cursor)
        query = query.after(after)
    deadline = Deadline.after(settings.query_timeout_seconds)
    try:
        with asking("page", query):
            found = await find(connection, query, limit=body.limit + 1, deadline=deadline)
    except OutOfTime:
        QUERY_TIMEOUTS.labels("page").inc()
        raise QueryTimeout(_NARROW) from None
    shown_uids = found.uids[: body.limit]
    inferences = await read(connection, model, shown_uids, include=body.include)
    items = [shown(model_id, each) for each in inferences]
    if "urls" in body.include:
        urls = await links(settings, blobs, model_id, inferences)
        for item, each in zip(items, urls, strict=True):
            item["urls"] = each
        access.note_read(Action.LINKS_MADE, registration, [each.uid for each in inferences])
    return {"items": items, "warnings": asked.warnings, **_next(found, body.limit, fingerprint)}


def _next(found: Found, limit: int, fingerprint: bytes) -> dict[str, Any]:
    """Where the next page begins, and how far a search came whose time ran out."""
    if len(found.uids) > limit:
        following = cursors.encode(fingerprint, found.uids[limit - 1])
        return {"next": following, "searched_back_to": None}
    if found.out_of_time and found.searched is not None:
        QUERY_TIMEOUTS.labels("page").inc()
        return {
            "next": cursors.encode(fingerprint, found.searched),
            "searched_back_to": received_at_of(found.searched),
        }
    return {"next": None, "searched_back_to": None}


def _fingerprint(model_id: str, body: InferenceQuery) -> bytes:
    """What the cursor is bound to: the question, not the size of its pages."""
    asked = body.model_dump(mode="python", exclude={"cursor", "limit", "include"})
    return cursors.fingerprint(json.dumps([model_id, asked], sort_keys=True, default=str))
