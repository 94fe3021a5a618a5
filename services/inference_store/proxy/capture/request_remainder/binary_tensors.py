"""The tensors of V2's binary extension: their JSON comes first, then their bytes."""

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

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def binary_tensors(body: bytes, headers: Headers, division: Division) -> list[Tensor] | None:
    """Return the tensors of a body; None if nothing follows the JSON. Raises Undivided."""
    try:
        length = json_part(body, headers)
        if length == len(body):
            return None
        document = Document(utf8(body[:length]))
        inputs = request_of(document).inputs
    except (NotV2, UnreadableJson) as exc:
        raise Undivided(str(exc)) from exc
    if body[:length].removeprefix(_BYTE_ORDER_MARK) != document.text:
        raise Undivided("the JSON before the binary data is not in UTF-8")
    spans, end = binary_spans(inputs, Span(length, len(body)))
    if end != len(body):
        raise Undivided("the tensors do not say where the binary data end")
    objects = _find_objects(body)
    described = zip(inputs, objects, spans, strict=True)
    return [_tensor(body, *description, division) for description in described]


def _find_objects(body: bytes) -> list[Span]:
    """Return the span of each input's JSON object."""
    return list(json_spans.items(body, _find_members(body, json_spans.root(body))["inputs"]))


def _find_members(body: bytes, span: Span) -> dict[str, Span]:
    """Return the spans of the members' values. Raises Undivided if a name is repeated: only one of
    them was read."""
    members = list(json_spans.members(body, span))
    by_name = {member.name: member.value for member in members}
    if len(by_name) < len(members):
        raise Undivided("a name is repeated in the JSON before the binary data")
    return by_name


def _tensor(
    body: bytes, read: v2.Tensor, whole: Span, raw: Span | None, division: Division
) -> Tensor:
    members = _find_members(body, whole)
    if raw is not None:
        values: Values = raw_values(body, raw, read.datatype, division)
    elif read.data is not None:
        values = json_values(body, members["data"], read.datatype, division)
    else:
        values = Separate((), TEXTS)
    return Tensor(whole, read.datatype, values)
