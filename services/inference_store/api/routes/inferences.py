"""One inference: read, its blobs, erased."""

from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import StreamingResponse

from inference_store.api.answer import Answer, named
from inference_store.api.dependencies import BlobStore, Reading, Settings, Writing
from inference_store.api.paths import InferenceId, ModelId
from inference_store.api.problems import refusals
from inference_store.api.requests import ExactRoute
from inference_store.api.schemas.inferences import OneInference
from inference_store.api.schemas.questions import Include
from inference_store.api.schemas.retention import ShownErasure
from inference_store.api.shown import links, shown, storage_key
from inference_store.store import registrations
from inference_store.store.blobs import Blobs
from inference_store.store.errors import BlobMissing, Conflict, Gone, NotFound
from inference_store.store.events.storage_key import parse_stored
from inference_store.store.queries import lookup
from inference_store.store.queries.read import Inference, read
from inference_store.store.retention import erasures

router = APIRouter(route_class=ExactRoute, tags=["inferences"])
_ONE = "/models/{model_id}/inferences/{inference_id}"
_MOST_ERASED = 100_000
# What a stranger stored is never run as a page of ours.
_INERT = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}


@router.get(_ONE, response_model=OneInference, responses=refusals(404), summary="Read an inference")
async def get_inference(  # noqa: PLR0917  (FastAPI calls it by name)
    model_id: ModelId,
    inference_id: InferenceId,
    connection: Reading,
    blobs: BlobStore,
    to: Settings,
    include: Annotated[
        list[Include],
        Query(max_length=8, description="What is shown beside it; may be repeated."),
    ] = ["metadata", "predictions", "urls"],  # noqa: B006  (FastAPI copies it)
) -> Answer:
    """The newest inference of that id, how many there are, and links to its blobs."""
    model = (await registrations.get(connection, model_id)).model
    same = await lookup.by_id(connection, model, inference_id)
    inference = await _read(connection, model, inference_id, same, include)
    found = shown(model_id, inference) | {"count": len(same.uids)}
    if "urls" in include:
        [found["urls"]] = await links(to, blobs, model_id, [inference])
    return Answer(found, headers={"ETag": f'"{inference.row["revision"]}"'})


@router.delete(
    _ONE,
    status_code=202,
    response_model=ShownErasure,
    responses=refusals(404, 409),
    summary="Erase an inference",
)
async def erase_inference(
    model_id: ModelId, inference_id: InferenceId, connection: Writing
) -> Answer:
    """Erase every inference of that id, with its blobs. Queries stop showing it at once; the
    retention service does the rest, and GET /v1/erasures/{id} follows it."""
    model = (await registrations.get(connection, model_id)).model
    same = await lookup.by_id(connection, model, inference_id, most=_MOST_ERASED + 1)
    if len(same.uids) > _MOST_ERASED:
        raise Conflict(
            f"More than {_MOST_ERASED} inferences have the id {inference_id!r}: erase them by"
            " `uid:`, or let a retention policy do it."
        )
    erasure = await erasures.request(connection, model=model, uids=same.uids)
    body = named(erasure, "model") | {"model_id": model_id}
    return Answer(body, status_code=202, headers={"Location": f"/v1/erasures/{erasure.id}"})


def _stream(blob: str) -> None:
    """Add the route of one of an inference's blobs."""

    async def stream_blob(
        model_id: ModelId, inference_id: InferenceId, connection: Reading, blobs: BlobStore
    ) -> StreamingResponse:
        model = (await registrations.get(connection, model_id)).model
        same = await lookup.by_id(connection, model, inference_id)
        inference = await _read(connection, model, inference_id, same, ())
        return await _streamed(blobs, inference, blob)

    stored = {"content": {"*/*": {}}, "description": f"The {blob} as it was stored."}
    router.get(
        f"{_ONE}/{blob}",
        response_class=StreamingResponse,
        responses=refusals(404, 410, also={200: stored}),
        summary=f"Read an inference's {blob}",
        operation_id=f"get_{blob}",
        description=f"The {blob} blob of the newest inference of that id, with its content type.",
    )(stream_blob)


for _blob in ("data", "response", "metadata"):
    _stream(_blob)


async def _read(
    connection: AsyncConnection,
    model: int,
    inference_id: str,
    same: lookup.Same,
    include: list[Include] | tuple[()],
) -> Inference:
    found = await read(connection, model, [same.newest], include=include)
    if not found:
        raise NotFound(f"The inference {inference_id!r} has just been deleted.")
    return found[0]


async def _streamed(blobs: Blobs, inference: Inference, blob: str) -> StreamingResponse:
    if blob == "data" and inference.input_erased:
        raise Gone("The data of this inference has been deleted.")
    key = storage_key(inference, blob)
    if key is None:
        raise NotFound(f"The inference has no {blob}.")
    try:
        found = await blobs.stream(parse_stored(key))
    except BlobMissing:
        raise NotFound(f"The object {key} is not in the bucket.") from None
    given = inference.row["data_content_type"] if blob == "data" else None
    return StreamingResponse(
        found.pieces,
        media_type=_media_type(given or found.content_type, blob),
        headers={**_INERT, "Content-Length": str(found.size)},
    )


def _media_type(told: str | None, blob: str) -> str:
    """The content type, if a header can hold it."""
    if told and told.isascii() and told.isprintable():
        return told
    return "application/octet-stream" if blob == "data" else "application/json"
