"""The tensors of V2's binary extension: their JSON stands first, and their bytes behind it."""

from typing import Final

from inference_store.inference import json_spans
from inference_store.inference.json_spans import Span
from inference_store.inference.json_text import UnreadableJson
from inference_store.proxy.exchange import Headers
from inference_store.proxy.protocols.protocol import Division
from inference_store.proxy.protocols.v2 import tensors as v2
from inference_store.proxy.protocols.v2.bodies import binary_spans, json_part, utf8
from inference_store.proxy.protocols.v2.documents import Document, NotV2, request_of

from .cuts import Undivided
from .rows import TEXTS, Separate, Tensor, Values
from .values import json_values, raw_values

_MARK: Final = b"\xef\xbb\xbf"


def binary_tensors(body: bytes, headers: Headers, division: Division) -> list[Tensor] | None:
    """None: nothing stands behind the JSON. Raises Undivided."""
    try:
        length = json_part(body, headers)
        if length == len(body):
            return None
        document = Document(utf8(body[:length]))
        inputs = request_of(document).inputs
    except (NotV2, UnreadableJson) as exc:
        raise Undivided(str(exc)) from exc
    if body[:length].removeprefix(_MARK) != document.text:
        raise Undivided("the JSON before the binary data is not in UTF-8")
    spans, end = binary_spans(inputs, Span(length, len(body)))
    if end != len(body):
        raise Undivided("the tensors do not say where the binary data end")
    objects = _objects(body)
    described = zip(inputs, objects, spans, strict=True)
    return [_tensor(body, *each, division) for each in described]


def _objects(body: bytes) -> list[Span]:
    """The JSON object of each input."""
    return list(json_spans.items(body, _members(body, json_spans.root(body))["inputs"]))


def _members(body: bytes, span: Span) -> dict[str, Span]:
    """The members' values. Raises Undivided where a name is repeated: only one of them was read."""
    members = list(json_spans.members(body, span))
    by_name = {each.name: each.value for each in members}
    if len(by_name) < len(members):
        raise Undivided("a name is repeated in the JSON before the binary data")
    return by_name


def _tensor(
    body: bytes, read: v2.Tensor, whole: Span, raw: Span | None, division: Division
) -> Tensor:
    members = _members(body, whole)
    if raw is not None:
        values: Values = raw_values(body, raw, read.datatype, division)
    elif read.data is not None:
        values = json_values(body, members["data"], read.datatype, division)
    else:
        values = Separate((), TEXTS)
    return Tensor(whole, read.datatype, values)
