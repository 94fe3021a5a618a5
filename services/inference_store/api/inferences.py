"""One inference: read, its blobs, its neighbours, erased."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID, uuid4

from fastapi import Query
from pydantic import ConfigDict
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import StreamingResponse

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.erasure.batches import describe_batch
from inference_store.erasure.ledger_entries import Body
from inference_store.erasure.progress import NewErasure, find_erasure
from inference_store.erasure.requests import describe_ids
from inference_store.index.registrations import Registration
from inference_store.inference.content_types import response_type_of
from inference_store.inference.errors import BlobMissing, Conflict, Gone, NotFound
from inference_store.inference.events.event import parse_stored
from inference_store.objects import Blobs, BlobStream
from inference_store.query import lookup
from inference_store.query.order import NEWEST_FIRST, resolve_sort
from inference_store.query.pages import describe_narrowing, find_neighbours
from inference_store.query.preparation import prepare
from inference_store.query.read import Inference, get_storage_key, is_erased, is_input_too, read

from .access import Access, Asking
from .answer import Answer, Shown
from .conditions import Conditions, Include, IncludeOfLink, Sort, read_requested_filter
from .dependencies import LookingUp, Querying
from .erasures import ShownErasure, answer_requested
from .http import ANY, BYTES, INFERENCE, INFERENCES, JSON, InferenceId, ModelId
from .inference_models import InferenceDetail, MetadataAs, Resolved
from .inference_pages import build_links, format_inference, limit_query_time, read_one, set_deadline
from .routing import BINARY, Router, require_type


class NeighbourQuery(Conditions):
    """Conditions, and the inference to look from."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"uid": "019ac3f2-7c00-8123-9abc-0123456789ab", "filter": "NOT ok"}]
        }
    )

    uid: UUID
    """It does not have to match. In order of time it may even have been erased, because a uid is a
    point in time; in any other order it must exist (404)."""
    sort: Sort = NEWEST_FIRST
    """As in a query."""


class Neighbour(Shown):
    """An inference that matches."""

    uid: UUID
    inference_id: str
    received_at: datetime


class Neighbours(Resolved):
    """The nearest matches before and after an inference, in the order of `sort`."""

    before: Neighbour | None
    """Null if there is none, or time ran out."""
    after: Neighbour | None
    complete: bool
    """False if time ran out on one side: a null may be one that was not found yet."""
    warnings: list[str]


router = Router("inferences")
_MOST_ERASED = 100_000
_OfLink = Annotated[
    str | None, Query(max_length=128, description="Of a signed link, which needs no key.")
]
# Content of a stranger must never run as a page of ours.
_INERT = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}


@router.add(f"GET {INFERENCE}", Right.READ, "Read an inference")
async def get_inference(  # noqa: PLR0917  (FastAPI calls it by name)
    model_id: ModelId,
    inference_id: InferenceId,
    connection: LookingUp,
    access: Asking,
    include: Annotated[
        IncludeOfLink | None,
        Query(
            description="What to return beside it. Repeat it, or separate names by commas."
            " Default: `metadata`, `predictions`, and `urls` if the caller may read inputs."
        ),
    ] = None,
    metadata_as: Annotated[
        MetadataAs,
        Query(description="A list of items as they were sent, or an object of typed values."),
    ] = "list",
) -> Answer[InferenceDetail]:
    """The newest inference of that id, how many there are, and links to its blobs."""
    registration, uids = await access.find_inferences(connection, model_id, inference_id)
    included = _choose_include(access, registration, include)
    inference = await read_one(connection, registration, uids[0], include=included)
    item: Any = format_inference(model_id, inference, metadata_as=metadata_as)
    item["count"] = len(uids)
    if "urls" in included:
        access.note_read(Action.LINKS_MADE, registration, [inference.uid])
        [item["urls"]] = await build_links(access, model_id, [inference])
    return Answer(item, revision=inference.row["revision"])


@router.add(f"DELETE {INFERENCE}", Right.DELETE, "Erase an inference", 409, status=202)
async def erase_inference(
    model_id: ModelId, inference_id: InferenceId, access: Asking
) -> Answer[ShownErasure]:
    """Erase every inference with that id and its blobs, including those that another erasure hides.
    Queries stop showing them at once, and the retention service does the rest. GET
    /v1/erasures/{id} shows the progress."""
    new_erasure = NewErasure(uuid4(), "request", "inference", requested_by=access.who.actor)

    async def build_body(connection: AsyncConnection) -> Body:
        registration = await access.find_model(connection, model_id)
        model = registration.model
        most = _MOST_ERASED + 1
        uids = await lookup.find_by_id(connection, model, inference_id, most=most, hidden=True)
        if len(uids) > _MOST_ERASED:
            raise Conflict(
                f"More than {_MOST_ERASED} inferences have the id {inference_id!r}: erase them by"
                " `uid:`, or by a filter."
            )
        noted = {"inference_id": inference_id, "erasure": str(new_erasure.id)}
        await access.note(connection, Action.INFERENCE_ERASED, registration, uids, **noted)
        # what waits for this id, or names it, goes as with a request by ids
        asked = {"asked": describe_ids([inference_id])}
        return await describe_batch(connection, new_erasure, model, uids) | asked

    await access.ledger.write("erasure_batch", build_body, actor=access.who)
    async with access.engine.connect() as connection:
        erasure = await find_erasure(connection, new_erasure.id)
    assert erasure is not None, "its batch made it"
    return await answer_requested(access, erasure)


