"""Reads the `parameters` of an engine's answer: the caller's metadata, and its own remarks."""

from collections.abc import Iterator

from inference_store.inference.json_text import (
    Json,
    UnreadableJson,
    read_exactly,
    read_json,
    write_json,
)

from .document import FAITHFUL
from .envelope import Item, Opened, open_envelope


def open_response(response: bytes) -> Opened:
    """Return the `parameters` of the root of an engine's answer and of every output.

    `metadata` is copied from the request, and equal copies count once; if it is not metadata, it is
    the engine's own remark like all other parameters: standard metadata.
    """
    opened = Opened()
    all_parameters = _read_parameters(response) if b'"parameters"' in response else []
    for parameters in all_parameters:
        opened.items += [
            _remark(name, value) for name, value in parameters.items() if name != "metadata"
        ]
    copies = [parameters["metadata"] for parameters in all_parameters if parameters.get("metadata")]
    for copy in {write_json(copy): copy for copy in copies}.values():
        _open_copy(copy, opened)
    return opened


def _open_copy(copy: Json, opened: Opened) -> None:
    opened_copy = Opened()
    open_envelope(copy, opened_copy)
    if not opened_copy.items and opened_copy.problems:
        opened.items.append(_remark("metadata", copy))
    else:
        opened.items += opened_copy.items
        opened.problems += opened_copy.problems


def _remark(name: str, value: Json) -> Item:
    return Item(name, None, value, "standard", ("from_response",))


def _read_parameters(response: bytes) -> list[dict[str, Json]]:
    """Return the parameters of the root and of every output, without rounding."""
    try:
        holders = list(_holders(read_json(response)))
        if all(type(value) in FAITHFUL for holder in holders for value in holder.values()):
            return holders
        return list(_holders(read_exactly(response)))
    except UnreadableJson:
        return []


def _holders(document: Json) -> Iterator[dict[str, Json]]:
    if not isinstance(document, dict):
        return
    outputs = document.get("outputs")
    for holder in [document, *(outputs if isinstance(outputs, list) else [])]:
        if isinstance(holder, dict) and isinstance(holder.get("parameters"), dict):
            yield holder["parameters"]
