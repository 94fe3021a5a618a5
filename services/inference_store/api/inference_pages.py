"""Pages of inferences, from the search to the answer, and inferences as they are shown."""

import asyncio
import json
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.export import columns
from inference_store.export.columns import DISTANCE, Row, is_within
from inference_store.index import key_registry
from inference_store.index.key_registry import Models
from inference_store.index.registrations import Registration
from inference_store.inference.errors import (
    Fault,
    Invalid,
    NotFound,
    QueryTimeout,
    UnknownKey,
)
from inference_store.inference.metadata import KEY_ALIASES, MetadataCaps, decode_entries
from inference_store.inference.nearest import (
    MOST_WARNED,
    describe_alike,
    list_warnings,
    nearest,
    shortened,
)
from inference_store.platform import traces
from inference_store.platform.metrics import QUERY_SECONDS, QUERY_TIMEOUTS
from inference_store.platform.settings import ApiSettings
from inference_store.query import cursor as cursors
from inference_store.query.cql2 import to_json
from inference_store.query.cql2.tree import Node
from inference_store.query.cursor import find_family
from inference_store.query.deadline import Deadline, OutOfTime, Overloaded, find_pieces_of
from inference_store.query.explain import Recording, recording
from inference_store.query.order import AtRandom, ByDistance, Sort, resolve_sort
from inference_store.query.pages import (
    Page,
    describe_narrowing,
    find_matched,
    find_page,
    make_cursor,
)
from inference_store.query.plan import Hit, Query
from inference_store.query.read import (
    BLOBS,
    PREDICTIONS,
    Inference,
    get_storage_key,
    read,
    read_of_several,
)

from .access import Access
from .answer import encode_json
from .conditions import InferenceQuery, RequestedFilter
from .inference_models import FieldSelection, MetadataAs, convert_metadata

_FEW_INFERENCES = 4
"""The links of so few inferences are signed in less time than a thread takes to start."""
# Parts of a body that change neither which inferences match, nor their order.
_NOT_OF_THE_QUERY = {
    *("cursor", "cursors", "limit", "include", "fields", "metadata_as"),
    *("timeout_seconds", "explain"),
}
_FILTER_FIELDS = {"filter", "filter_lang"}
_METADATA: Final = "metadata"
_LONGEST: Final = MetadataCaps().key_characters


def format_inference(
    model_id: str, inference: Inference, *, metadata_as: MetadataAs = "list"
) -> dict[str, Any]:
    """Format an inference for JSON; its times have been through `fit_times`."""
    if metadata_as == "object":
        return columns.format_inference(
            model_id,
            inference,
            show_metadata=lambda stored: convert_metadata(decode_entries(stored)),
        )
    return columns.format_inference(model_id, inference)


async def build_links(
    access: Access, model_id: str, inferences: Collection[Inference]
) -> list[dict[str, str | None]]:
    """Return where each inference's blobs are read: links without a key, or the api's routes."""
    settings, blobs = access.settings, access.blobs
    if settings.presigned_urls == "off":
        return [
            {
                blob: columns.make_blob_path(model_id, inference, blob)
                if get_storage_key(inference, blob)
                else None
                for blob in BLOBS
            }
            for inference in inferences
        ]
    seconds = settings.presigned_url_seconds

    def link_all() -> list[dict[str, str | None]]:
        return [
            columns.link_blobs(blobs, model_id, inference, BLOBS, seconds)
            for inference in inferences
        ]

    if len(inferences) <= _FEW_INFERENCES and settings.s3_access_key.get_secret_value():
        return link_all()
    # without keys in the settings it may have to exchange a token for credentials
    return await asyncio.to_thread(link_all)


async def read_one(
    connection: AsyncConnection, model: Registration, uid: UUID, *, include: Collection[str] = ()
) -> Inference:
    """Return an inference that was found. Raises NotFound if it has been deleted since."""
    inferences = await read(connection, model.model, [uid], include=include)
    if not inferences:
        raise NotFound("The inference has just been deleted.")
    return inferences[0]


