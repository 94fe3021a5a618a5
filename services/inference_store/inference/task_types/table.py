"""The task types in one table: the form of an answer's elements, and their readers."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, TypeAlias

from inference_store.inference.json_text import Json, UnreadableJson, read_exactly, read_json
from inference_store.inference.task_types.classification import read_classes, read_classification
from inference_store.inference.task_types.response import (
    NO_MAPPING,
    Outlines,
    Output,
    OutputMapping,
    PredictionCaps,
    Predictions,
    Reading,
    Row,
    UnreadableResponse,
    has_any,
    is_numeric,
    is_tensor,
    outputs_of,
    read_elements,
    read_labelled,
    seems_json,
)
from inference_store.inference.task_types.shapes import (
    read_detection,
    read_keypoints,
    read_segmentation,
)

_GENERATED: Final = ("generated_text", "summary_text", "translation_text", "text")
_TOKEN: Final = ("entity", "entity_group", "label", "word", "score", "start", "end")
_ANSWER: Final = ("answer", "score", "start", "end")
_PROMPT: Final = ("prompt", "answer")


def _token(element: Json, reading: Reading) -> list[Row] | None:
    if not has_any(element, _TOKEN):
        return None
    entity = element.get("entity_group", element.get("entity", element.get("label")))
    label, text = reading.label(entity), reading.text(element.get("word"))
    return [{"label": label, "text": text, **_read_position(element, reading)}]


def _answer(element: Json, reading: Reading) -> list[Row] | None:
    if type(element) is str:
        return [{"answer": reading.text(element)}]
    if not has_any(element, ("answer",)):
        return None
    return [{"answer": reading.text(element["answer"]), **_read_position(element, reading)}]


def _prompt(element: Json, reading: Reading) -> list[Row] | None:
    if type(element) is str:
        return [{"answer": reading.text(element)}]
    if not has_any(element, _PROMPT):
        return _generated(element, reading)
    return [{name: reading.text(element.get(name)) for name in _PROMPT}]


def _generated(element: Json, reading: Reading) -> list[Row] | None:
    if type(element) is str:
        return [{"text": reading.text(element)}]
    if not has_any(element, _GENERATED):
        return None
    name = next(name for name in _GENERATED if name in element)
    row: Row = {"text": reading.text(_find_text(element[name]))}
    if "score" in element:
        row["score"] = reading.number(element["score"])
    return [row]


def _find_text(generated: Json) -> Json:
    if isinstance(generated, list) and generated:
        generated = generated[-1]
    return generated.get("content") if isinstance(generated, dict) else generated


def _read_position(element: dict[str, Json], reading: Reading) -> Row:
    return {
        "score": reading.number(element.get("score")),
        "start": reading.position(element.get("start")),
        "end": reading.position(element.get("end")),
    }


read_tokens: Final = partial(read_elements, names=_TOKEN, rows=_token)
read_answers: Final = partial(read_elements, names=_ANSWER, rows=_answer)
read_prompts: Final = partial(read_elements, names=(*_PROMPT, *_GENERATED), rows=_prompt)
read_generated: Final = partial(read_elements, names=_GENERATED, rows=_generated)


_SCORED: Final = ("label", "score")


def read_tabular(outputs: list[Output], reading: Reading) -> None:
    """Add rows of value or label per output name; scores if the mapping names class
    probabilities."""
    probabilities = reading.mapping.class_probabilities
    for output in outputs:
        if output.name is not None and output.name == probabilities and is_tensor(output.data):
            read_classes(output, reading)
        else:
            read_elements([output], reading, names=(), rows=partial(_values, output.name))


def _values(name: str | None, element: Json, reading: Reading) -> Iterable[Row]:
    if has_any(element, _SCORED):
        return [read_labelled(element, reading)]
    named = element.items() if isinstance(element, dict) else [(name, element)]
    return (row for name, value in named for row in _value(name, value, reading))


def _value(name: str | None, value: Json, reading: Reading) -> Iterator[Row]:
    if is_numeric(value):
        number, labels = reading.decimal(value), reading.mapping.labels
        label = reading.label(value) if name is not None and name == labels else None
        yield {"output_name": reading.short(name), "value": number, "label": label}
    elif value is None or isinstance(value, (dict, list)) or seems_json(str(value)):
        reading.unreadable += 1
    else:
        yield {"output_name": reading.short(name), "label": reading.label(value)}


_COLUMNS: Final = {"cx": "cx", "cy": "cy", "w": "w", "h": "h", "r": "angle"}
_NAMES: Final = ("label", "score", *_COLUMNS)


def _oriented(element: Json, reading: Reading) -> list[Row] | None:
    if not has_any(element, _NAMES):
        return None
    row = read_labelled(element, reading)
    row |= {column: reading.number(element.get(name)) for name, column in _COLUMNS.items()}
    return [row | _in_pixels(row, reading)]


read_oriented: Final = partial(read_elements, names=_NAMES, rows=_oriented)


def _in_pixels(row: Row, reading: Reading) -> Row:
    """Return the upright box around the rotated one, and the area of the rotated one, in pixels."""
    shares = [row[name] for name in ("cx", "cy", "w", "h", "angle")]
    if any(share is None for share in shares):
        reading.flag("box_incomplete")
        return {}
    if not reading.width or not reading.height:
        reading.flag("size_unknown")
        return {}
    cx, cy, w, h, angle = shares
    x, y, w, h = cx * reading.width, cy * reading.height, w * reading.width, h * reading.height
    cosine, sine = abs(math.cos(angle)), abs(math.sin(angle))
    half_w, half_h = (w * cosine + h * sine) / 2, (w * sine + h * cosine) / 2
    box = {"xmin": x - half_w, "ymin": y - half_h, "xmax": x + half_w, "ymax": y + half_h}
    return {name: reading.number(value) for name, value in (*box.items(), ("area", w * h))}


Reader: TypeAlias = Callable[[list[Output], Reading], None]
_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")
_BOX: Final = ("xmin", "ymin", "xmax", "ymax", "area")


@dataclass(frozen=True, slots=True)
class TaskType:
    """One task type."""

    name: str
    title: str
    element: str
    """The form of one element of the answer."""
    columns: tuple[str, ...]
    """Columns of a prediction that it fills."""
    read: Reader | None
    """Adds rows to the reading; raises UnreadableResponse. None: its answers are not read."""
    vision: bool = False
    """Each input of a request is a datum of its own; else they are arguments of one."""
    accepted: tuple[str, ...] = ()
    """Other names, in lower case with underscores; any case and separator is accepted."""
    outlined: bool = False
    """Its elements have contours or keypoints, which stay in the response."""
    exact: bool = False
    """Numbers are read exactly as they were written."""


def _table(*entries: TaskType) -> Mapping[str, TaskType]:
    return MappingProxyType({entry.name: entry for entry in entries})


TASK_TYPES: Final = _table(
    TaskType(
        "image_classification",
        "Image classification",
        '`{label, score}`, `"label"`, or one number a class',
        ("label", "score"),
        read_classification,
        vision=True,
    ),
    TaskType(
        "object_detection",
        "Object detection",
        "`{label, score, xmin, xmax, ymin, ymax}` in pixels, y down, or tensors",
        ("label", "score", *_BOX),
        read_detection,
        vision=True,
    ),
    TaskType(
        "oriented_object_detection",
        "Oriented object detection",
        "`{label, score, cx, cy, w, h, r}`: shares of the size, r in radians, clockwise",
        ("label", "score", *_BOX, "cx", "cy", "w", "h", "angle"),
        read_oriented,
        vision=True,
    ),
    TaskType(
        "image_segmentation",
        "Image segmentation",
        "`{label, score, contour: [[{x, y}, …], …]}` in pixels",
        ("label", "score", *_BOX),
        read_segmentation,
        vision=True,
        accepted=("instance_segmentation",),
        outlined=True,
    ),
    TaskType(
        "keypoint_detection",
        "Keypoint detection",
        "`{label, score, keypoints: [{x, y, score, name}, …]}` in pixels",
        ("label", "score", *_BOX),
        read_keypoints,
        vision=True,
        accepted=("pose_estimation", "human_pose_estimation", "keypoints"),
        outlined=True,
    ),
    TaskType(
        "image_text_to_text",
        "Image and text to text",
        "`{prompt, answer}`",
        ("prompt", "answer"),
        read_prompts,
        accepted=("imagetext2text", "image_text2text", "image_text_2_text"),
    ),
    TaskType(
        "text_classification",
        "Text classification",
        "`{label, score}`, or `{sequence, labels, scores}`",
        ("label", "score", "text"),
        read_classification,
        accepted=("sentiment_analysis", "zero_shot_classification", "fill_mask"),
    ),
    TaskType(
        "token_classification",
        "Token classification",
        "`{entity or entity_group, score, word, start, end}`",
        ("label", "score", "text", "start", "end"),
        read_tokens,
        accepted=("ner", "named_entity_recognition"),
    ),
    TaskType(
        "text_generation",
        "Text generation",
        "`{generated_text}`, `{summary_text}`, `{translation_text}`, or a string",
        ("text", "score"),
        read_generated,
        accepted=("text2text_generation", "summarization", "translation"),
    ),
    TaskType(
        "question_answering",
        "Question answering",
        "`{answer, score, start, end}`",
        ("answer", "score", "start", "end"),
        read_answers,
    ),
    TaskType(
        "tabular",
        "Tabular",
        "tensors: per output its numbers or labels",
        ("output_name", "value", "label", "score"),
        read_tabular,
        accepted=(
            "tabular_classification",
            "tabular_regression",
            "structured_data_classification",
            "structured_data_regression",
        ),
        exact=True,
    ),
    TaskType("unknown", "Unknown", "anything", (), None),
)

_BY_NAME: Final = MappingProxyType(
    {name: entry for entry in TASK_TYPES.values() for name in (entry.name, *entry.accepted)}
)


def task_type_named(name: str) -> TaskType | None:
    """Return the task type of a name in any accepted spelling; None if there is none."""
    task_type = _BY_NAME.get(name)
    return task_type or _BY_NAME.get(_SEPARATORS.sub("_", name.lower()).strip("_"))


def task_type_of(name: str | None) -> TaskType:
    """Return the task type of a name in any accepted spelling; `unknown` for every other name."""
    return task_type_named(name or "unknown") or TASK_TYPES["unknown"]


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
    reading = Reading(class_labels, output_mapping or NO_MAPPING, width, height, caps)
    try:
        document = _document(response, task_type)
        outputs = [
            output._replace(name=reading.short(output.name)) for output in outputs_of(document)
        ]
        task_type.read(outputs, reading)
    except UnreadableJson as exc:
        return Predictions(None, ("response_unreadable",), f"the response is not JSON: {exc}")
    except UnreadableResponse as exc:
        return Predictions(None, (*reading.flags, exc.flag), str(exc))
    problem = None
    if reading.unreadable:
        problem = f"{reading.unreadable} elements are not {task_type.element}"
        reading.flag("elements_unreadable" if reading.rows else "response_unreadable")
    items = None if problem and not reading.rows else reading.predictions()
    return Predictions(items, tuple(reading.flags), problem)


def read_outlines(
    response: bytes, *, task_type: TaskType, caps: PredictionCaps = _CAPS
) -> Outlines:
    """Return the contours and keypoints of a response, as far as they can be read."""
    outlines = Outlines()
    if task_type.outlined and task_type.read is not None:
        reading = Reading((), NO_MAPPING, None, None, caps, outlines=outlines)
        with suppress(UnreadableJson, UnreadableResponse):
            task_type.read(outputs_of(_document(response, task_type)), reading)
    return outlines


def _document(response: bytes, task_type: TaskType) -> Json:
    read = read_exactly if task_type.exact else read_json
    document = read(response)
    return read(document) if type(document) is str else document
