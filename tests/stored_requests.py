"""Rebuilds a captured request from what is stored of it, as docs/reference/proxy.md has it."""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from inference_store.proxy.capture.request_pieces import write

_NONE: Final[Mapping[int, Sequence[Any]]] = MappingProxyType({})


def rebuild_messages(
    request: Mapping[str, Any],
    data: Mapping[int, bytes],
    own: Mapping[int, Sequence[Any]] = _NONE,
) -> list[bytes]:
    """Return the messages of a stored request. By batch index: `data` are the data blobs, `own`
    the `parts` of the other inferences.

    Raises ValueError if it was not kept, KeyError if a datum or the parts of one are missing.
    """
    if request.get("messages") is None:
        raise ValueError(f"the request was not kept: {request.get('why')}")
    messages = request["messages"]
    return [b"".join(read_part(part, data, own) for part in parts) for parts in messages]


def read_part(part: Any, data: Mapping[int, bytes], own: Mapping[int, Sequence[Any]]) -> bytes:
    """Return the content of a part. Raises KeyError if its datum or the inference that owns it is
    missing."""
    if isinstance(part, str):
        return part.encode()
    if "base64" in part:
        return b64decode(part["base64"])
    if "of" in part:
        return read_part(own[part["of"]][part["part"]], data, {})
    return write(part, data[part["data"]])
