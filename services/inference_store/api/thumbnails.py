"""Thumbnails of inputs: many in one answer, or one; shown while the input is there."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Query
from pydantic import ConfigDict, Field, Strict
from starlette.responses import Response, StreamingResponse

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.index.registrations import Registration
from inference_store.inference.errors import NotFound, NoThumbnail, StoreError
from inference_store.query.lookup import read_visible
from inference_store.query.read import Inference

from .access import Access, Asking
from .answer import JsonAnswer, Shown, encode_json
from .dependencies import looking_up
from .fields import WHOLE, Body
from .http import BYTES, JSON, NDJSON, InferenceId, ModelId
from .problems import Problem, build_body
from .routing import BINARY, Router, make_ref
from .thumbnail_maker import Thumbnail, ThumbnailMaker, ThumbnailResult

MOST_THUMBNAILS: Final = 100
EDGE: Final = 240


class ThumbnailQuery(Body):
    """Which thumbnails."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"uids": ["019ac3f2-7c00-8123-9abc-0123456789ab"], "edge": 240}]
        }
    )

    uids: Annotated[list[UUID], Field(min_length=1, max_length=MOST_THUMBNAILS)]
    """Of inferences of the model."""
    edge: Annotated[int, Strict(), Field(ge=16, le=1024), WHOLE] = EDGE
    """The longer edge has at most so many pixels."""


class ShownThumbnail(Shown):
    """A line: the thumbnail of one inference, or why there is none."""

    uid: UUID
    content_type: str | None = Field(examples=["image/jpeg"])
    width: int | None
    """Of the thumbnail in pixels."""
    height: int | None
    picture_width: int | None
    """Of the picture in pixels."""
    picture_height: int | None
    data: str | None
    """The thumbnail in base64."""
    problem: Problem | None
    """Why there is none, as a refusal would have said."""


class ThumbnailPage(Shown):
    """The same as one object."""

    items: list[ShownThumbnail]


router = Router("inferences")
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


@router.add(
    "POST /models/{model_id}/inferences/thumbnails",
    StreamingResponse,
    Right.READ_INPUTS,
    "Read thumbnails of several inputs",
    404,
    also={200: _LINES},
)
async def query_thumbnails(model_id: ModelId, body: ThumbnailQuery, access: Asking) -> Response:
    """JPEG thumbnails of up to 100 inputs, an object a line: one answer, and one entry of the
    audit. What is no picture has a `problem`. They are made now, or come from the memory of this
    process; they are stored nowhere."""
    uids = list(dict.fromkeys(body.uids))
    registration, results = await _make_thumbnails(access, model_id, uids, body.edge)
    if shown_uids := [str(uid) for uid in uids if isinstance(results[uid], Thumbnail)]:
        access.note_read(
            Action.THUMBNAILS_READ, registration, inferences=shown_uids, edge=body.edge
        )
    lines = [_format_line(uid, results[uid]) for uid in uids]
    if access.request.state.media_type == JSON:
        return JsonAnswer({"items": lines})
    return Response(b"".join(encode_json(line) + b"\n" for line in lines), media_type=NDJSON)


@router.add(
    "GET /models/{model_id}/inferences/{inference_id}/thumbnail",
    StreamingResponse,
    Right.READ_INPUTS,
    "Read the thumbnail of an input",
    404,
    410,
    also={200: _PICTURE},
)
async def get_thumbnail(
    model_id: ModelId,
    inference_id: InferenceId,
    access: Asking,
    edge: Annotated[
        int, Query(ge=16, le=1024, description="The longer edge has at most so many pixels.")
    ] = EDGE,
) -> Response:
    """A JPEG thumbnail of the input of the newest inference of that id."""
    async with looking_up(access) as connection:
        registration, same = await access.find_inferences(connection, model_id, inference_id)
    uid = same.newest
    _, results = await _make_thumbnails(access, model_id, [uid], edge)
    result = results[uid]
    if isinstance(result, StoreError):
        raise result
    access.note_read(Action.THUMBNAILS_READ, registration, [uid], edge=edge)
    return Response(result.jpeg, media_type=access.request.state.media_type)


async def _make_thumbnails(
    access: Access, model_id: str, uids: Sequence[UUID], edge: int
) -> tuple[Registration, dict[UUID, ThumbnailResult]]:
    """Return the thumbnails of inferences that exist, also after they are made; NotFound for the
    others.

    While they are made no connection is held. Raises TooManyQueries.
    """
    app = access.app
    if not app.settings.thumbnail_processes:
        raise NoThumbnail("Thumbnails are switched off (INFERENCE_STORE_THUMBNAIL_PROCESSES=0).")
    maker: ThumbnailMaker = app.thumbnails
    registration, inferences = await _find_inferences(access, model_id, uids)
    results = maker.find_cached(inferences, edge)
    if uncached := [inference for inference in inferences if inference.uid not in results]:
        async with app.thumbnail_admission.admit(access.admission_name):
            results |= await maker.make(uncached, edge)
        registration, inferences = await _find_inferences(access, model_id, uids)
    # again of each: what was deleted meanwhile is not shown
    absent = {uid for uid in uids if uid not in {inference.uid for inference in inferences}}
    results |= maker.find_cached(inferences, edge)
    for uid in absent | {uid for uid, result in results.items() if isinstance(result, StoreError)}:
        maker.forget(registration.model, uid)
    return registration, {uid: _GONE if uid in absent else results[uid] for uid in uids}


async def _find_inferences(
    access: Access, model_id: str, uids: Sequence[UUID]
) -> tuple[Registration, list[Inference]]:
    async with looking_up(access) as connection:
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
