"""Object detection: `{label, score, xmin, ymin, xmax, ymax}`, or tensors of boxes and scores."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from inference_store.inference.json_text import Json

from .activation import activate
from .mapping import BoxFormat, Units
from .response_reading import Reading
from .unwrap import Output, elements, numbers

Box: TypeAlias = tuple[float | None, float | None, float | None, float | None]
Labelled: TypeAlias = tuple[str | None, float | None]
_LEGACY: Final = "detection_boxes"
_NAMES: Final = ("label", "score", "box", _LEGACY, "xmin", "ymin", "xmax", "ymax")


def read_detection(outputs: list[Output], reading: Reading) -> None:
    """Add rows of label, score, box and area."""
    by_name = {output.name: output for output in outputs if output.name is not None}
    mapping = reading.mapping
    if mapping is not None and mapping.boxes is not None and mapping.boxes in by_name:
        _add_tensors(by_name, reading)
    elif _LEGACY in by_name:
        data = {name: output.data for name, output in by_name.items()}
        _add_legacy(by_name[_LEGACY], data, reading)
    else:
        for output in outputs:
            _add_objects(output, reading)


def _add_objects(output: Output, reading: Reading) -> None:
    units: Units = reading.mapping.units if reading.mapping else "pixels"
    for element in elements(output.data, _NAMES):
        if reading.full():
            return
        if not isinstance(element, dict):
            reading.unreadable += 1
        elif _LEGACY in element:
            _add_legacy(output, element, reading)
        elif not element.keys().isdisjoint(_NAMES):
            labelled = reading.label(element.get("label")), reading.number(element.get("score"))
            _add(output, reading, labelled, read_corners(element, reading), units)
        else:
            reading.unreadable += 1


def read_corners(element: dict[str, Json], reading: Reading) -> Box:
    """Return the corners of a box in an element, or in its `box`."""
    inner = element.get("box")  # the Hugging Face pipeline nests the corners one level deeper
    corners, number = inner if isinstance(inner, dict) else element, reading.number
    return (
        number(corners.get("xmin")),
        number(corners.get("ymin")),
        number(corners.get("xmax")),
        number(corners.get("ymax")),
    )


def _add_legacy(output: Output, data: dict[str, Json], reading: Reading) -> None:
    """Add rows of `detection_boxes` as [ymin, xmin, ymax, xmax], and its three companions."""
    boxes = _boxes(data[_LEGACY], "yxyx", reading)
    count = numbers(data.get("num_detections"))
    box_count = reading.number(count[0]) if count else None
    if box_count is not None and 0 <= box_count < len(boxes):
        boxes = boxes[: int(box_count)]
    units: Units = reading.mapping.units if reading.mapping else _guess_units(boxes, reading)
    labels = numbers(data.get("detection_classes"))
    scores = numbers(data.get("detection_scores"))
    for index, box in enumerate(boxes):
        if reading.full():
            return
        labelled = reading.label(_at(labels, index)), reading.number(_at(scores, index))
        _add(output, reading, labelled, box, units)


def _add_tensors(by_name: dict[str, Output], reading: Reading) -> None:
    """Add rows of tensors by the registration's output mapping."""
    mapping = reading.mapping
    if mapping is None or mapping.boxes is None:
        return
    output = by_name[mapping.boxes]
    boxes = _boxes(output.data, mapping.box_format, reading)
    labels, scores = _labels_and_scores(by_name, len(boxes), reading)
    for index, box in enumerate(boxes):
        if reading.full():
            return
        _add(output, reading, (labels[index], scores[index]), box, mapping.units)


