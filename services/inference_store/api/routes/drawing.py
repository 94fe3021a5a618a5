"""The predictions of an inference as shapes over its picture."""

import asyncio

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api.access import Asking, needs
from inference_store.api.answer import InferenceAnswer
from inference_store.api.dependencies import BlobStore, LookingUp, Settings
from inference_store.api.drawing import format_drawing
from inference_store.api.paths import InferenceId, ModelId
from inference_store.api.problems import document_refusals
from inference_store.api.reader_thread import read_in_thread
from inference_store.api.routers import make_router
from inference_store.api.schemas.drawing import ShownDrawing
from inference_store.index.registrations import Registration
from inference_store.inference.errors import BlobMissing, BlobTooLarge, NotFound
from inference_store.inference.events.event import parse_stored
from inference_store.inference.task_types import (
    Outlines,
    PredictionCaps,
    TaskType,
    read_outlines,
    task_type_of,
)
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.query import lookup
from inference_store.query.read import (
    PREDICTIONS,
    Inference,
    get_storage_key,
    is_erased,
    is_input_too,
    read,
)

router = make_router("inferences")


@router.get(
    "/models/{model_id}/inferences/{inference_id}/drawing",
    response_model=ShownDrawing,
    responses=document_refusals(404),
    openapi_extra=needs(Right.READ),
    summary="Read the predictions as shapes",
)
async def get_drawing(  # noqa: PLR0917  (FastAPI calls it by name)
    model_id: ModelId,
    inference_id: InferenceId,
    connection: LookingUp,
    blobs: BlobStore,
    to: Settings,
    access: Asking,
) -> InferenceAnswer:
    """Boxes, oriented boxes, contours and keypoints of the newest inference of that id, in pixels
    of its picture. Contours and keypoints are read from the stored response."""
    registration, extent = await access.find_model_to_query(connection, model_id)
    known_spans = extent.spans
    same = await lookup.find_by_id(connection, registration.model, inference_id, spans=known_spans)
    inferences = await read(connection, registration.model, [same.newest], include=[PREDICTIONS])
    if not inferences:
        raise NotFound(f"The inference {inference_id!r} has just been deleted.")
    [inference] = inferences
    task_type = _find_task_type(inference, registration)
    outlines, problem = Outlines(), None
    if task_type.outlined and inference.prediction_values:
        if is_input_too(inference):
            access.require_right(Right.READ_INPUTS, registration)
            access.note_read(Action.DATA_READ, registration, [inference.uid])
        outlines, problem = await _read_outlines(inference, task_type, blobs, to)
    drawing = format_drawing(inference.row, inference.predictions or [], outlines.found)
    return InferenceAnswer(drawing | {"problem": problem})


def _find_task_type(inference: Inference, registration: Registration) -> TaskType:
    return task_type_of(inference.row["task_type"] or registration.task_type)


async def _read_outlines(
    inference: Inference, task_type: TaskType, blobs: Blobs, to: ApiSettings
) -> tuple[Outlines, str | None]:
    """Return what the response has, and why that is not all."""
    nothing = Outlines()
    if is_erased(inference, "response"):
        return nothing, "The response has been deleted."
    key = get_storage_key(inference, "response")
    if key is None:
        return nothing, "The response is not stored."
    try:
        storage_key, limit = parse_stored(key), to.max_response_bytes
        response = await asyncio.to_thread(blobs.get, storage_key, limit=limit)
    except BlobMissing:
        return nothing, "The response is not in the bucket."
    except BlobTooLarge:
        return nothing, f"The response is over {limit} bytes (INFERENCE_STORE_MAX_RESPONSE_BYTES)."
    caps = PredictionCaps(predictions=to.max_predictions)
    outlines = await read_in_thread(read_outlines, response, task_type=task_type, caps=caps)
    return outlines, _describe_gap(outlines)


def _describe_gap(outlines: Outlines) -> str | None:
    if outlines.capped:
        return f"The contours have more than {outlines.most:,} points: some are left out."
    return None if outlines.found else "The response has no contours or keypoints."
