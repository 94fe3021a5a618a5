"""A response: its outputs, the elements in them, and the predictions that are read from them."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from inference_store.inference.field_docs import Body, Text
from inference_store.inference.json_text import (
    Json,
    Number,
    UnreadableJson,
    exact,
    is_non_finite,
    is_number,
    read_json,
    storable,
    write_json,
)

Point: TypeAlias = tuple[float, float]
MOST_POINTS: Final = 100_000
"""The most points of one response that are drawn."""


class Keypoint(NamedTuple):
    """One place on an object, such as the left knee."""

    place: int
    """Its place in the list of the model; those that the model did not find are left out."""
    point: Point
    score: float | None = None
    name: str | None = None


class Outline(NamedTuple):
    """The drawing of one element, in pixels."""

    contours: tuple[tuple[Point, ...], ...] = ()
    keypoints: tuple[Keypoint, ...] = ()


@dataclass(slots=True)
class Outlines:
    """The outlines of a response, by the ordinal of the prediction."""

    most: int = MOST_POINTS
    found: dict[int, Outline] = field(default_factory=dict)
    points: int = 0
    capped: bool = False
    """Whether an outline was left out, because there would be too many points."""

    def add(self, ordinal: int, outline: Outline) -> None:
        """Keep the outline of an element."""
        points = sum(map(len, outline.contours)) + len(outline.keypoints)
        if self.points + points > self.most:
            self.capped = True
        elif points:
            self.points += points
            self.found[ordinal] = outline


# A named tuple, not a dataclass: several are made an event, each at a third of the cost.
class Prediction(NamedTuple):
    """One element of a response. Floats are finite, texts storable by Postgres."""

    ordinal: int
    """0, 1, 2… in the order of the response."""
    rank: int
    """1 is the best score; equal scores, and those without one (last), by ordinal."""
    output: int
    """Index of the output that it came from."""
    output_name: str | None = None
    label: str | None = None
    score: float | None = None
    xmin: float | None = None
    """Box: pixels, y down. Shares of the size, flagged, while the size is unknown."""
    ymin: float | None = None
    xmax: float | None = None
    ymax: float | None = None
    area: float | None = None
    """Square pixels of the box, the oriented box or the contours; unknown without pixels."""
    cx: float | None = None
    """Oriented box: centre and size as shares of the width and height."""
    cy: float | None = None
    w: float | None = None
    h: float | None = None
    angle: float | None = None
    """Radians, clockwise in pixel space."""
    prompt: str | None = None
    answer: str | None = None
    text: str | None = None
    start: int | None = None
    """Of the text that was given: first character, and the one after the last."""
    end: int | None = None
    value: Decimal | None = None
    """A number that a tabular model answered, exactly."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """All of one inference."""

    items: tuple[Prediction, ...] | None
    """None: unknown, as the response failed, cannot be read, or is of an unknown task type."""
    flags: tuple[str, ...] = ()
    problem: str | None = None
    """The problem and its place, for people."""


@dataclass(frozen=True, slots=True)
class PredictionCaps:
    """Bounds for one inference. What is over them stays in the response's blob."""

    predictions: int = 10_000
    """Predictions that are read, the first ones of the response."""
    text_characters: int = 65_536
    """Characters of a prompt, answer or text; the rest is cut off and flagged."""
    label_characters: int = 256
    """Characters of a label or output name; a longer one is left out and flagged."""
    digits: int = 1_000
    """Digits of a tabular number."""
    exponent: int = 400
    """The largest |exponent| that a tabular number may be written with."""


BoxFormat: TypeAlias = Literal["xyxy", "yxyx", "xywh", "cxcywh"]
Units: TypeAlias = Literal["pixels", "shares"]
Activation: TypeAlias = Literal["none", "softmax", "sigmoid"]


