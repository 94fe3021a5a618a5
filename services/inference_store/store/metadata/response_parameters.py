"""What an engine put into its answer's `parameters`: the caller's metadata, and its own remarks."""

from collections.abc import Iterator

from inference_store.store.json_text import (
    Json,
    UnreadableJson,
    read_exactly,
    read_json,
    write_json,
)

from .document import FAITHFUL
from .envelope import Item, Opened


def from_response(response: bytes) -> bytes | None:
    """The metadata that an engine copied into its answer, to be read when no blob has any.

    From `parameters.metadata` of the root and of every output, in that order; equal ones once.
    None when there is none, or the answer is not JSON. To be given to `read_metadata`.
    """
    if b'"metadata"' not in response:
        return None
    envelopes = dict.fromkeys(
        write_json(parameters["metadata"])
        for parameters in _parameters(response)
        if parameters.get("metadata")
    )
    if not envelopes:
        return None
    text = next(iter(envelopes)) if len(envelopes) == 1 else f"[{', '.join(envelopes)}]"
    return text.encode("utf-8", "backslashreplace")  # a lone surrogate as its JSON escape


def open_parameters(response: bytes, opened: Opened) -> None:
    """Add all other parameters of an answer to `opened`, as standard metadata."""
    for parameters in _parameters(response):
        for name, value in parameters.items():
            if name != "metadata":
                opened.items.append(Item(name, None, value, "standard", ("from_response",)))


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