@dataclass(frozen=True, slots=True)
class AnsweredPage:
    """The inferences of a page, with what was chosen of them.

    `make_cursor`: continues after the inference with this number; `answer_members`: its resolved
    relative times, and its explanation.
    """

    rows: Sequence[Row]
    selection: FieldSelection
    has_distances: bool
    models: Sequence[int]
    make_cursor: Callable[[int], str]
    next: str | None
    searched_back_to: datetime | None
    warnings: Sequence[str]
    answer_members: Mapping[str, Any]
    shows_cursors: bool = False
    """Whether the body has the cursors."""

    def body(self) -> dict[str, Any]:
        """Return the body of the answer."""
        items = self.format_items()
        if self.shows_cursors:
            items = [item | {"cursor": self.make_cursor(n)} for n, item in enumerate(items)]
        return {
            "items": orjson.Fragment(encode_json(items, times_fit=True)),
            "warnings": self.warnings,
            "next": self.next,
            "searched_back_to": self.searched_back_to,
            **self.answer_members,
        }

    def format_items(self) -> list[dict[str, Any]]:
        """Return the chosen fields of each inference, for JSON."""
        return [self.selection.pick(self._format_item(row)) for row in self.rows]

    def _format_item(self, row: Row) -> dict[str, Any]:
        item = format_inference(row.model_id, row.inference, metadata_as=self.selection.metadata_as)
        if row.urls is not None:
            item["urls"] = row.urls
        if self.has_distances:
            item[DISTANCE] = row.distance
        return item


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A query of one model or several, ready to search."""

    models: Sequence[Registration]
    query: Query
    sort: Sort
    fingerprint: bytes
    warnings: Sequence[str]
    filter: RequestedFilter


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
    how: Any = {"kind": find_family(body.cursor), "unknown_keys": body.unknown_keys}
    return await resolve_sort(connection, models, body.sort, **how)


def compute_fingerprint(of: str, body: InferenceQuery, tree: Node | None) -> bytes:
    """Return what a cursor is bound to: the query, not its page size, nor its spelling."""
    question = body.model_dump(mode="python", exclude=_NOT_OF_THE_QUERY | _FILTER_FIELDS)
    filter = None if tree is None else to_json(tree)
    return cursors.fingerprint(json.dumps([of, question, filter], sort_keys=True, default=str))


class _Timed(Protocol):
    @property
    def timeout_seconds(self) -> float | None: ...


def set_deadline(body: _Timed, settings: ApiSettings) -> Deadline:
    """Return when the query's time is over. Raises Invalid for more time than allowed."""
    most, requested = settings.query_timeout_seconds, body.timeout_seconds
    if requested is not None and requested > most:
        message = f"it is at most {most:g} (INFERENCE_STORE_QUERY_TIMEOUT_SECONDS)"
        raise Invalid.of("timeout_seconds", message)
    return Deadline.after(most if requested is None else requested)


async def build_page(
    connection: AsyncConnection, access: Access, body: InferenceQuery, page_request: PageRequest
) -> AnsweredPage:
    """Return the page.

    Raises QueryTimeout, InvalidCursor, UnknownKey; Forbidden for links without the right.
    """
    selection = FieldSelection.of(body.fields, body.include, body.metadata_as)
    has_distances = isinstance(page_request.sort.order, ByDistance)
    if not has_distances:
        selection.refuse_distance()
    if "urls" in selection.include:
        for model in page_request.models:
            access.require_right(Right.READ_INPUTS, model)
    warnings = [*page_request.warnings, *page_request.sort.warnings]
    if body.cursor is None:
        numbers = [model.model for model in page_request.models]
        warnings += await _check_chosen_keys(connection, numbers, body, selection)
    with recording(body.explain) as recorded:
        page = await _search(connection, access.settings, body, page_request, selection.include)
        explanation = await explain(connection, access, page_request.query, recorded)
    hits = await _read_rows(connection, access, selection, page_request.models, page)
    pin = page_request.filter.pin
    return AnsweredPage(
        rows=[row._replace(distance=hit.value) if has_distances else row for hit, row in hits],
        selection=selection,
        has_distances=has_distances,
        models=[model.model for model in page_request.models],
        make_cursor=lambda number: pin(
            make_cursor(page_request.sort, page_request.fingerprint, hits[number][0])
        ),
        next=None if page.next is None else pin(page.next),
        searched_back_to=page.searched_back_to,
        warnings=warnings,
        answer_members={**page_request.filter.answer_members, **explanation},
        shows_cursors=body.cursors,
    )


async def _search(
    connection: AsyncConnection,
    settings: ApiSettings,
    body: InferenceQuery,
    page_request: PageRequest,
    include: Collection[str],
) -> Page:
    until = set_deadline(body, settings)
    if body.timeout_seconds is None:
        until = until.softly(settings.page_seconds)
    with limit_query_time("page", describe_narrowing(page_request.sort), page_request.query):
        page = await find_page(
            connection,
            page_request.query,
            page_request.sort,
            fingerprint=page_request.fingerprint,
            cursor=body.cursor,
            limit=body.limit,
            deadline=until,
            # only how the page is found is explained
            include=None if body.explain else include,
        )
        if PREDICTIONS in include:
            matched = await find_matched(connection, page_request.query, page.hits, until.whole)
            page = replace(page, matched=matched)
    if page.searched_back_to is not None and until.is_over:
        QUERY_TIMEOUTS.labels("page").inc()
    return page


