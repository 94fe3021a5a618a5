"""Thumbnails of inputs: many in one answer, or one."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query, Request
from starlette.responses import Response, StreamingResponse

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api.access import Access, Asking, needs
from inference_store.api.answer import JsonAnswer, encode_json
from inference_store.api.dependencies import looking_up
from inference_store.api.negotiation import BYTES, JSON, NDJSON
from inference_store.api.openapi import BINARY, make_ref
from inference_store.api.paths import InferenceId, ModelId
from inference_store.api.problems import build_body, document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.thumbnails import (
    EDGE,
    ShownThumbnail,
    ThumbnailPage,
    ThumbnailQuery,
)
from inference_store.api.thumbnails.decoder import Thumbnail
from inference_store.api.thumbnails.maker import ThumbnailMaker, ThumbnailResult
from inference_store.index.registrations import Registration
from inference_store.inference.errors import NotFound, NoThumbnail, StoreError
from inference_store.query import lookup
from inference_store.query.lookup import read_visible
from inference_store.query.read import Inference

router = make_router("inferences")
_JPEG = "image/jpeg"
_LINES = {
    "content": {
        NDJSON: {"schema": {"$ref": make_ref(ShownThumbnail)}},
        JSON: {"schema": {"$ref": make_ref(ThumbnailPage)}},
    },
    "description": "A line for each uid, in their order; as JSON all of them in `items`.",
}
_PICTURE = {"content": {_JPEG: BINARY, BYTES: BINARY}, "description": "The thumbnail."}
_GONE = NotFound("The model has no such inference.")


@router.post(
    "/models/{model_id}/inferences/thumbnails",
    response_class=StreamingResponse,
    responses=document_refusals(400, 404, 413, also={200: _LINES}),
    openapi_extra=needs(Right.READ_INPUTS),
    summary="Read thumbnails of several inputs",
)
async def query_thumbnails(
    model_id: ModelId, body: ThumbnailQuery, request: Request, access: Asking
) -> Response:
    """JPEG thumbnails of up to 100 inputs, an object a line: one answer, and one entry of the
    audit. What is no picture has a `problem`. They are made now, or come from the memory of this
    process; they are stored nowhere."""
    uids = list(dict.fromkeys(body.uids))
    registration, results = await _make_thumbnails(request, access, model_id, uids, body.edge)
    if shown_uids := [str(uid) for uid in uids if isinstance(results[uid], Thumbnail)]:
        access.note_read(
            Action.THUMBNAILS_READ, registration, inferences=shown_uids, edge=body.edge
        )
    lines = [_format_line(uid, results[uid]) for uid in uids]
    if request.state.media_type == JSON:
        return JsonAnswer({"items": lines})
    return Response(b"".join(encode_json(line) + b"\n" for line in lines), media_type=NDJSON)


@router.get(
    "/models/{model_id}/inferences/{inference_id}/thumbnail",
    response_class=StreamingResponse,
    responses=document_refusals(404, 410, also={200: _PICTURE}),
    openapi_extra=needs(Right.READ_INPUTS),
    summary="Read the thumbnail of an input",
)
async def get_thumbnail(
    model_id: ModelId,
    inference_id: InferenceId,
    request: Request,
    access: Asking,
    edge: Annotated[
        int, Query(ge=16, le=1024, description="The longer edge has at most so many pixels.")
    ] = EDGE,
) -> Response:
    """A JPEG thumbnail of the input of the newest inference of that id."""
    async with looking_up(request, access) as connection:
        registration, extent = await access.find_model_to_query(connection, model_id)
        known_spans = extent.spans
        same = await lookup.find_by_id(
            connection, registration.model, inference_id, spans=known_spans
        )
    uid = same.newest
    _, results = await _make_thumbnails(request, access, model_id, [uid], edge)
    result = results[uid]
    if isinstance(result, StoreError):
        raise result
    access.note_read(Action.THUMBNAILS_READ, registration, [uid], edge=edge)
    return Response(result.jpeg, media_type=request.state.media_type)


async def _make_thumbnails(
    request: Request, access: Access, model_id: str, uids: Sequence[UUID], edge: int
) -> tuple[Registration, dict[UUID, ThumbnailResult]]:
    """Return the thumbnails of inferences that exist, also after they are made; NotFound for the
    others.

    While they are made no connection is held. Raises TooManyQueries.
    """
    app = request.app
    if not app.state.settings.thumbnail_processes:
        raise NoThumbnail("Thumbnails are switched off (INFERENCE_STORE_THUMBNAIL_PROCESSES=0).")
    maker: ThumbnailMaker = app.state.thumbnails
    registration, inferences = await _find_inferences(request, access, model_id, uids)
    results = maker.find_cached(inferences, edge)
    if uncached := [inference for inference in inferences if inference.uid not in results]:
        async with app.state.thumbnail_admission.admit(access.admission_name):
            results |= await maker.make(uncached, edge)
        registration, inferences = await _find_inferences(request, access, model_id, uids)
    # again of each: what was deleted meanwhile is not shown
    absent = {uid for uid in uids if uid not in {inference.uid for inference in inferences}}
    results |= maker.find_cached(inferences, edge)
    for uid in absent | {uid for uid, result in results.items() if isinstance(result, StoreError)}:
        maker.forget(registration.model, uid)
    return registration, {uid: _GONE if uid in absent else results[uid] for uid in uids}


async def _find_inferences(
    request: Request, access: Access, model_id: str, uids: Sequence[UUID]
) -> tuple[Registration, list[Inference]]:
    async with looking_up(request, access) as connection:
        registration, extent = await access.find_model_to_query(connection, model_id)
        return registration, await read_visible(connection, registration.model, uids, extent.spans)


def _format_line(uid: UUID, result: ThumbnailResult) -> dict[str, Any]:
    if isinstance(result, StoreError):
        empty = dict.fromkeys(ShownThumbnail.model_fields)
        return empty | {"uid": uid, "problem": build_body(result)}
    return {
        "uid": uid,
        "content_type": _JPEG,
        "width": result.size[0],
        "height": result.size[1],
        "picture_width": result.picture[0],
        "picture_height": result.picture[1],
        "data": b64encode(result.jpeg).decode(),
        "problem": None,
    }
