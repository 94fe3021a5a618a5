"""The predictions of an inference as shapes over its picture.

Boxes come from the index, contours and keypoints from the stored response.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from pydantic import Field

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.inference.errors import BlobMissing, BlobTooLarge
from inference_store.inference.events.event import parse_stored
from inference_store.inference.task_types import (
    Outline,
    Outlines,
    PredictionCaps,
    TaskType,
    read_outlines,
    task_type_of,
)
from inference_store.query.read import (
    PREDICTIONS,
    Inference,
    get_storage_key,
    is_erased,
    is_input_too,
)

from .access import Access, Asking
from .answer import Answer, Shown
from .dependencies import LookingUp
from .http import INFERENCE, InferenceId, ModelId, read_in_thread
from .inference_pages import read_one
from .routing import Router


class ShownBox(Shown):
    """An upright box in pixels, y down."""

    xmin: float
    ymin: float
    xmax: float
    ymax: float


class RotatedBox(Shown):
    """A rotated box, as the model returned it."""

    cx: float
    """The centre and the size are shares of the picture's width and height."""
    cy: float
    w: float
    h: float
    angle: float
    """Radians, clockwise in pixel space."""


class ShownKeypoint(Shown):
    """A keypoint; its place is in `points`."""

    index: int
    """Its place in the model's list; keypoints that the model did not find are left out."""
    name: str | None
    score: float | None


class ShownShape(Shown):
    """One shape. Of a prediction with several contours, each is a shape."""

    kind: Literal["box", "oriented_box", "polygon", "keypoints"]
    ordinal: int
    """Its prediction's place in the response."""
    rank: int
    """1: the best score."""
    label: str | None
    score: float | None
    points: list[tuple[float, float]] = Field(examples=[[[80, 40], [120, 40], [120, 90]]])
    """x and y of each. Boxes have four corners, clockwise from the top left one; polygons and boxes
    are closed. Empty for an oriented box of a picture whose size is not known."""
    keypoints: list[ShownKeypoint] | None
    """One for each point; null for other kinds."""
    box: ShownBox | None
    """The upright box around it; null if unknown."""
    oriented: RotatedBox | None
    """Set for an oriented box."""


class ShownDrawing(Shown):
    """The predictions of an inference as shapes, in the order of the response."""

    uid: UUID
    width: int | None
    """The width of the picture in pixels, from the event; null if the event has none."""
    height: int | None
    units: Literal["pixels", "shares"]
    """`shares` of the width and height: the size was not known when the boxes were read."""
    shapes: list[ShownShape]
    without_shape: int
    """How many predictions have no shape, such as a label of the whole picture or an incomplete
    box."""
    problem: str | None = Field(examples=[None])
    """Why contours or keypoints are missing and boxes are in their place; null if none is
    missing."""


router = Router("inferences")
_CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
_ROTATED: Final = ("cx", "cy", "w", "h", "angle")
_IN_SHARES: Final = "box_in_shares"


@router.add(f"GET {INFERENCE}/drawing", Right.READ, "Read the predictions as shapes")
async def get_drawing(
    model_id: ModelId, inference_id: InferenceId, connection: LookingUp, access: Asking
) -> Answer[ShownDrawing]:
    """Boxes, oriented boxes, contours and keypoints of the newest inference of that id, in pixels
    of its picture. Contours and keypoints are read from the stored response."""
    registration, uids = await access.find_inferences(connection, model_id, inference_id)
    inference = await read_one(connection, registration, uids[0], include=[PREDICTIONS])
    task_type = task_type_of(inference.row["task_type"] or registration.task_type)
    outlines, problem = Outlines(), None
    if task_type.outlined and inference.prediction_values:
        if is_input_too(inference):
            access.require_right(Right.READ_INPUTS, registration)
            access.note_read(Action.DATA_READ, registration, [inference.uid])
        outlines, problem = await _read_outlines(access, inference, task_type)
    drawing = _format_drawing(inference.row, inference.predictions or [], outlines.found)
    return Answer(drawing | {"problem": problem})