async def _read_rows(
    connection: AsyncConnection,
    access: Access,
    selection: FieldSelection,
    models: Sequence[Registration],
    page: Page,
) -> list[tuple[Hit, Row]]:
    numbers = {hit.model for hit in page.hits}
    here = [model for model in models if model.model in numbers]
    unread = [hit.uid for hit in page.hits if hit.uid not in page.read]
    more: Sequence[Inference] = ()
    if len(here) == 1:
        more = await read(connection, here[0].model, unread, include=selection.include)
    elif unread:
        of = [model.model for model in here]
        more = await read_of_several(connection, of, unread, include=selection.include)
    inferences = {**page.read, **{inference.uid: inference for inference in more}}
    rows: dict[UUID, Row] = {}
    for model in here:
        uids = [h.uid for h in page.hits if h.model == model.model and h.uid in inferences]
        marked = [inferences[uid].mark(page.matched) for uid in uids]
        urls: Sequence[dict[str, str | None] | None] = [None] * len(uids)
        if "urls" in selection.include:
            urls = await build_links(access, model.model_id, marked)
            access.note_read(Action.LINKS_MADE, model, uids)
        for inference, links in zip(marked, urls, strict=True):
            rows[inference.uid] = Row(model.model_id, inference, urls=links)
    return [(hit, rows[hit.uid]) for hit in page.hits if hit.uid in rows]


async def _check_chosen_keys(
    connection: AsyncConnection, models: Models, body: InferenceQuery, selection: FieldSelection
) -> list[str]:
    """Return warnings about the keys in `fields` that no inference of the models has.

    Raises UnknownKey instead, unless such keys count as empty.
    """
    if not selection.find_parts(_METADATA):  # none is chosen, or all are
        return []
    names = await key_registry.all_names(connection, models)
    paths = {
        key: f"fields[{number}]"
        for number, (field, _, key) in enumerate(name.partition(".") for name in body.fields or ())
        if field == _METADATA and not _is_known(key, names)
    }
    if paths and body.unknown_keys == "refuse":
        raise _refuse(paths, names)
    return list_warnings("No inference of this model has the metadata key", list(paths), names)


def _is_known(key: str, names: Sequence[str]) -> bool:
    key = KEY_ALIASES.get(key, key)
    if len(key) > _LONGEST:  # the names have its beginning
        key = f"{key[: _LONGEST - 1]}…"
    for begin in (key, f"{key}.", f"{key}["):
        position = bisect_left(names, begin)
        if position < len(names) and is_within(names[position], key):
            return True
    return False


def _refuse(paths: dict[str, str], names: Sequence[str]) -> UnknownKey:
    faults = []
    for key, path in list(paths.items())[:MOST_WARNED]:
        near = nearest(key, names, limit=3)
        message = f"there is no metadata key {shortened(key)}; {describe_alike(near)}"
        faults.append(Fault(path, message, near))
    more = len(paths) - len(faults)
    others = f" {more:,} more keys are unknown." if more else ""
    return UnknownKey(f"{faults[0].path}: {faults[0].message}.{others}", faults=faults)


async def explain(
    connection: AsyncConnection, access: Access, query: Query, recorded: Recording | None
) -> Mapping[str, Any]:
    """Return what `explain` adds to an answer: nothing if it was not requested."""
    if recorded is None:
        return {}
    total = len(await find_pieces_of(connection, query.scan_range, newest_first=True))
    how = f"; {recorded.form}" if recorded.form else ""
    recorded.form = f"{query.form}{how}"
    everything = access.sees.is_everything
    return {"explain": recorded.explain(partitions_total=total, estimates=everything)}


@contextmanager
def limit_query_time(kind: str, narrow: str, query: Query) -> Iterator[None]:
    """Surround the statements that find inferences; `kind`: of the question, as `page`.

    Raises QueryTimeout, which says how to `narrow`, if the query took too long; Overloaded, which
    narrowing does not help, if it had little of its time.
    """
    began = time.perf_counter()
    attributes: traces.Attributes = {
        "inference_store.query.kind": kind,
        "inference_store.query.form": query.form,
        "inference_store.query.conditions": len(query.conditions),
    }
    try:
        with traces.span(f"query {kind}", attributes=attributes):
            yield
    except Overloaded:
        raise
    except OutOfTime:
        QUERY_TIMEOUTS.labels(kind).inc()
        raise QueryTimeout(narrow) from None
    finally:
        QUERY_SECONDS.labels(kind, query.form).observe(time.perf_counter() - began)