def _labels_and_scores(
    by_name: dict[str, Output], count: int, reading: Reading
) -> tuple[list[str | None], list[float | None]]:
    mapping = reading.mapping
    if mapping is None:
        return [None] * count, [None] * count
    classes = _values(by_name, mapping.class_probabilities)
    labels: list[str | None]
    scores: list[float | None]
    if count and classes and len(classes) % count == 0:
        labels, scores = _best_classes(classes, len(classes) // count, reading)
    else:
        _expect(not classes, reading)
        labels, scores = [None] * count, [None] * count
    if values := _values(by_name, mapping.labels):
        _expect(len(values) == count, reading)
        labels = [reading.label(_at(values, index)) for index in range(count)]
    if values := _values(by_name, mapping.scores):
        _expect(len(values) == count, reading)
        raw = [reading.number(_at(values, index)) for index in range(count)]
        # A softmax is over classes: scores of one number per box have none.
        scores = activate(raw, "sigmoid" if mapping.activation == "sigmoid" else "none")
    return labels, scores


def _best_classes(
    values: list[Json], classes: int, reading: Reading
) -> tuple[list[str | None], list[float | None]]:
    """Return the class with the highest score of each box, and the score."""
    labels: list[str | None] = []
    best: list[float | None] = []
    activation = reading.mapping.activation if reading.mapping else "none"
    for first in range(0, len(values), classes):
        row = [reading.number(value) for value in values[first : first + classes]]
        scores = activate(row, activation)
        ranked = [(score, -index) for index, score in enumerate(scores) if score is not None]
        score, index = max(ranked, default=(None, None))
        best.append(score)
        labels.append(None if index is None else reading.label(-index))
    return labels, best


def _boxes(data: Json, form: BoxFormat, reading: Reading) -> list[Box]:
    values = numbers(data) if data is not None else []
    _expect(len(values) % 4 == 0, reading)
    count = min(len(values) // 4, reading.caps.predictions + 1)
    four = (
        _corners([reading.number(value) for value in values[first : first + 4]], form)
        for first in range(0, count * 4, 4)
    )
    if form in ("xyxy", "yxyx"):
        return list(four)
    number = reading.number  # sizes added to corners may be beyond a float
    return [(number(a), number(b), number(c), number(d)) for a, b, c, d in four]


def _corners(four: Sequence[float | None], form: BoxFormat) -> Box:
    a, b, c, d = four
    if form == "xyxy":
        return a, b, c, d
    if form == "yxyx":
        return b, a, d, c
    if a is None or b is None or c is None or d is None:
        return None, None, None, None
    if form == "xywh":
        return a, b, a + c, b + d
    return a - c / 2, b - d / 2, a + c / 2, b + d / 2


def _add(output: Output, reading: Reading, labelled: Labelled, box: Box, units: Units) -> None:
    box, pixels = (box, True) if units == "pixels" else _in_pixels(box, reading)
    xmin, ymin, xmax, ymax = box
    reading.rows.append(
        {
            "output": output.position,
            "output_name": output.name,
            "label": labelled[0],
            "score": labelled[1],
            "xmin": xmin,
            "ymin": ymin,
            "xmax": xmax,
            "ymax": ymax,
            "area": measure_box(box, reading) if pixels else None,
        }
    )


def _in_pixels(box: Box, reading: Reading) -> tuple[Box, bool]:
    width, height = reading.width, reading.height
    if not width or not height:
        reading.flag("box_in_shares")
        return box, False
    xmin, ymin, xmax, ymax = box
    return (
        _scale(xmin, width, reading),
        _scale(ymin, height, reading),
        _scale(xmax, width, reading),
        _scale(ymax, height, reading),
    ), True


def _scale(share: float | None, size: int, reading: Reading) -> float | None:
    return None if share is None else reading.number(share * size)


def measure_box(box: Box, reading: Reading) -> float | None:
    """Return a box's square pixels; None, flagged, if a corner is missing or the box is
    inverted."""
    xmin, ymin, xmax, ymax = box
    if xmin is None or ymin is None or xmax is None or ymax is None:
        reading.flag("box_incomplete")
        return None
    if xmax < xmin or ymax < ymin:
        reading.flag("box_inverted")
        return None
    return reading.number((xmax - xmin) * (ymax - ymin))


def _guess_units(boxes: list[Box], reading: Reading) -> Units:
    """Return the units of boxes without a mapping: if all are within 0 and 1, they cannot be
    pixels."""
    coordinates = [number for box in boxes for number in box if number is not None]
    if not coordinates or not all(0 <= number <= 1 for number in coordinates):
        return "pixels"
    reading.flag("box_units_assumed")
    return "shares"


def _values(by_name: dict[str, Output], name: str | None) -> list[Json]:
    return numbers(by_name[name].data) if name in by_name and name is not None else []


def _at(values: list[Json], index: int) -> Json:
    return values[index] if index < len(values) else None


def _expect(holds: bool, reading: Reading) -> None:
    if not holds:
        reading.flag("tensor_mismatch")