class OutputMapping(Body):
    """How tensors become predictions."""

    boxes: Text | None = None
    """Name of the tensor of boxes, [N, 4]."""
    scores: Text | None = None
    """Name of the tensor of scores, [N]."""
    labels: Text | None = None
    """Name of the tensor of labels, [N]: strings, or indexes of the class labels."""
    class_probabilities: Text | None = None
    """Name of the tensor of one score a class, [N, C], in the order of the class labels."""
    box_format: BoxFormat = "xyxy"
    """Order of a box's four numbers: corners, corners with y first, corner and size, or centre
    and size."""
    units: Units = "pixels"
    """Boxes in pixels, or in shares of the width and height."""
    activation: Activation = "none"
    """What makes scores of the raw numbers: softmax over the classes, or sigmoid of each."""
    batched: bool = False
    """The first dimension of each tensor counts the inputs of the request."""


NO_MAPPING: Final = OutputMapping()


def activate(values: list[float | None], activation: Activation) -> list[float | None]:
    """Return the scores of one row of classes. A row with an unknown number has no softmax."""
    if activation == "sigmoid":
        return [None if value is None else _sigmoid(value) for value in values]
    if activation == "softmax":
        return _softmax(values)
    return values


def _sigmoid(value: float) -> float:
    # Use the formula whose exponential cannot overflow.
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    power = math.exp(value)
    return power / (1 + power)


def _softmax(values: list[float | None]) -> list[float | None]:
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or not numbers:
        return [None] * len(values)
    highest = max(numbers)
    powers = [math.exp(value - highest) for value in numbers]
    total = sum(powers)
    return [power / total for power in powers]


CLASSES: Final = "classPredictions"
_LISTS: Final = (CLASSES, "detections")
_NAMES: Final = {"class": "label", "xMin": "xmin", "xMax": "xmax", "yMin": "ymin", "yMax": "ymax"}


def predictions_in(document: Json) -> tuple[str, list[Json]] | None:
    """Return the list in `{"result": {"classPredictions": [{"class", "score"}]}}`, also under
    `data`: its name, and its elements as `{label, score}`; None for any other document."""
    if not isinstance(document, dict):
        return None
    inner = document.get("data")
    result = document.get("result", inner.get("result") if isinstance(inner, dict) else None)
    for name in _LISTS:
        predictions = result.get(name) if isinstance(result, dict) else None
        if isinstance(predictions, list):
            return name, [_element(prediction) for prediction in predictions]
    return None


def _element(prediction: Json) -> Json:
    if not isinstance(prediction, dict) or "class" not in prediction:
        return prediction
    return {_NAMES.get(name, name): value for name, value in prediction.items()}


_BEGINS_JSON: Final = re.compile(r"\s*[\[{]\s*(?:[\[{\]}\"'0-9-]|\Z)")
# No label begins like this; `[UNK]` and `{other}` are labels.
_LAYERS: Final = 4
"""The most lists and strings around an element that are opened."""
_SOLE: Final = ("output", "predictions", "data")
"""Names of the only output in answers that are not V2."""


class Output(NamedTuple):
    """One output: a tensor or a list of objects."""

    position: int
    name: str | None
    """Unchanged, until `Reading.short` has checked it."""
    data: Json
    datatype: str = ""


def outputs_of(document: Json) -> list[Output]:
    """Return the outputs of an answer. Raises UnreadableResponse."""
    if isinstance(document, list):
        return _list_outputs(document)
    if not isinstance(document, dict):
        return [Output(0, None, [document])]
    if "outputs" in document:
        return _read_v2(document["outputs"])
    for name in _SOLE:
        if name in document:
            return [Output(0, _name(document), document[name], _datatype(document))]
    if "error" in document:
        start = write_json(document["error"])[:200]
        raise UnreadableResponse("response_error", f"the answer is an error: {ascii(start)[1:-1]}")
    return [Output(0, None, document if "result" in document else [document])]


def elements(data: Json, names: Collection[str], layers: int = _LAYERS) -> Iterator[Json]:
    """Yield the elements of an output: nested lists flattened, JSON strings decoded.

    A string is decoded only if it holds objects with one of `names` (any object if there are no
    names): a text that happens to be JSON stays a text. If the elements have labels, Modzy's result
    format is opened, too.
    """
    if layers and isinstance(data, list):
        for element in data:
            if type(element) is list or type(element) is str:
                yield from elements(element, names, layers - 1)
            else:
                yield element
    elif layers and type(data) is str and data.lstrip()[:1] in ("{", "["):
        decoded = _decode(data, names)
        if decoded is None:
            yield data
        else:
            yield from elements(decoded, names, layers - 1)
    else:
        predictions = predictions_in(data) if layers and "label" in names else None
        yield from [data] if predictions is None else predictions[1]


