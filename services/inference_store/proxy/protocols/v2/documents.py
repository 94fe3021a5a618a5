"""V2's JSON documents become requests and answers; `generate`'s flat ones too."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from inference_store.inference import json_spans
from inference_store.inference.json_spans import Span
from inference_store.inference.json_text import UnreadableJson, read_json
from inference_store.proxy.protocols.protocol import MOST_ERROR

from .tensors import BYTES, InferRequest, InferResponse, Tensor

_MOST_TENSORS: Final = 4096
_MOST_DIMENSIONS: Final = 32
_MOST_SHAPE: Final = 4096
_NOT_TENSORS: Final = ("id", "parameters", "model_name", "model_version", "error")


class NotV2(ValueError):
    """Not a document of V2; `str()` of it says why."""


class Document:
    """A JSON object and where its members stand. Raises UnreadableJson, NotV2."""

    def __init__(self, text: bytes) -> None:
        read_json(text)
        self.text = text
        self._members = json_spans.by_name(text, json_spans.root(text))
        if not text.lstrip().startswith(b"{"):
            raise NotV2("it is no JSON object")

    def said(self, name: str) -> str | None:
        """A member as text; a number as it was written. None where it is absent or null."""
        span = self._members.get(name)
        return None if span is None else _said(self.text[span.start : span.end])

    def has(self, name: str) -> bool:
        """It has this member."""
        return name in self._members

    def parameters(self) -> dict[str, bytes]:
        """The members of `parameters`."""
        return _texts(self.text, self._members.get("parameters"))

    def tensors(self, name: str) -> list[Tensor]:
        """The tensors of a list. Raises NotV2 where it is none, or holds other things."""
        span = self._members.get(name)
        if span is None or self.text[span.start : span.start + 1] != b"[":
            raise NotV2(f"`{name}` is not a list")
        found = list(islice(json_spans.items(self.text, span), _MOST_TENSORS + 1))
        if len(found) > _MOST_TENSORS:
            raise NotV2(f"`{name}` has more than {_MOST_TENSORS} elements")
        return [_tensor(self.text, each, name) for each in found]

    def flat_tensors(self) -> list[Tensor]:
        """Each member that is no word of the protocol as a tensor: `generate`'s form."""
        members = ((name, span) for name, span in self._members.items() if name not in _NOT_TENSORS)
        return [_flat(name, self.text[span.start : span.end]) for name, span in members]


def request_of(document: Document) -> InferRequest:
    """Raises NotV2."""
    return InferRequest(
        model=document.said("model_name"),
        version=document.said("model_version"),
        id=document.said("id"),
        parameters=document.parameters(),
        inputs=document.tensors("inputs"),
    )


def flat_request_of(document: Document) -> InferRequest:
    """The request of a `generate` call: `{"text_input": …, "parameters": {…}}`."""
    return InferRequest(
        id=document.said("id"), parameters=document.parameters(), inputs=document.flat_tensors()
    )


def response_of(document: Document, *, flat: bool = False) -> InferResponse:
    """An answer, or an error; `flat`: to a `generate` call. Raises NotV2."""
    error = None if document.has("outputs") else document.said("error")
    flat = flat and not document.has("outputs")
    outputs = [] if error is not None else document.flat_tensors() if flat else None
    return InferResponse(
        model=document.said("model_name"),
        version=document.said("model_version"),
        id=document.said("id"),
        parameters=document.parameters(),
        outputs=document.tensors("outputs") if outputs is None else outputs,
        error=error and error[:MOST_ERROR],
        text=None if flat and outputs else document.text,
    )


def _tensor(text: bytes, span: Span, of: str) -> Tensor:
    if text[span.start : span.start + 1] != b"{":
        raise NotV2(f"an element of `{of}` is not an object")
    members = json_spans.by_name(text, span)
    read = {name: text[at.start : at.end] for name, at in members.items() if name != "parameters"}
    data = read.get("data")
    return Tensor(
        name=_said(read.get("name", b"null")) or "",
        datatype=_said(read.get("datatype", b"null")) or "",
        shape=_shape(read.get("shape", b"null")),
        parameters=_texts(text, members.get("parameters")),
        data=None if data == b"null" else data,
    )


def _flat(name: str, value: bytes) -> Tensor:
    """A member's value as a tensor; strings are BYTES, of others the datatype is not told."""
    data = value if value.startswith(b"[") else b"[" + value + b"]"
    shape = (sum(1 for _ in json_spans.items(data, json_spans.root(data))),)
    is_text = data[1:].lstrip().startswith(b'"')
    return Tensor(name=name, datatype=BYTES if is_text else "", shape=shape, data=data)


def _texts(text: bytes, span: Span | None) -> dict[str, bytes]:
    found: Iterator[tuple[str, Span]] = iter(())
    if span is not None:
        found = ((member.name, member.value) for member in json_spans.members(text, span))
    return {name: text[at.start : at.end] for name, at in found}


def _said(text: bytes) -> str | None:
    """A text; anything else but null as it was written."""
    value = _read(text) if text[:1] in (b'"', b"n") else text.decode("utf-8", "replace")
    return value if type(value) is str else None


def _shape(text: bytes) -> tuple[int, ...]:
    """The dimensions; none where they are not whole numbers."""
    value = _read(text) if len(text) <= _MOST_SHAPE else None
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return ()
    whole = [each for each in value if type(each) is int]
    return tuple(whole) if len(whole) == len(value) else ()


def _read(text: bytes) -> object:
    try:
        return read_json(text)
    except UnreadableJson:  # not in a part of what was read
        return None
