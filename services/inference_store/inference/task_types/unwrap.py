"""Unwraps answers: V2 outputs, bare lists, nested lists, JSON strings."""

import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from inference_store.inference.json_text import Json, UnreadableJson, read_json, write_json

from .modzy import predictions_in
from .response_reading import UnreadableResponse, is_numeric

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
    """Return the objects in a string, if they have the given names; else None."""
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