def seems_json(text: str) -> bool:
    """Return whether a text begins like a JSON object or array, complete or not."""
    return _BEGINS_JSON.match(text) is not None


def numbers(data: Json) -> list[Json]:
    """Return all scalars of a tensor in row-major order, whatever its nesting."""
    if isinstance(data, list) and not any(isinstance(element, list) for element in data):
        return data
    flat: list[Json] = []
    waiting = [iter([data])]
    while waiting:
        for element in waiting[-1]:
            if isinstance(element, list):
                waiting.append(iter(element))
                break
            flat.append(element)
        else:
            waiting.pop()
    return flat


def is_tensor(data: Json) -> bool:
    """Return whether the first scalar of nested lists is a number."""
    while isinstance(data, list) and data:
        data = data[0]
    return is_numeric(data)


def _read_v2(outputs: Json) -> list[Output]:
    if isinstance(outputs, dict):  # named tensors without an envelope
        return [Output(i, str(name), data) for i, (name, data) in enumerate(outputs.items())]
    if not isinstance(outputs, list):
        raise UnreadableResponse("response_unreadable", "`outputs` is not a list")
    if all(isinstance(output, dict) and "name" in output for output in outputs):
        return [_output(index, output) for index, output in enumerate(outputs)]
    return _list_outputs(outputs)


def _list_outputs(document: list[Json]) -> list[Output]:
    if document and all(isinstance(item, dict) and "data" in item for item in document):
        return [_output(index, output) for index, output in enumerate(document)]
    return [Output(0, None, document)]


def _output(index: int, output: dict[str, Json]) -> Output:
    if "data" not in output:
        raise UnreadableResponse(
            "response_binary",
            f"output {index} has no `data`: tensors behind the JSON part are not read",
        )
    return Output(index, _name(output), output["data"], _datatype(output))


def _name(output: dict[str, Json]) -> str | None:
    name = output.get("name")
    return name if type(name) is str else None


def _datatype(output: dict[str, Json]) -> str:
    datatype = output.get("datatype")
    return datatype if type(datatype) is str else ""


def _decode(text: str, names: Collection[str]) -> Json:
    try:
        document = read_json(text)
    except UnreadableJson:
        return None
    if "label" in names and (predictions := predictions_in(document)) is not None:
        return predictions[1]
    first = document
    for _ in range(_LAYERS):
        if isinstance(first, list) and first:
            first = first[0]
    if isinstance(first, dict) and not (names and first.keys().isdisjoint(names)):
        return document
    return document if first == [] else None


T = TypeVar("T")
Row: TypeAlias = dict[str, Any]  # columns of a Prediction, without ordinal and rank
_LARGEST_POSITION = 2**31 - 1


class UnreadableResponse(ValueError):
    """The response does not have its task type's shape; `str()` of the error gives the reason."""

    def __init__(self, flag: str, problem: str) -> None:
        super().__init__(problem)
        self.flag = flag


