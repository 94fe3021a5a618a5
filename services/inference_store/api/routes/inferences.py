"""One inference: read, its blobs, erased."""

from collections.abc import Sequence
from typing import Annotated
from uuid import uuid4

from fastapi import Query, Request
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import StreamingResponse

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api.access import Access, Asking, needs
from inference_store.api.answer import Answer, InferenceAnswer
from inference_store.api.dependencies import BlobStore, LedgerOf, LookingUp, Settings
from inference_store.api.erasure_format import show_erasure
from inference_store.api.inference_format import build_links, format_inference
from inference_store.api.negotiation import ANY, BYTES, JSON
from inference_store.api.openapi import BINARY
from inference_store.api.paths import InferenceId, ModelId
from inference_store.api.problems import document_refusals
from inference_store.api.requests import require_type
from inference_store.api.routers import make_router
from inference_store.api.schemas.erasures import ShownErasure
from inference_store.api.schemas.inferences import OneInference
from inference_store.api.schemas.questions import Include, IncludeOfLink
from inference_store.api.typed_metadata import MetadataAs
from inference_store.erasure.ledger import Body
from inference_store.erasure.mark.batches import describe_batch
from inference_store.erasure.progress.erasure import NewErasure, find_erasure
from inference_store.index.registrations import Registration
from inference_store.inference.errors import BlobMissing, Conflict, Gone, NotFound
from inference_store.inference.events.event import parse_stored
from inference_store.objects import Blobs
from inference_store.query import lookup
from inference_store.query.read import Inference, get_storage_key, is_erased, is_input_too, read

router = make_router("inferences")
_ONE = "/models/{model_id}/inferences/{inference_id}"
_MOST_ERASED = 100_000
# Content of a stranger must never run as a page of ours.
_INERT = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}


@router.get(
    _ONE,
    response_model=OneInference,
    responses=document_refusals(404),
    openapi_extra=needs(Right.READ),
    summary="Read an inference",
)
async def get_inference(  # noqa: PLR0917  (FastAPI calls it by name)
    model_id: ModelId,
    inference_id: InferenceId,
    connection: LookingUp,
    blobs: BlobStore,
    to: Settings,
    access: Asking,
    include: Annotated[
        IncludeOfLink | None,
        Query(
            description="What is shown beside it; repeat it, or separate names by commas."
            " Left out: `metadata`, `predictions`, and `urls` where the caller may read inputs.",
        ),
    ] = None,
    metadata_as: Annotated[
        MetadataAs,
        Query(description="A list of items as they came, or an object of typed values by key."),
    ] = "list",
) -> InferenceAnswer:
    """The newest inference of that id, how many there are, and links to its blobs."""
    registration, extent = await access.find_model_to_query(connection, model_id)
    model, included = registration.model, _choose_include(access, registration, include)
    same = await lookup.find_by_id(connection, model, inference_id, spans=extent.spans)
    inference = await _read_inference(connection, model, inference_id, same, included)
    item = format_inference(model_id, inference, metadata_as=metadata_as) | {
        "count": len(same.uids)
    }
    if "urls" in included:
        access.note_read(Action.LINKS_MADE, registration, [inference.uid])
        [item["urls"]] = await build_links(to, blobs, model_id, [inference])
    return InferenceAnswer(item, headers={"ETag": f'"{inference.row["revision"]}"'})


