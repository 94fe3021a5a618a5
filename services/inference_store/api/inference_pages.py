"""A page of inferences, from the search to what is shown."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.access import Action
from inference_store.store.blobs import Blobs
from inference_store.store.errors import QueryTimeout
from inference_store.store.metrics import QUERY_TIMEOUTS
from inference_store.store.queries import cursor as cursors
from inference_store.store.queries.bounded import Deadline, OutOfTime
from inference_store.store.queries.hit import Hit
from inference_store.store.queries.matching import Query
from inference_store.store.queries.pages import Page, find_page, to_narrow
from inference_store.store.queries.read import read
from inference_store.store.queries.sort import Sort
from inference_store.store.registrations import Registration
from inference_store.store.rights import Right
from inference_store.store.settings import ApiSettings

from .access import Access
from .asking import asking
from .explaining import explaining
from .schemas.questions import InferenceQuery
from .shown import links, shown

_NOT_THE_QUESTION = {"cursor", "limit", "include", "explain"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of one model or several, ready to be searched."""

    models: Sequence[Registration]
    query: Query
    """Of any of them: the conditions are the same."""
    queries: Sequence[Query]
    sort: Sort
    fingerprint: bytes
    warnings: Sequence[str]


def fingerprint(of: str, body: InferenceQuery) -> bytes:
    """What a cursor is bound to: the question, not the size of its pages."""
    asked = body.model_dump(mode="python", exclude=_NOT_THE_QUESTION)
    return cursors.fingerprint(json.dumps([of, asked], sort_keys=True, default=str))


async def page_of(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    blobs: Blobs,
    settings: ApiSettings,
    body: InferenceQuery,
    asked: Asked,
) -> dict[str, Any]:
    """The page for JSON. Raises QueryTimeout, InvalidCursor; Forbidden for links without right."""
    if "urls" in body.include:
        for each in asked.models:
            access.demand(Right.READ_INPUTS, each)
    with explaining(body.explain) as explained:
        page = await _found(connection, settings, body, asked)
        told = await explained.shown(connection, access, asked.query)
    items = await _items(connection, access, blobs, settings, body, asked.models, page.hits)
    return {
        "items": items,
        "warnings": [*asked.warnings, *asked.sort.warnings],
        "next": page.next,
        "searched_back_to": page.searched_back_to,
        **told,
    }


async def _found(
    connection: AsyncConnection, settings: ApiSettings, body: InferenceQuery, asked: Asked
) -> Page:
    try:
        with asking("page", asked.query):
            page = await find_page(
                connection,
                asked.queries,
                asked.sort,
                fingerprint=asked.fingerprint,
                cursor=body.cursor,
                limit=body.limit,
                deadline=Deadline.after(settings.query_timeout_seconds),
            )
    except OutOfTime:
        QUERY_TIMEOUTS.labels("page").inc()
        raise QueryTimeout(to_narrow(asked.sort)) from None
    if page.searched_back_to is not None:
        QUERY_TIMEOUTS.labels("page").inc()
    return page


async def _items(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    blobs: Blobs,
    settings: ApiSettings,
    body: InferenceQuery,
    models: Sequence[Registration],
    hits: Sequence[Hit],
) -> list[dict[str, Any]]:
    """What is shown of the hits, in their order; one that is gone meanwhile is left out."""
    items: dict[tuple[int, UUID], dict[str, Any]] = {}
    for model in models:
        uids = [hit.uid for hit in hits if hit.model == model.model]
        if not uids:
            continue
        found = await read(connection, model.model, uids, include=body.include)
        for each in found:
            items[model.model, each.uid] = shown(model.model_id, each)
        if "urls" in body.include:
            urls = await links(settings, blobs, model.model_id, found)
            for each, its in zip(found, urls, strict=True):
                items[model.model, each.uid]["urls"] = its
            access.note_read(Action.LINKS_MADE, model, [each.uid for each in found])
    return [items[place] for hit in hits if (place := (hit.model, hit.uid)) in items]
