"""A page of inferences, from the search to what is shown."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.index.key_registry import Models
from inference_store.index.registrations import Registration
from inference_store.inference.errors import Fault, Invalid
from inference_store.objects import Blobs
from inference_store.platform.metrics import QUERY_TIMEOUTS
from inference_store.platform.settings import ApiSettings
from inference_store.query import cursor as cursors
from inference_store.query import sorted_cursor
from inference_store.query.bounded import Deadline
from inference_store.query.by_distance import ByDistance
from inference_store.query.cql2 import to_json
from inference_store.query.cql2.tree import Node
from inference_store.query.hit import Hit
from inference_store.query.matching import Query
from inference_store.query.order import AtRandom
from inference_store.query.pages import Page, cursor_after, find_page, to_narrow
from inference_store.query.read import Inference, read
from inference_store.query.sort import Sort, resolve

from .access import Access
from .answer import encoded
from .asking import in_time
from .chosen import DISTANCE, Chosen
from .explaining import explaining
from .filters import AskedFilter, ask_filter
from .schemas.questions import Conditions, InferenceQuery
from .shown import links, shown

# What of a body does not change which inferences match, nor their order.
_NOT_THE_QUESTION = {
    *("cursor", "limit", "include", "fields", "metadata_as"),
    *("timeout_seconds", "explain"),
}
_AS_A_TREE = {"filter", "filter_lang"}


@dataclass(frozen=True, slots=True)
class ShownPage:
    """Inferences as `shown` makes them. `cursors`: of each, what goes on after it, made when it is
    taken; `told`: what its relative times are, and what explains it."""

    items: Sequence[dict[str, Any]]
    cursors: Iterator[str]
    next: str | None
    searched_back_to: datetime | None
    warnings: Sequence[str]
    told: Mapping[str, Any]

    def body(self) -> dict[str, Any]:
        """As an answer has it."""
        return {
            "items": orjson.Fragment(encoded(self.items, times_fit=True)),
            "warnings": self.warnings,
            "next": self.next,
            "searched_back_to": self.searched_back_to,
            **self.told,
        }


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
    filter: AskedFilter


async def filter_of(body: InferenceQuery) -> AskedFilter:
    """The filter of a page; of one that goes on with the instant of the first page."""
    _, now = (None, None) if body.cursor is None else cursors.unpin(body.cursor)
    return await ask_filter(body.filter, body.filter_lang, now=now)


def unpinned(body: InferenceQuery) -> InferenceQuery:
    """The same without the instant in its cursor, which its filter has been read with."""
    if body.cursor is None:
        return body
    return body.model_copy(update={"cursor": cursors.unpin(body.cursor)[0]})


async def sort_of(connection: AsyncConnection, models: Models, body: InferenceQuery) -> Sort:
    """The order of a page: at random for a sample. Raises as `resolve` does."""
    if body.sample is not None:
        return Sort(descending=False, order=AtRandom(body.sample.seed))
    return await resolve(connection, models, body.sort, kind=sorted_cursor.find_family(body.cursor))


def fingerprint(of: str, body: InferenceQuery, tree: Node | None) -> bytes:
    """What a cursor is bound to: the question, not the size of its pages, nor its spelling."""
    asked = body.model_dump(mode="python", exclude=_NOT_THE_QUESTION | _AS_A_TREE)
    filter = None if tree is None else to_json(tree)
    return cursors.fingerprint(json.dumps([of, asked, filter], sort_keys=True, default=str))


def deadline(body: Conditions, settings: ApiSettings) -> Deadline:
    """When the query's time is over. Raises Invalid for more time than there is."""
    most, asked = settings.query_timeout_seconds, body.timeout_seconds
    if asked is not None and asked > most:
        message = f"at most {most:g} (INFERENCE_STORE_QUERY_TIMEOUT_SECONDS)"
        fault = Fault("timeout_seconds", message)
        raise Invalid(f"timeout_seconds is {message}.", faults=[fault])
    return Deadline.after(most if asked is None else asked)