@router.delete(
    _ONE,
    status_code=202,
    response_model=ShownErasure,
    responses=document_refusals(404, 409),
    openapi_extra=needs(Right.DELETE),
    summary="Erase an inference",
)
async def erase_inference(
    model_id: ModelId,
    inference_id: InferenceId,
    request: Request,
    ledger: LedgerOf,
    access: Asking,
) -> Answer:
    """Erase every inference of that id, with its blobs, also what another erasure hides. Queries
    stop showing it at once; the retention service does the rest, and GET /v1/erasures/{id} follows
    it."""
    new_erasure = NewErasure(uuid4(), "request", "inference", requested_by=access.who.actor)

    async def build_body(connection: AsyncConnection) -> Body:
        registration = await access.find_model(connection, model_id)
        model = registration.model
        most = _MOST_ERASED + 1
        same = await lookup.find_by_id(connection, model, inference_id, most=most, hidden=True)
        if len(same.uids) > _MOST_ERASED:
            raise Conflict(
                f"More than {_MOST_ERASED} inferences have the id {inference_id!r}: erase them by"
                " `uid:`, or by a filter."
            )
        noted = {"inference_id": inference_id, "erasure": str(new_erasure.id)}
        await access.note(connection, Action.INFERENCE_ERASED, registration, same.uids, **noted)
        return await describe_batch(connection, new_erasure, model, same.uids)

    await ledger.write("erasure_batch", build_body, actor=access.who)
    async with request.app.state.engine.connect() as connection:
        erasure = await find_erasure(connection, new_erasure.id)
        assert erasure is not None, "its batch made it"
        body = await show_erasure(connection, erasure)
    return Answer(body, status_code=202, headers={"Location": f"/v1/erasures/{new_erasure.id}"})


def _choose_include(
    access: Access, registration: Registration, include: list[Include] | None
) -> list[Include]:
    """Return what to show beside an inference. Raises Forbidden for links that the caller may not
    have.

    Response links would need only `read`; the three are given together.
    """
    if include is None:
        may = access.has_right(Right.READ_INPUTS, registration)
        return ["metadata", "predictions", "urls"] if may else ["metadata", "predictions"]
    if "urls" in include:
        access.require_right(Right.READ_INPUTS, registration)
    return include


def _add_blob_route(blob: str, right: Right, action: Action | None) -> None:
    """Add the route of one of an inference's blobs; `action`: how the audit names its reading."""

    async def stream_blob(  # noqa: PLR0917  (FastAPI calls it by name)
        model_id: ModelId,
        inference_id: InferenceId,
        request: Request,
        connection: LookingUp,
        blobs: BlobStore,
        access: Asking,
    ) -> StreamingResponse:
        registration, extent = await access.find_model_to_query(connection, model_id)
        model = registration.model
        same = await lookup.find_by_id(connection, model, inference_id, spans=extent.spans)
        inference = await _read_inference(connection, model, inference_id, same, ())
        read_as = action
        if blob == "response" and is_input_too(inference):
            access.require_right(Right.READ_INPUTS, registration)
            read_as = Action.DATA_READ
        answer = await _stream_blob(blobs, inference, blob)
        require_type(request, (answer.media_type or BYTES, BYTES))
        if read_as is not None:
            access.note_read(read_as, registration, [inference.uid])
        return answer

    content = {ANY: {}, BYTES: BINARY}
    stored = {"content": content, "description": f"The {blob} as it was stored."}
    router.get(
        f"{_ONE}/{blob}",
        response_class=StreamingResponse,
        responses=document_refusals(404, 410, also={200: stored}),
        openapi_extra=needs(right),
        summary=f"Read an inference's {blob}",
        operation_id=f"get_{blob}",
        description=f"The {blob} blob of the newest inference of that id, with its content type.",
    )(stream_blob)


# The metadata blob may hold the rest of the request: it is an input, as the datum is.
_add_blob_route("data", Right.READ_INPUTS, Action.DATA_READ)
_add_blob_route("response", Right.READ, None)
_add_blob_route("metadata", Right.READ_INPUTS, Action.METADATA_READ)


async def _read_inference(
    connection: AsyncConnection,
    model: int,
    inference_id: str,
    same: lookup.Same,
    include: Sequence[Include],
) -> Inference:
    inferences = await read(connection, model, [same.newest], include=include)
    if not inferences:
        raise NotFound(f"The inference {inference_id!r} has just been deleted.")
    return inferences[0]


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
    return StreamingResponse(
        stream.pieces,
        media_type=_find_media_type(declared_type or stream.content_type, blob),
        headers={**_INERT, "Content-Length": str(stream.size)},
    )


def _find_media_type(content_type: str | None, blob: str) -> str:
    """Return the content type, if a header can hold it."""
    if content_type and content_type.isascii() and content_type.isprintable():
        return content_type
    return BYTES if blob == "data" else JSON