async def _read_outlines(
    access: Access, inference: Inference, task_type: TaskType
) -> tuple[Outlines, str | None]:
    nothing, to = Outlines(), access.settings
    if is_erased(inference, "response"):
        return nothing, "The response has been deleted."
    key = get_storage_key(inference, "response")
    if key is None:
        return nothing, "The response is not stored."
    try:
        storage_key, limit = parse_stored(key), to.max_response_bytes
        response = await asyncio.to_thread(access.blobs.get, storage_key, limit=limit)
    except BlobMissing:
        return nothing, "The response is not in the bucket."
    except BlobTooLarge:
        return nothing, f"The response is over {limit} bytes (INFERENCE_STORE_MAX_RESPONSE_BYTES)."
    caps = PredictionCaps(predictions=to.max_predictions)
    outlines = await read_in_thread(read_outlines, response, task_type=task_type, caps=caps)
    if outlines.capped:
        return outlines, f"The contours have more than {outlines.most:,} points: some are left out."
    return outlines, None if outlines.found else "The response has no contours or keypoints."


Predicted: TypeAlias = Mapping[str, Any]


def _format_drawing(
    row: Any, predicted: Sequence[Predicted], outlines: Mapping[int, Outline]
) -> Any:
    width, height = row["width"], row["height"]
    size = (width, height) if width and height else None
    shapes: list[dict[str, Any]] = []
    without_shape = 0
    for prediction in sorted(predicted, key=lambda item: int(item["ordinal"])):
        drawn = list(_draw(prediction, outlines.get(prediction["ordinal"], Outline()), size))
        shapes += drawn
        without_shape += not drawn
    return {
        "uid": row["uid"],
        "width": width,
        "height": height,
        "units": "shares" if _IN_SHARES in row["flags"] else "pixels",
        "shapes": shapes,
        "without_shape": without_shape,
    }


def _draw(
    prediction: Predicted, outline: Outline, size: tuple[int, int] | None
) -> Iterator[dict[str, Any]]:
    if outline.keypoints:
        keypoints = [
            {"index": k.place, "name": k.name, "score": k.score} for k in outline.keypoints
        ]
        yield _format_shape(
            "keypoints",
            prediction,
            [keypoint.point for keypoint in outline.keypoints],
            keypoints=keypoints,
        )
    elif outline.contours:
        for contour in outline.contours:
            yield _format_shape("polygon", prediction, contour)
    elif all(prediction[name] is not None for name in _ROTATED):
        rotated = {name: prediction[name] for name in _ROTATED}
        points = [] if size is None else _rotate(rotated, *size)
        yield _format_shape("oriented_box", prediction, points, oriented=rotated)
    elif (box := _get_box(prediction)) is not None:
        left, top, right, bottom = box.values()
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        yield _format_shape("box", prediction, corners)


def _format_shape(
    kind: str, prediction: Predicted, points: Any, *, keypoints: Any = None, oriented: Any = None
) -> dict[str, Any]:
    return {
        "kind": kind,
        **{name: prediction[name] for name in ("ordinal", "rank", "label", "score")},
        "points": points,
        "keypoints": keypoints,
        "box": _get_box(prediction),
        "oriented": oriented,
    }


def _get_box(prediction: Predicted) -> dict[str, float] | None:
    box = {name: prediction[name] for name in _CORNERS}
    return None if None in box.values() else box


def _rotate(box: dict[str, float], width: int, height: int) -> list[tuple[float, float]]:
    """Return the corners in pixels: the box is turned there, not among shares."""
    x, y = box["cx"] * width, box["cy"] * height
    half_w, half_h = box["w"] * width / 2, box["h"] * height / 2
    cosine, sine = math.cos(box["angle"]), math.sin(box["angle"])
    corners = [(-half_w, -half_h), (half_w, -half_h), (half_w, half_h), (-half_w, half_h)]
    return [(x + a * cosine - b * sine, y + a * sine + b * cosine) for a, b in corners]
