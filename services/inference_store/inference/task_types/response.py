"""Reads a response as predictions. Never raises on untrusted input."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from inference_store.inference.json_text import Json, UnreadableJson, read_exactly, read_json

from .mapping import OutputMapping
from .outlines import Outlines
from .prediction import PredictionCaps, Predictions
from .response_reading import Reading, UnreadableResponse
from .table import TaskType
from .unwrap import outputs_of

_CAPS: Final = PredictionCaps()


def read_predictions(
    response: bytes | None,
    *,
    task_type: TaskType,
    class_labels: Sequence[str] = (),
    output_mapping: OutputMapping | None = None,
    width: int | None = None,
    height: int | None = None,
    ok: bool | None = None,
    caps: PredictionCaps = _CAPS,
) -> Predictions:
    """Return the predictions of one inference, of all its outputs, in order.

    `width`, `height`: of the image in pixels, None if unknown. `ok`: False for a request that
    failed, whose predictions are unknown.
    """
    if ok is False:
        return Predictions(None, ("response_failed",))
    if response is None or not response.strip():
        return Predictions(None, ("response_missing",))
    if task_type.read is None:
        return Predictions(None, ("task_type_unknown",))
    reading = Reading(class_labels, output_mapping, width, height, caps)
    try:
        document = _document(response, task_type)
        outputs = [
            output._replace(name=reading.short(output.name)) for output in outputs_of(document)
        ]
        task_type.read(outputs, reading)
        return _answer(reading, task_type)
    except UnreadableJson as exc:
        return Predictions(None, ("response_unreadable",), f"the response is not JSON: {exc}")
    except UnreadableResponse as exc:
        return Predictions(None, (*reading.flags, exc.flag), str(exc))


def read_outlines(
    response: bytes, *, task_type: TaskType, caps: PredictionCaps = _CAPS
) -> Outlines:
    """Return the contours and keypoints of a response, as far as they can be read."""
    outlines = Outlines()
    if task_type.outlined and task_type.read is not None:
        reading = Reading((), None, None, None, caps, outlines=outlines)
        with suppress(UnreadableJson, UnreadableResponse):
            task_type.read(outputs_of(_document(response, task_type)), reading)
    return outlines


def _document(response: bytes, task_type: TaskType) -> Json:
    read = read_exactly if task_type.exact else read_json
    document = read(response)
    return read(document) if type(document) is str else document


def _answer(reading: Reading, task_type: TaskType) -> Predictions:
    problem = None
    if reading.unreadable:
        problem = f"{reading.unreadable} elements are not {task_type.element}"
        if not reading.rows:
            raise UnreadableResponse("response_unreadable", problem)
        reading.flag("elements_unreadable")
    return Predictions(reading.predictions(), tuple(reading.flags), problem)
