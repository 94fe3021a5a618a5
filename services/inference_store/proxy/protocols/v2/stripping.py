"""A request without its metadata: cut out of the JSON, every other byte as it was."""

import json
from collections.abc import Iterator
from itertools import pairwise

from inference_store.inference import json_spans
from inference_store.inference.json_spans import Span
from inference_store.inference.json_text import UnreadableJson, read_json
from inference_store.proxy.exchange import Headers
from inference_store.proxy.protocols import content_encoding
from inference_store.proxy.protocols.protocol import MOST_STRIPPED

from .bodies import JSON_LENGTH, json_part
from .documents import NotV2


def strip(body: bytes, headers: Headers) -> tuple[bytes, Headers] | None:
    """The request without `parameters.metadata` at its root and of its inputs.

    Content-Length, the length of the JSON part and the content coding are right again. None where
    there is no metadata in it, or it cannot be read.
    """
    try:
        plain = content_encoding.decode(body, headers, MOST_STRIPPED)
        length = json_part(plain, headers)
        stripped = without_metadata(plain[:length])
    except (content_encoding.NotDecoded, NotV2, UnreadableJson):
        return None
    if stripped is None:
        return None
    sent = content_encoding.encode(stripped + plain[length:], headers)
    lengths = {"content-length": str(len(sent)), JSON_LENGTH: str(len(stripped))}
    return sent, [(name, lengths.get(name, value)) for name, value in headers]


def without_metadata(text: bytes) -> bytes | None:
    """The JSON without its metadata; None where it has none. Raises UnreadableJson."""
    if b"metadata" not in text and b"\\u" not in text:
        return None
    if not json.detect_encoding(text).startswith("utf-8"):
        return None
    read_json(text)
    cuts = [cut for span in _parameters(text) for cut in _cuts(text, span)]
    if not cuts:
        return None
    kept, at = [], 0
    for cut in sorted(cuts):
        kept.append(text[at : cut.start])
        at = cut.end
    return b"".join([*kept, text[at:]])


def _parameters(text: bytes) -> Iterator[Span]:
    """Where the objects stand that can hold metadata, also under names that come twice."""
    for member in json_spans.members(text, json_spans.root(text)):
        if member.name == "parameters":
            yield member.value
        elif member.name == "inputs":
            for each in json_spans.items(text, member.value):
                found = json_spans.members(text, each)
                yield from (inner.value for inner in found if inner.name == "parameters")


def _cuts(text: bytes, span: Span) -> Iterator[Span]:
    """Each `metadata` of an object with a comma beside it, so that what stays is an object."""
    members = list(json_spans.members(text, span))
    kept = [at for at, member in enumerate(members) if member.name != "metadata"]
    end = kept[-1] + 1 if kept else 0
    for member, following in pairwise(members[:end]):
        if member.name == "metadata":
            yield Span(member.whole.start, following.whole.start)
    if end < len(members):
        start = members[end - 1].whole.end if end else members[0].whole.start
        yield Span(start, members[-1].whole.end)
