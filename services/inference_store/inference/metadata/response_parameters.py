"""What an engine put into its answer's `parameters`: the caller's metadata, and its own remarks."""

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
    """What an engine put into the `parameters` of its answer's root and of every output.

    `metadata` is what it copied from the request, equal copies once; where it is no metadata, and
    of all else, it is the engine's own remark: standard metadata.
    """
    opened = Opened()
    found = _parameters(response) if b'"parameters"' in response else []
    for parameters in found:
        opened.items += [_remark(*each) for each in parameters.items() if each[0] != "metadata"]
    copies = [each["metadata"] for each in found if each.get("metadata")]
    for copy in {write_json(each): each for each in copies}.values():
        _open_copy(copy, opened)
    return opened


def _open_copy(copy: Json, opened: Opened) -> None:
    found = Opened()
    open_envelope(copy, found)
    if not found.items and found.problems:
        opened.items.append(_remark("metadata", copy))
    else:
        opened.items += found.items
        opened.problems += found.problems


def _remark(name: str, value: Json) -> Item:
    return Item(name, None, value, "standard", ("from_response",))


def _parameters(response: bytes) -> list[dict[str, Json]]:
    """The parameters of the root and of every output, nothing in them rounded."""
    try:
        found = list(_holders(read_json(response)))
        if all(type(value) in FAITHFUL for each in found for value in each.values()):
            return found
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