def _choose_include(
    access: Access, registration: Registration, include: list[Include] | None
) -> list[Include]:
    """Response links would need only `read`; the three are given together."""
    if include is None:
        may = access.has_right(Right.READ_INPUTS, registration)
        return ["metadata", "predictions", "urls"] if may else ["metadata", "predictions"]
    if "urls" in include:
        access.require_right(Right.READ_INPUTS, registration)
    return include


def _add_blob_route(blob: str, right: Right, action: Action | None) -> None:
    async def stream_blob(  # noqa: PLR0917  (FastAPI calls it by name)
        model_id: ModelId,
        inference_id: InferenceId,
        connection: LookingUp,
        access: Asking,
        expires: _OfLink = None,  # noqa: ARG001  (authentication has read them)
        signature: _OfLink = None,  # noqa: ARG001
    ) -> StreamingResponse:
        registration, uids = await access.find_inferences(connection, model_id, inference_id)
        inference = await read_one(connection, registration, uids[0])
        read_as = action
        if blob == "response" and is_input_too(inference):
            access.require_right(Right.READ_INPUTS, registration)
            read_as = Action.DATA_READ
        answer = await _stream_blob(access.blobs, inference, blob)
        require_type(access.request, (answer.media_type or BYTES, BYTES))
        if read_as is not None:
            access.note_read(read_as, registration, [inference.uid])
        return answer

    content = {ANY: {}, BYTES: BINARY}
    stored = {"content": content, "description": f"The {blob} as it was stored."}
    router.add(
        f"GET {INFERENCE}/{blob}",
        right,
        f"Read an inference's {blob}",
        410,
        also={200: stored},
        operation_id=f"get_{blob}",
        description=f"The {blob} blob of the newest inference of that id, with its content type.",
    )(stream_blob)


# The metadata blob may hold the rest of the request: it is an input, as the datum is.
_add_blob_route("data", Right.READ_INPUTS, Action.DATA_READ)
_add_blob_route("response", Right.READ, None)
_add_blob_route("metadata", Right.READ_INPUTS, Action.METADATA_READ)


@router.add(
    f"POST {INFERENCES}/neighbours", Right.READ, "Find the inferences before and after one", 501
)
async def query_neighbours(
    model_id: ModelId, body: NeighbourQuery, connection: Querying, access: Asking
) -> Answer[Neighbours]:
    """The nearest inference before and the nearest after `uid`, in the order of `sort`, that
    satisfy every condition."""
    registration, extent = await access.find_model_to_query(connection, model_id)
    filter = await read_requested_filter(body.filter, body.filter_lang)
    question = body.to_query_request(filter)
    prepared = await prepare(connection, registration.model, question, extent)
    sort = await resolve_sort(connection, registration.model, body.sort)
    with limit_query_time("page", describe_narrowing(sort), prepared.query):
        sides = await find_neighbours(
            connection, prepared.query, sort, body.uid, set_deadline(body, access.settings)
        )
        uids = [uid for uid, _ in sides if uid is not None]
        rows = {i.uid: dict(i.row) for i in await read(connection, registration.model, uids)}
        neighbours = [
            None if uid not in rows else Neighbour.model_validate(rows[uid]) for uid, _ in sides
        ]
    # what was erased meanwhile may have another behind it
    complete = all(
        neighbour is not None or (uid is None and is_sure)
        for neighbour, (uid, is_sure) in zip(neighbours, sides, strict=True)
    )
    return Answer(
        Neighbours(
            before=neighbours[0],
            after=neighbours[1],
            complete=complete,
            warnings=[*prepared.warnings, *sort.warnings],
            **filter.answer_members,
        )
    )


async def _stream_blob(blobs: Blobs, inference: Inference, blob: str) -> StreamingResponse:
    if is_erased(inference, blob):
        raise Gone(f"The {blob} of this inference has been deleted.")
    key = get_storage_key(inference, blob)
    if key is None:
        raise NotFound(f"The inference has no {blob}.")
    try:
        stream = await blobs.stream(parse_stored(key))
    except BlobMissing:
        raise NotFound(f"The object {key} is not in the bucket.") from None
    declared_type = inference.row["data_content_type"] if blob == "data" else None
    if stream.content_type is None and blob == "response":
        stream = await _find_response_type(stream)
    media_type = declared_type or stream.content_type
    if not media_type or not (media_type.isascii() and media_type.isprintable()):
        media_type = BYTES if blob == "data" else JSON  # no header can hold it
    return StreamingResponse(
        stream.pieces, media_type=media_type, headers={**_INERT, "Content-Length": str(stream.size)}
    )


async def _find_response_type(stream: BlobStream) -> BlobStream:
    """Find the type of a response in a segment, which has no types, as the proxy finds it."""
    pieces = aiter(stream.pieces)
    read = await anext(pieces, b"")
    if (content_type := response_type_of(read)) != JSON:
        read += b"".join([piece async for piece in pieces])
        content_type = response_type_of(read)

    async def again() -> AsyncIterator[bytes]:
        yield read
        async for piece in pieces:
            yield piece

    return BlobStream(stream.size, content_type, again())
