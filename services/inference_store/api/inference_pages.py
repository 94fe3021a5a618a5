"""A page of inferences, from the search to the answer."""

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
from inference_store.query.pages import Page, describe_narrowing, find_page, make_cursor
from inference_store.query.read import Inference, read
from inference_store.query.sort import Sort, resolve_sort

from .access import Access
from .answer import encode_json
from .explaining import record_query
from .field_selection import DISTANCE, FieldSelection
from .filters import RequestedFilter, read_requested_filter
from .inference_format import build_links, format_inference
from .query_timing import limit_query_time
from .schemas.questions import Conditions, InferenceQuery

# Parts of a body that change neither which inferences match, nor their order.
_NOT_THE_QUESTION = {
    *("cursor", "limit", "include", "fields", "metadata_as"),
    *("timeout_seconds", "explain"),
}
_AS_A_TREE = {"filter", "filter_lang"}


@dataclass(frozen=True, slots=True)
class FormattedPage:
    """Inferences as `format_inference` formats them.

    `cursors`: continue after each, built when needed; `told`: its resolved relative times, and its
    explanation.
    """

    items: Sequence[dict[str, Any]]
    cursors: Iterator[str]
    next: str | None
    searched_back_to: datetime | None
    warnings: Sequence[str]
    told: Mapping[str, Any]

    def body(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return {
            "items": orjson.Fragment(encode_json(self.items, times_fit=True)),
            "warnings": self.warnings,
            "next": self.next,
            "searched_back_to": self.searched_back_to,
            **self.told,
        }


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A query of one model or several, ready to search."""

    models: Sequence[Registration]
    query: Query
    """Of any of them: the conditions are the same."""
    queries: Sequence[Query]
    sort: Sort
    fingerprint: bytes
    warnings: Sequence[str]
    filter: RequestedFilter


async def read_page_filter(body: InferenceQuery) -> RequestedFilter:
    """Read the filter of a page; a later page uses the instant of the first."""
    _, now = (None, None) if body.cursor is None else cursors.unpin(body.cursor)
    return await read_requested_filter(body.filter, body.filter_lang, now=now)


def remove_instant(body: InferenceQuery) -> InferenceQuery:
    """Return the body without the instant in its cursor, which its filter was read with."""
    if body.cursor is None:
        return body
    return body.model_copy(update={"cursor": cursors.unpin(body.cursor)[0]})


async def resolve_page_sort(
    connection: AsyncConnection, models: Models, body: InferenceQuery
) -> Sort:
    """Resolve the order of a page: random for a sample. Raises as `resolve_sort` does."""
    if body.sample is not None:
        return Sort(descending=False, order=AtRandom(body.sample.seed))
    return await resolve_sort(
        connection, models, body.sort, kind=sorted_cursor.find_family(body.cursor)
    )


def compute_fingerprint(of: str, body: InferenceQuery, tree: Node | None) -> bytes:
    """Return what a cursor is bound to: the query, not its page size, nor its spelling."""
    asked = body.model_dump(mode="python", exclude=_NOT_THE_QUESTION | _AS_A_TREE)
    filter = None if tree is None else to_json(tree)
    return cursors.fingerprint(json.dumps([of, asked, filter], sort_keys=True, default=str))


def set_deadline(body: Conditions, settings: ApiSettings) -> Deadline:
    """Return when the query's time is over. Raises Invalid for more time than allowed."""
    most, asked = settings.query_timeout_seconds, body.timeout_seconds
    if asked is not None and asked > most:
        message = f"at most {most:g} (INFERENCE_STORE_QUERY_TIMEOUT_SECONDS)"
        fault = Fault("timeout_seconds", message)
        raise Invalid(f"timeout_seconds is {message}.", faults=[fault])
    return Deadline.after(most if asked is None else asked)


async def build_page(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    blobs: Blobs,
    settings: ApiSettings,
    body: InferenceQuery,
    asked: PageRequest,
) -> FormattedPage:
    """Return the page for JSON.

    Raises QueryTimeout, InvalidCursor; Forbidden for links without the right.
    """
    chosen = FieldSelection.of(body.fields, body.include, body.metadata_as)
    if not isinstance(asked.sort.order, ByDistance):
        chosen.refuse_distance()
    if "urls" in chosen.include:
        for each in asked.models:
            access.require_right(Right.READ_INPUTS, each)
    with record_query(body.explain) as explained:
        # only how the page is found is explained
        include = None if body.explain else chosen.include
        page = await _search(connection, settings, body, asked, include)
        told = await explained.shown(connection, access, asked.query)
    found = await _format_items(connection, access, blobs, settings, chosen, asked.models, page)
    if isinstance(asked.sort.order, ByDistance):
        for hit, item in found:
            item[DISTANCE] = hit.value
    warnings = [*asked.warnings, *asked.sort.warnings]
    if body.cursor is None:
        numbers = [each.model for each in asked.models]
        warnings += await chosen.unknown_keys(connection, numbers)
    pin = asked.filter.pin
    return FormattedPage(
        items=[chosen.pick(item) for _, item in found],
        cursors=(pin(make_cursor(asked.sort, asked.fingerprint, hit)) for hit, _ in found),
        next=None if page.next is None else pin(page.next),
        searched_back_to=page.searched_back_to,
        warnings=warnings,
        told={**asked.filter.told, **told},
    )


async def _search(
    connection: AsyncConnection,
    settings: ApiSettings,
    body: InferenceQuery,
    asked: PageRequest,
    include: Collection[str] | None,
) -> Page:
    until = set_deadline(body, settings)
    if body.timeout_seconds is None:
        until = until.softly(settings.page_seconds)
    with limit_query_time("page", describe_narrowing(asked.sort), asked.query):
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


async def _format_items(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    blobs: Blobs,
    settings: ApiSettings,
    chosen: FieldSelection,
    models: Sequence[Registration],
    page: Page,
) -> list[tuple[Hit, dict[str, Any]]]:
    """Return the hits with their content, in order; those that are deleted meanwhile are left
    out."""
    items: dict[tuple[int, UUID], dict[str, Any]] = {}
    for model in models:
        uids = [hit.uid for hit in page.hits if hit.model == model.model]
        if not uids:
            continue
        found = await _read_inferences(connection, model.model, uids, page, chosen.include)
        for each in found:
            item = format_inference(model.model_id, each, metadata_as=chosen.metadata_as)
            items[model.model, each.uid] = item
        if "urls" in chosen.include:
            urls = await build_links(settings, blobs, model.model_id, found)
            for each, its in zip(found, urls, strict=True):
                items[model.model, each.uid]["urls"] = its
            access.note_read(Action.LINKS_MADE, model, [each.uid for each in found])
    return [(hit, items[place]) for hit in page.hits if (place := (hit.model, hit.uid)) in items]


async def _read_inferences(
    connection: AsyncConnection,
    model: int,
    uids: Sequence[UUID],
    page: Page,
    include: Collection[str],
) -> list[Inference]:
    """Return the inferences of the page, in order; read those that the search has not read."""
    left = [uid for uid in uids if uid not in page.read]
    more = {each.uid: each for each in await read(connection, model, left, include=include)}
    found = {**page.read, **more}
    return [found[uid] for uid in uids if uid in found]
