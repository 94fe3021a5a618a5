"""Reads requests and answers from V2's JSON documents, and from the flat ones of `generate`."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from inference_store.inference import json_spans
from inference_store.inference.json_spans import Span
from inference_store.inference.json_text import UnreadableJson, read_json
from inference_store.proxy.protocols.protocol import MOST_ERROR
from inference_store.proxy.protocols.tensors import BYTES, InferRequest, InferResponse, Tensor

_MOST_TENSORS: Final = 4096
_MOST_DIMENSIONS: Final = 32
_MOST_SHAPE: Final = 4096
_NOT_TENSORS: Final = ("id", "parameters", "model_name", "model_version", "error")


class NotV2(ValueError):
    """Not a document of V2; `str()` of the error gives the reason."""


class Document:
    """A JSON object and the spans of its members. Raises UnreadableJson, NotV2."""

    def __init__(self, text: bytes) -> None:
        read_json(text)
        self.text = text
        self._members = json_spans.by_name(text, json_spans.root(text))
        if not text.lstrip().startswith(b"{"):
            raise NotV2("it is no JSON object")

    def read_text(self, name: str) -> str | None:
        """Return a member as text; a number as it was written. None if it is absent or null."""
        span = self._members.get(name)
        return None if span is None else _read_text(self.text[span.start : span.end])

    def has(self, name: str) -> bool:
        """Return whether the object has this member."""
        return name in self._members

    def parameters(self) -> dict[str, bytes]:
        """Return the members of `parameters`."""
        return _read_members(self.text, self._members.get("parameters"))

    def tensors(self, name: str) -> list[Tensor]:
        """Return the tensors of a list. Raises NotV2 if it is not a list, or has other elements."""
        span = self._members.get(name)
        if span is None or self.text[span.start : span.start + 1] != b"[":
            raise NotV2(f"`{name}` is not a list")
        spans = list(islice(json_spans.items(self.text, span), _MOST_TENSORS + 1))
        if len(spans) > _MOST_TENSORS:
            raise NotV2(f"`{name}` has more than {_MOST_TENSORS} elements")
        return [_read_tensor(self.text, item, name, at) for at, item in enumerate(spans)]

    def flat_tensors(self) -> list[Tensor]:
        """Return each member that is not a name of the protocol as a tensor: `generate`'s form."""
        members = ((name, span) for name, span in self._members.items() if name not in _NOT_TENSORS)
        return [_read_flat_tensor(name, self.text[span.start : span.end]) for name, span in members]


def request_of(document: Document) -> InferRequest:
    """Return the request in a document. Raises NotV2."""
    return InferRequest(
        model=document.read_text("model_name"),
        version=document.read_text("model_version"),
        id=document.read_text("id"),
        parameters=document.parameters(),
        inputs=document.tensors("inputs"),
    )


def flat_request_of(document: Document) -> InferRequest:
    """Return the request of a `generate` call: `{"text_input": …, "parameters": {…}}`."""
    return InferRequest(
        id=document.read_text("id"),
        parameters=document.parameters(),
        inputs=document.flat_tensors(),
    )


def response_of(document: Document, *, flat: bool = False) -> InferResponse:
    """Return an answer, or an error; `flat`: to a `generate` call. Raises NotV2."""
    error = None if document.has("outputs") else document.read_text("error")
    flat = flat and not document.has("outputs")
    outputs = [] if error is not None else document.flat_tensors() if flat else None
    return InferResponse(
        model=document.read_text("model_name"),
        version=document.read_text("model_version"),
        id=document.read_text("id"),
        parameters=document.parameters(),
        outputs=document.tensors("outputs") if outputs is None else outputs,
        error=error and error[:MOST_ERROR],
        text=None if flat and outputs else document.text,
    )


def _read_tensor(text: bytes, span: Span, of: str, position: int) -> Tensor:
    if text[span.start : span.start + 1] != b"{":
        raise NotV2(f"an element of `{of}` is not an object")
    members = json_spans.by_name(text, span)
    read = {name: text[at.start : at.end] for name, at in members.items() if name != "parameters"}
    data = read.get("data")
    return Tensor(
        position=position,
        name=_read_text(read.get("name", b"null")) or "",
        datatype=_read_text(read.get("datatype", b"null")) or "",
        shape=_read_shape(read.get("shape", b"null")),
        parameters=_read_members(text, members.get("parameters")),
        data=None if data == b"null" else data,
    )


def _read_flat_tensor(name: str, text: bytes) -> Tensor:
    """Return a member's value as a tensor; strings are BYTES, other values have no datatype."""
    data = text if text.startswith(b"[") else b"[" + text + b"]"
    shape = (sum(1 for _ in json_spans.items(data, json_spans.root(data))),)
    is_text = data[1:].lstrip().startswith(b'"')
    return Tensor(name=name, datatype=BYTES if is_text else "", shape=shape, data=data)


def _read_members(text: bytes, span: Span | None) -> dict[str, bytes]:
    members: Iterator[tuple[str, Span]] = iter(())
    if span is not None:
        members = ((member.name, member.value) for member in json_spans.members(text, span))
    return {name: text[at.start : at.end] for name, at in members}


def _read_text(text: bytes) -> str | None:
    """Return a text; anything else except null as it was written."""
    value = _read_value(text) if text[:1] in (b'"', b"n") else text.decode("utf-8", "replace")
    return value if type(value) is str else None


def _read_shape(text: bytes) -> tuple[int, ...]:
    """Return the dimensions; none if they are not whole numbers."""
    value = _read_value(text) if len(text) <= _MOST_SHAPE else None
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return ()
    whole = [item for item in value if type(item) is int]
    return tuple(whole) if len(whole) == len(value) else ()


def _read_value(text: bytes) -> object:
    try:
        return read_json(text)
    except UnreadableJson:  # impossible: the whole was read
        return None