@dataclass(slots=True)
class Reading:
    """The context of one response, and its rows so far."""

    class_labels: Sequence[str]
    mapping: OutputMapping
    width: int | None
    height: int | None
    caps: PredictionCaps
    rows: list[Row] = field(default_factory=list)
    flags: dict[str, None] = field(default_factory=dict)
    unreadable: int = 0
    """Elements without the task type's shape."""
    outlines: Outlines | None = None
    """Receives contours and keypoints; None if they are not needed."""

    def flag(self, name: str) -> None:
        """Add a flag, once."""
        self.flags[name] = None

    def take(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items as long as there is room for their rows; flag that others are left out."""
        for item in items:
            if len(self.rows) >= self.caps.predictions:
                self.flag("predictions_capped")
                return
            yield item

    def add(self, output: Output, **columns: Any) -> None:
        """Add a row of an output."""
        row = {"output": output.position, "output_name": output.name}
        self.rows.append({**row, **columns})

    def number(self, value: Json) -> float | None:
        """Return a finite float; None, flagged, for any other value."""
        if type(value) is float:  # by far the most; orjson returns only finite ones
            if math.isfinite(value):
                return value
        elif value is None:
            return None
        elif type(value) is not int and not _spells_number(value):
            self.flag("not_a_number")
            return None
        else:
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
        self.flag("not_finite")
        return None

    def label(self, value: Json) -> str | None:
        """Return a label; a whole number is looked up in the class labels, if there are any."""
        if type(value) is str:
            return self.short(value)
        if value is None or isinstance(value, (dict, list)):
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        return self.short(self._class_label(str(value)))

    def short(self, text: str | None) -> str | None:
        """Return a text for a dictionary; None, flagged, if it is too long or not storable."""
        if text is None:
            return None
        if len(text) > self.caps.label_characters:
            self.flag("label_too_long")
        elif not storable(text):
            self.flag("text_unstorable")
        else:
            return text
        return None

    def text(self, value: Json) -> str | None:
        """Return any text, cut at the cap; None, flagged, if Postgres cannot store it."""
        if value is None:
            return None
        text = value if type(value) is str else write_json(value)
        if not storable(text):
            self.flag("text_unstorable")
            return None
        if len(text) > self.caps.text_characters:
            self.flag("text_truncated")
            return text[: self.caps.text_characters]
        return text

    def position(self, value: Json) -> int | None:
        """Return a position in a text: a whole number from 0; None, flagged, for any other
        value."""
        number = self.number(value)
        if number is None:
            return None
        if number < 0 or number > _LARGEST_POSITION or number != int(number):
            self.flag("not_a_position")
            return None
        return int(number)

    def decimal(self, value: Json) -> Decimal | None:
        """Return a number exactly as it was written; None, flagged, if it is not finite or over a
        cap."""
        try:
            number = exact(str(value), digits=self.caps.digits, exponent=self.caps.exponent)
        except ValueError:
            self.flag("not_finite" if is_non_finite(str(value)) else "not_a_number")
            return None
        if number is None:
            self.flag("number_too_large")
        return number

    def _class_label(self, text: str) -> str:
        digits = text.removesuffix(".0")  # of a tensor of floats
        index = int(digits) if len(digits) < 10 and digits.isdecimal() else len(self.class_labels)
        return self.class_labels[index] if index < len(self.class_labels) else text

    def predictions(self) -> tuple[Prediction, ...]:
        """Return the rows as ranked predictions."""
        scores = (row.get("score") for row in self.rows)
        keys = [math.inf if score is None else -score for score in scores]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        ranks = [0] * len(keys)
        for rank, ordinal in enumerate(order, start=1):
            ranks[ordinal] = rank
        return tuple(
            Prediction(ordinal, rank, **row)
            for ordinal, (rank, row) in enumerate(zip(ranks, self.rows, strict=True))
        )


def _spells_number(value: Json) -> bool:
    return isinstance(value, str) and (is_number(value) or is_non_finite(value))


def is_numeric(value: Json) -> bool:
    """Return whether a value is a JSON number; a bool is not."""
    return type(value) in (float, int, Number)


def read_elements(
    outputs: Iterable[Output],
    reading: Reading,
    *,
    names: Sequence[str],
    rows: Callable[[Json, Reading], Iterable[Row] | None],
) -> None:
    """Add the rows of each element, until the reading is full. `rows`: None for an element that is
    unreadable."""
    for output in outputs:
        for element in reading.take(elements(output.data, names)):
            found = rows(element, reading)
            if found is None:
                reading.unreadable += 1
                continue
            for row in reading.take(found):
                reading.add(output, **row)


def has_any(element: Json, names: Sequence[str]) -> bool:
    """Return whether an element is an object with any of these names."""
    return isinstance(element, dict) and not element.keys().isdisjoint(names)


def read_labelled(element: dict[str, Json], reading: Reading) -> Row:
    """Return the label and the score of an element."""
    return {
        "label": reading.label(element.get("label")),
        "score": reading.number(element.get("score")),
    }
