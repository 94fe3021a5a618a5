"""The task types in one table: the form of an answer's elements, and their readers."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from .classification import read_classification
from .detection import read_detection
from .keypoints import read_keypoints
from .oriented import read_oriented
from .response_reading import Reading
from .segmentation import read_segmentation
from .tabular import read_tabular
from .text import read_answers, read_generated, read_prompts, read_tokens
from .unwrap import Output

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
