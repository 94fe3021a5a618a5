"""Classification: `{label, score}`, bare labels, or one number per class."""

from collections.abc import Iterable, Iterator
from typing import Final

from inference_store.inference.json_text import Json
from inference_store.inference.task_types.response import (
    Output,
    Reading,
    Row,
    UnreadableResponse,
    activate,
    has_any,
    is_numeric,
    is_tensor,
    numbers,
    read_elements,
    seems_json,
)

_NAMES: Final = ("label", "score", "labels", "scores", "token_str")


def read_classification(outputs: list[Output], reading: Reading) -> None:
    """Add rows of label and score."""
    mapping = reading.mapping
    if labels := _find_output(outputs, mapping.labels):
        _add_labelled(labels, _find_output(outputs, mapping.scores), reading)
        return
    if mapping.class_probabilities is not None:
        probabilities = _find_output(outputs, mapping.class_probabilities)
        outputs = [probabilities] if probabilities else outputs
    elif _read_named(outputs, reading):
        return
    for output in outputs:
        if is_tensor(output.data):
            read_classes(output, reading)
        else:
            read_elements([output], reading, names=_NAMES, rows=_classified)


def _read_named(outputs: list[Output], reading: Reading) -> bool:
    """Add rows of tensors with common names; return False if there are none, or they do not fit."""
    labels = find_labels(outputs)
    # with one number per label or one per class
    scores = [output for output in _find_named(outputs, _SCORES) if is_tensor(output.data)]
    of_classes = find_of_size(scores, len(reading.class_labels)) if reading.class_labels else None
    if labels is None:
        if of_classes is not None and all(is_tensor(output.data) for output in outputs):
            read_classes(of_classes, reading)
            return True
        return False
    count = len(numbers(labels.data))
    if not scores and is_tensor(labels.data) and 1 < count == len(reading.class_labels):
        return False  # one number per class, whatever its name
    paired = find_of_size(scores, count)
    if paired is None and of_classes is not None:
        read_classes(of_classes, reading)
        return True
    if paired is None and scores:
        reading.flag("tensor_mismatch")
    _add_labelled(labels, paired, reading)
    return True


def read_classes(output: Output, reading: Reading) -> None:
    """Add rows of a tensor: one number per class, [C] or [N, C], or indexes of classes."""
    values = numbers(output.data)
    classes = len(reading.class_labels)
    by_index = output.datatype.startswith(("INT", "UINT")) or (len(values) == 1 and classes > 1)
    if by_index and len(values) != classes and all(map(_is_whole, values)):
        for value in reading.take(values):
            reading.add(output, label=reading.label(value), score=None)
        return
    if not classes:
        reading.flag("no_class_labels")
        classes = _last_dimension(output.data)
    if len(values) % classes:
        raise UnreadableResponse(
            "class_labels_mismatch",
            f"output {output.position} has {len(values)} numbers, the model {classes} class labels",
        )
    for first in range(0, len(values), classes):
        row = [reading.number(value) for value in values[first : first + classes]]
        for index, score in reading.take(enumerate(activate(row, reading.mapping.activation))):
            names = reading.class_labels
            label = reading.short(names[index]) if names else str(index)
            reading.add(output, label=label, score=score)


def _classified(element: Json, reading: Reading) -> Iterable[Row] | None:
    if isinstance(element, dict) and isinstance(element.get("labels"), list):
        return _zero_shot(element["labels"], element.get("scores"), reading)
    if has_any(element, ("label", "token_str")):
        label = reading.label(element.get("label", element.get("token_str")))
        score, text = reading.number(element.get("score")), element.get("sequence")
        return [{"label": label, "score": score, "text": reading.text(text)}]
    if type(element) is str and not seems_json(element):
        return [{"label": reading.label(element)}]
    return None


def _zero_shot(labels: list[Json], scores: Json, reading: Reading) -> Iterator[Row]:
    for index, label in enumerate(labels):
        score = scores[index] if isinstance(scores, list) and index < len(scores) else None
        yield {"label": reading.label(label), "score": reading.number(score)}


def _add_labelled(labels: Output, scores: Output | None, reading: Reading) -> None:
    values = numbers(scores.data) if scores else []
    for index, label in reading.take(enumerate(numbers(labels.data))):
        score = reading.number(values[index]) if index < len(values) else None
        reading.add(labels, label=reading.label(label), score=score)


def _find_output(outputs: list[Output], name: str | None) -> Output | None:
    return next((output for output in outputs if name is not None and output.name == name), None)


def _is_whole(value: Json) -> bool:
    return is_numeric(value) and str(value).isdecimal()


def _last_dimension(data: Json) -> int:
    while isinstance(data, list) and data and isinstance(data[0], list):
        data = data[0]
    return max(1, len(data)) if isinstance(data, list) else 1


_LABELS: Final = ("label", "labels", "class", "classes")
_SCORES: Final = ("score", "scores", "probability", "probabilities", "confidence")


def find_labels(outputs: list[Output]) -> Output | None:
    """Return the tensor of labels: texts, or indexes of the class labels; None if there is none."""
    return next(
        (output for output in _find_named(outputs, _LABELS) if _are_labels(output.data)), None
    )


def find_of_size(outputs: list[Output], size: int) -> Output | None:
    """Return the first tensor that has `size` numbers; None if there is none."""
    return next((output for output in outputs if len(numbers(output.data)) == size), None)


def _find_named(outputs: list[Output], names: tuple[str, ...]) -> list[Output]:
    by_name: dict[str, list[Output]] = {}
    for output in outputs:
        by_name.setdefault((output.name or "").lower(), []).append(output)
    return [by_name[name][0] for name in names if len(by_name.get(name, ())) == 1]


def _are_labels(data: Json) -> bool:
    values = numbers(data)
    texts = all(type(value) is str and not seems_json(value) for value in values)
    # indexes from 0 may also be floats without a fraction
    return bool(values) and (
        texts
        or all(is_numeric(value) and str(value).removesuffix(".0").isdecimal() for value in values)
    )
