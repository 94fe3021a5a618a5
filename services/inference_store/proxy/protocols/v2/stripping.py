"""Removes metadata from a request: cuts them out of the JSON, and leaves all other bytes
unchanged."""

import json
from collections.abc import Iterator
from itertools import pairwise

from inference_store.inference import json_spans
from inference_store.inference.json_spans import Span
from inference_store.inference.json_text import UnreadableJson, read_json
from inference_store.proxy.exchange import Headers
from inference_store.proxy.protocols.content_encoding import NotDecoded, decode, encode
from inference_store.proxy.protocols.protocol import MOST_STRIPPED

from .bodies import JSON_LENGTH, json_part
from .documents import NotV2


def strip(body: bytes, headers: Headers) -> tuple[bytes, Headers] | None:
    """Return the request without `parameters.metadata` at its root and in its inputs.

    Content-Length, the length of the JSON part and the content coding are corrected. None if it has
    no metadata, or cannot be read.
    """
    try:
        plain = decode(body, headers, MOST_STRIPPED)
        length = json_part(plain, headers)
        stripped = remove_metadata(plain[:length])
    except (NotDecoded, NotV2, UnreadableJson):
        return None
    if stripped is None:
        return None
    sent = encode(stripped + plain[length:], headers)
    lengths = {"content-length": str(len(sent)), JSON_LENGTH: str(len(stripped))}
    return sent, [(name, lengths.get(name, value)) for name, value in headers]


def remove_metadata(text: bytes) -> bytes | None:
    """Return the JSON without its metadata; None if it has none. Raises UnreadableJson."""
    if b"metadata" not in text and b"\\u" not in text:
        return None
    if not json.detect_encoding(text).startswith("utf-8"):
        return None
    read_json(text)
    cuts = [cut for span in _find_parameters(text) for cut in _find_cuts(text, span)]
    if not cuts:
        return None
    pieces, at = [], 0
    for cut in sorted(cuts):
        pieces.append(text[at : cut.start])
        at = cut.end
    return b"".join([*pieces, text[at:]])


def _find_parameters(text: bytes) -> Iterator[Span]:
    """Yield the spans of the objects that can contain metadata, also under repeated names."""
    for member in json_spans.members(text, json_spans.root(text)):
        if member.name == "parameters":
            yield member.value
        elif member.name == "inputs":
            for tensor in json_spans.items(text, member.value):
                inner_members = json_spans.members(text, tensor)
                yield from (inner.value for inner in inner_members if inner.name == "parameters")


def _find_cuts(text: bytes, span: Span) -> Iterator[Span]:
    """Yield the span of each `metadata` of an object with a comma beside it, so that the rest stays
    an object."""
    members = list(json_spans.members(text, span))
    remaining = [at for at, member in enumerate(members) if member.name != "metadata"]
    end = remaining[-1] + 1 if remaining else 0
    for member, following in pairwise(members[:end]):
        if member.name == "metadata":
            yield Span(member.whole.start, following.whole.start)
    if end < len(members):
        start = members[end - 1].whole.end if end else members[0].whole.start
        yield Span(start, members[-1].whole.end)
