"""Finds tensors of a classification by common names: they need no mapping."""

from typing import Final

from inference_store.inference.json_text import Json

from .response_reading import is_numeric
from .unwrap import Output, is_tensor, numbers, seems_json

_LABELS: Final = ("label", "labels", "class", "classes")
_SCORES: Final = ("score", "scores", "probability", "probabilities", "confidence")


def find_labels(outputs: list[Output]) -> Output | None:
    """Return the tensor of labels: texts, or indexes of the class labels; None if there is none."""
    return next(
        (output for output in _find_named(outputs, _LABELS) if _are_labels(output.data)), None
    )


def find_scores(outputs: list[Output]) -> list[Output]:
    """Return the tensors of scores, with one per label or one per class."""
    return [output for output in _find_named(outputs, _SCORES) if is_tensor(output.data)]


def find_of_size(outputs: list[Output], size: int) -> Output | None:
    """Return the first tensor that has `size` numbers; None if there is none."""
    return next((output for output in outputs if len(numbers(output.data)) == size), None)


def _find_named(outputs: list[Output], names: tuple[str, ...]) -> list[Output]:
    """Return the outputs with these names, in the order of the names, without names that several
    outputs have."""
    by_name: dict[str, list[Output]] = {}
    for output in outputs:
        by_name.setdefault((output.name or "").lower(), []).append(output)
    return [by_name[name][0] for name in names if len(by_name.get(name, ())) == 1]


def _are_labels(data: Json) -> bool:
    values = numbers(data)
    texts = all(type(value) is str and not seems_json(value) for value in values)
    return bool(values) and (texts or all(map(_is_index, values)))


def _is_index(value: Json) -> bool:
    """Return whether a value is a number from 0 without a fraction, which may also be a float."""
    return is_numeric(value) and str(value).removesuffix(".0").isdecimal()
