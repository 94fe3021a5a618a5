"""The values of a tensor: raw bytes, or a JSON list."""

import re
from itertools import islice
from typing import Final

from inference_store.inference import json_spans
from inference_store.inference.json_spans import Span
from inference_store.proxy.protocols.protocol import Division
from inference_store.proxy.protocols.v2.tensors import BYTES, CODES, bytes_elements

from .cuts import Undivided, cut_bytes, cut_list
from .rows import LIST, TEXTS, Packed, Separate, Value, Values

MOST_VALUES: Final = 10_000
"""The most separate values of a tensor."""
_LAYERS: Final = 8
"""The most nested lists of one item that are opened to reach the elements, as when a request is
read."""
_LENGTH: Final = 4
_NESTED: Final = re.compile(rb'["\[{]')


def raw_values(body: bytes, span: Span, datatype: str, division: Division) -> Values:
    """Return the values of raw bytes; each element of BYTES follows its length. Raises
    Undivided."""
    has_lengths = datatype == BYTES or division == "elements"
    elements = bytes_elements(body[slice(*span)]) if has_lengths else None
    if elements is None:
        return Packed(span, datatype if datatype in CODES else "bytes", cut_bytes)
    expect_few(len(elements))
    values, at = [], span.start
    for element in elements:
        start, end = at + _LENGTH, at + _LENGTH + len(element)
        values.append(Value(Span(at, end), Span(start, end)))
        at = end
    return Separate(values, TEXTS)


def json_values(body: bytes, span: Span, datatype: str, division: Division) -> Values:
    """Return the values of `data`, nested or flat. Raises Undivided."""
    if division == "elements" or (division == "inputs" and datatype == BYTES):
        span = _open_lists(body, span)
    if not body.startswith(b"[", span.start):
        return Separate([Value(span, span)], LIST)
    is_flat = _NESTED.search(body, span.start + 1, span.end) is None
    if is_flat and datatype != BYTES and division != "elements":
        return Packed(span, LIST, cut_list)
    items = list(islice(json_spans.items(body, span), MOST_VALUES + 1))
    expect_few(len(items))
    return Separate([Value(item, item) for item in items], LIST)


def expect_few(count: int) -> None:
    """Raise Undivided if there are more separate values than MOST_VALUES."""
    if count > MOST_VALUES:
        raise Undivided(f"a tensor has more than {MOST_VALUES} separate values")


def _open_lists(body: bytes, span: Span) -> Span:
    for _ in range(_LAYERS):
        items = list(islice(json_spans.items(body, span), 2))
        if len(items) != 1 or not body.startswith(b"[", items[0].start):
            break
        span = items[0]
    return span
