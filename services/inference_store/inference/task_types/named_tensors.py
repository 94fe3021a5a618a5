"""Tensors of a classification whose common names say what they are: no mapping is needed."""

from typing import Final

from inference_store.inference.json_text import Json

from .reading import is_numeric
from .unwrap import Output, is_tensor, numbers, seems_json

_LABELS: Final = ("label", "labels", "class", "classes")
_SCORES: Final = ("score", "scores", "probability", "probabilities", "confidence")


def labels_among(outputs: list[Output]) -> Output | None:
    """The tensor of labels: texts, or indexes of the class labels. None: there is none."""
    return next((each for each in _called(outputs, _LABELS) if _are_labels(each.data)), None)


def scores_among(outputs: list[Output]) -> list[Output]:
    """The tensors of scores, of one a label or of one a class."""
    return [each for each in _called(outputs, _SCORES) if is_tensor(each.data)]


def of_size(outputs: list[Output], size: int) -> Output | None:
    """The first tensor that has so many numbers."""
    return next((each for each in outputs if len(numbers(each.data)) == size), None)


def _called(outputs: list[Output], names: tuple[str, ...]) -> list[Output]:
    """Those of these names, in the order of the names; none that several outputs have."""
    by_name: dict[str, list[Output]] = {}
    for each in outputs:
        by_name.setdefault((each.name or "").lower(), []).append(each)
    return [by_name[name][0] for name in names if len(by_name.get(name, ())) == 1]


def _are_labels(data: Json) -> bool:
    values = numbers(data)
    texts = all(type(each) is str and not seems_json(each) for each in values)
    return bool(values) and (texts or all(map(_is_index, values)))


def _is_index(value: Json) -> bool:
    """A number from 0 without a fraction, as a tensor of floats may have it too."""
    return is_numeric(value) and str(value).removesuffix(".0").isdecimal()