async def page_of(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    blobs: Blobs,
    settings: ApiSettings,
    body: InferenceQuery,
    asked: Asked,
) -> ShownPage:
    """The page for JSON. Raises QueryTimeout, InvalidCursor; Forbidden for links without right."""
    chosen = Chosen.of(body.fields, body.include, body.metadata_as)
    if not isinstance(asked.sort.order, ByDistance):
        chosen.refuse_distance()
    if "urls" in chosen.include:
        for each in asked.models:
            access.demand(Right.READ_INPUTS, each)
    with explaining(body.explain) as explained:
        # what is explained is only how they are found
        include = None if body.explain else chosen.include
        page = await _found(connection, settings, body, asked, include)
        told = await explained.shown(connection, access, asked.query)
    found = await _items(connection, access, blobs, settings, chosen, asked.models, page)
    if isinstance(asked.sort.order, ByDistance):
        for hit, item in found:
            item[DISTANCE] = hit.value
    warnings = [*asked.warnings, *asked.sort.warnings]
    if body.cursor is None:
        numbers = [each.model for each in asked.models]
        warnings += await chosen.unknown_keys(connection, numbers)
    pin = asked.filter.pin
    return ShownPage(
        items=[chosen.pick(item) for _, item in found],
        cursors=(pin(cursor_after(asked.sort, asked.fingerprint, hit)) for hit, _ in found),
        next=None if page.next is None else pin(page.next),
        searched_back_to=page.searched_back_to,
        warnings=warnings,
        told={**asked.filter.told, **told},
    )


async def _found(
    connection: AsyncConnection,
    settings: ApiSettings,
    body: InferenceQuery,
    asked: Asked,
    include: Collection[str] | None,
) -> Page:
    until = deadline(body, settings)
    if body.timeout_seconds is None:
        until = until.softly(settings.page_seconds)
    with in_time("page", to_narrow(asked.sort), asked.query):
        page = await find_page(
            connection,
            asked.queries,
            asked.sort,
            fingerprint=asked.fingerprint,
            cursor=body.cursor,
            limit=body.limit,
            deadline=until,
            include=include,
        )
    if page.searched_back_to is not None and until.is_over:
        QUERY_TIMEOUTS.labels("page").inc()
    return page


async def _items(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    blobs: Blobs,
    settings: ApiSettings,
    chosen: Chosen,
    models: Sequence[Registration],
    page: Page,
) -> list[tuple[Hit, dict[str, Any]]]:
    """What is shown of the hits, in their order; one that is gone meanwhile is left out."""
    items: dict[tuple[int, UUID], dict[str, Any]] = {}
    for model in models:
        uids = [hit.uid for hit in page.hits if hit.model == model.model]
        if not uids:
            continue
        found = await _read(connection, model.model, uids, page, chosen.include)
        for each in found:
            item = shown(model.model_id, each, metadata_as=chosen.metadata_as)
            items[model.model, each.uid] = item
        if "urls" in chosen.include:
            urls = await links(settings, blobs, model.model_id, found)
            for each, its in zip(found, urls, strict=True):
                items[model.model, each.uid]["urls"] = its
            access.note_read(Action.LINKS_MADE, model, [each.uid for each in found])
    return [(hit, items[place]) for hit in page.hits if (place := (hit.model, hit.uid)) in items]


async def _read(
    connection: AsyncConnection,
    model: int,
    uids: Sequence[UUID],
    page: Page,
    include: Collection[str],
) -> list[Inference]:
    """Those of the page, in their order; the ones that were not read as they were found."""
    left = [uid for uid in uids if uid not in page.read]
    more = {each.uid: each for each in await read(connection, model, left, include=include)}
    found = {**page.read, **more}
    return [found[uid] for uid in uids if uid in found]
