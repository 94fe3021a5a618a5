"""The lists that hold data in V2's JSON."""

import re
from collections.abc import Sequence
from typing import Final

from inference_store.inference import json_spans
from inference_store.inference.json_spans import Span

from .search import Hole

_LARGEST_SPLIT: Final = 64 * 1024
"""The most bytes of a list that is split."""
# What is left of a list without its values: punctuation, and what surrounds base64 in a string.
_EMPTY: Final = re.compile(rb'"(?:data:[^,"]{0,200},)?={0,2}"|[\[\], \t\r\n]')


def data_lists(body: bytes) -> list[Span]:
    """Return the spans of the `data` of the `inputs`; none if the body is anything else."""
    inputs = json_spans.by_name(body, json_spans.root(body)).get("inputs")
    tensors = json_spans.items(body, inputs) if inputs else ()
    lists = (json_spans.by_name(body, tensor).get("data") for tensor in tensors)
    return [span for span in lists if span]


def is_empty(body: bytes, span: Span, holes: Sequence[Hole]) -> bool:
    """Return whether the holes remove every value from a list. A value whose datum was found
    elsewhere, in the same bytes, is still there, and would outlive its inference."""
    pieces, at = [], span.start
    for hole in holes:
        pieces.append(body[at : hole.start])
        at = hole.end
    return not _EMPTY.sub(b"", b"".join((*pieces, body[at : span.end])))


def split_list(body: bytes, span: Span, count: int) -> list[Span] | None:
    """Split a list into `count` equal parts; None if it has no such parts, or is too large."""
    if span.end - span.start > _LARGEST_SPLIT:
        return None
    items = list(json_spans.items(body, span))
    size = len(items) // count
    if not size or len(items) % count:
        return None
    starts = range(0, len(items), size)
    return [Span(items[at].start, items[at + size - 1].end) for at in starts]
