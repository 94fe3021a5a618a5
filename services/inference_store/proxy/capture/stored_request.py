"""The request of a captured exchange, stored with the metadata so that it can be sent again.

    {"method", "path", "query", "headers": [[name, value]…], "messages": [[part…]…]}

A message is a REST body without its content coding, or one message of gRPC. Its parts are joined: a
text, `{"base64": "…"}`, or a reference to a data blob, `{"data": <batch index>}`, with `from` and
`to` if it is a slice of it, and with `as` if it is written in another form (`write`). `messages` is
null if the request was not kept, and `why` says so.

For a batch all of this is stored with the first inference, except what belongs to another one: its
item, its tensor, or its row. That is in the `parts` of the other one's request, is erased with it,
and `{"of": <batch index>, "part": <number>}` refers to it.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final, TypeAlias

import orjson

from inference_store.grpc_messages import message, parsed
from inference_store.inference import json_text
from inference_store.inference.json_text import Span
from inference_store.proxy.capture.redaction import NEEDED, remove_parameters, select_headers
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.documents import decoded
from inference_store.proxy.protocols.omi import RUN
from inference_store.proxy.protocols.protocol import Reading
from inference_store.proxy.protocols.tensor_datum import data_json
from inference_store.proxy.protocols.tensors import BYTES, Tensor, encoded
from inference_store.proxy.protocols.v2 import json_part
from inference_store.proxy.protocols.v2_grpc import assign_raw, contents_field

MOST_BYTES: Final = 256 * 1024
"""The most bytes of a request without its data: the metadata blob has to stay readable."""
_SHORTEST: Final = 16
"""Shorter values stay where they are."""
_MOST_VALUES: Final = 64
"""The most values that are looked for in the datum of an inference."""

Piece: TypeAlias = tuple[int, bytes]
"""A piece of a message, and the batch index of the inference that it is stored and erased with."""
Reference: TypeAlias = Mapping[str, Any]


class _NotKept(ValueError):
    """The request is not kept; `str()` of the error gives the reason."""


def build_requests(
    exchange: Exchange, reading: Reading, allowed: Sequence[str], *, limit: int
) -> list[dict[str, Any]]:
    """Return the stored request of each inference of a reading.

    `allowed`: the headers to keep; `limit`: the most bytes of a decoded body.
    """
    request: dict[str, Any] = {
        "method": exchange.method,
        "path": exchange.path,
        "query": remove_parameters(exchange.query),
        "headers": select_headers(exchange.request_headers, {*allowed, *NEEDED}),
        "messages": None,
    }
    own: list[list[Any]] = [[] for _ in reading.inferences]
    try:
        messages = [_store(pieces, reading, own) for pieces in _divide(exchange, reading, limit)]
        if max(len(orjson.dumps(parts)) for parts in (messages, *own)) > MOST_BYTES:
            raise _NotKept(f"the request without its data is over {MOST_BYTES} bytes")
    except _NotKept as exc:
        return [request | {"why": str(exc)}, *({} for _ in own[1:])]
    others = ({"parts": parts} if parts else {} for parts in own[1:])
    return [request | {"messages": messages}, *others]


def _store(pieces: Iterable[Piece], reading: Reading, own: Sequence[list[Any]]) -> list[Any]:
    parts: list[Any] = []
    for owner, group in groupby(pieces, itemgetter(0)):
        content = b"".join(content for _, content in group)
        for part in filter(None, _refer(content, owner, reading)):
            stored = _encode(part) if isinstance(part, bytes) else part
            if owner and isinstance(part, bytes):
                own[owner].append(stored)
                stored = {"of": owner, "part": len(own[owner]) - 1}
            parts.append(stored)
    return parts


def _encode(content: bytes) -> Any:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(content).decode()}


# The datum in a message: whole, as it is or as JSON writes it; else the values of the message that
# the datum's JSON has. What is not found stays in the message.

_ESCAPES: Final = (("/", "\\/"), ("+", "\\u002B"))
"""What some writers of JSON escape though they need not: PHP and .NET."""


def _refer(content: bytes, index: int, reading: Reading) -> list[bytes | Reference]:
    parts: list[bytes | Reference] = []
    data, at = reading.inferences[index].data or b"", 0
    tensors = reading.shares[index] if reading.shares else ()
    for reference, value in _list_references(content, data, tensors):
        start = content.find(value, at)
        if start >= 0:
            parts += [content[at:start], {"data": index, **reference}]
            at = start + len(value)
    return [*parts, content[at:]]


def _list_references(
    content: bytes, data: bytes, tensors: Sequence[Tensor]
) -> Iterator[tuple[Reference, bytes]]:
    if len(data) < _SHORTEST:
        return
    escapes = {plain: escaped for plain, escaped in _ESCAPES if escaped.encode() in content}
    for form in (None, "text", "ascii", "base64"):
        named = {"as": form, "escapes": form and escapes}
        reference: dict[str, Any] = {name: value for name, value in named.items() if value}
        with suppress(UnicodeDecodeError):
            if (written := write(reference, data)) in content:
                yield reference, written
                return
    values = (each for each in _list_values(content, tensors) if len(each[0]) >= _SHORTEST)
    for value, form, text in islice(values, _MOST_VALUES):
        at = data.find(text)
        reference = {"from": at, "to": at + len(text), **({"as": form} if form else {})}
        if at >= 0 and write(reference, data) == value:
            yield reference, value


def _list_values(
    content: bytes, tensors: Sequence[Tensor]
) -> Iterator[tuple[bytes, str | None, bytes]]:
    """Yield values, in the order of the message, with the form and the text that a datum's JSON has
    for each."""
    run = None if tensors else parsed("RunRequest", content)
    files = [file for item in run.inputs for file in item.input.values()] if run else []
    for file in sorted(files, key=content.find):
        yield file, "decoded", b64encode(file)
    for tensor in sorted(tensors, key=lambda tensor: tensor.data is None):
        raw = tensor.raw or encoded(tensor.datatype, tensor.values or ()) or b""
        if tensor.data is not None:
            inside = tensor.data.strip()[1:-1]
            yield inside, None, inside
        elif text := data_json(tensor):
            yield raw, tensor.datatype, text
        else:
            yield raw, "decoded", b64encode(raw)


def write(reference: Reference, datum: bytes) -> bytes:
    """Write what a reference refers to: docs/reference/proxy.md says how."""
    value, form = datum[reference.get("from", 0) : reference.get("to")], reference.get("as")
    if form is None:
        return value
    if form == "decoded":
        return b64decode(value)
    if form == "base64":
        text = b64encode(value).decode()
    elif form in ("text", "ascii"):
        text = json.dumps(value.decode(), ensure_ascii=form == "ascii")[1:-1]
    else:
        return encoded(form, json.loads(value)) or b""
    for plain, escaped in reference.get("escapes", {}).items():
        text = text.replace(plain, escaped)
    return text.encode()


# The pieces of a message of several inferences, by their owners.

_Column: TypeAlias = Sequence[tuple[int, Tensor]]
"""One of the request's tensors: of each inference that has a part of it, its index and the part."""


def _divide(exchange: Exchange, reading: Reading, limit: int) -> list[Sequence[Piece]]:
    if not exchange.request.whole:
        raise _NotKept("the body was over a cap, broke off, or was redacted")
    parts, count = exchange.request.parts, len(reading.inferences)
    is_rest = exchange.transport == "rest"
    if is_rest:
        body = decoded(exchange.request.bytes, exchange.request_headers, limit)
        if body is None:
            raise _NotKept("the body's content coding cannot be undone")
        parts = [body] if body else []
    if count == 1:
        return [[(0, part)] for part in parts]
    if len(parts) != 1 or not (is_rest or reading.shares or exchange.path == RUN):
        raise _NotKept("the messages do not divide by the inferences")
    if not is_rest:
        return [(_divide_message if reading.shares else _divide_run)(parts[0], reading)]
    length = json_part(parts[0], exchange.request_headers) if reading.shares else len(parts[0])
    text, tail = parts[0][:length], parts[0][length:]
    if not json.detect_encoding(text).startswith("utf-8"):
        raise _NotKept("a batch is only divided in UTF-8")
    return [
        _divide_tensors(text, tail, reading) if reading.shares else _divide_items(text, reading)
    ]


def _divide_items(text: bytes, reading: Reading) -> list[Piece]:
    if reading.items is None:
        spans = [Span(*line.span()) for line in re.finditer(rb"[^\n]*[^\s][^\n]*", text)]
    else:
        members = _members(text, json_text.root(text))
        spans = list(json_text.items(text, members[reading.items]))
        spans = spans if len(spans) != 1 else list(json_text.items(text, spans[0]))
    if len(spans) != len(reading.inferences):
        raise _NotKept(f"`{reading.items or 'lines'}` does not divide by the inferences")
    return _cut(text, [[(at, text[slice(*span)])] for at, span in enumerate(spans)], spans)


def _cut(
    text: bytes, contents: Iterable[Sequence[Piece]], spans: Sequence[Span], owner: int = 0
) -> list[Piece]:
    """Return the text with contents in place of spans; what is between them is the owner's."""
    pieces, at = [], 0
    for span, content in zip(spans, contents, strict=True):
        pieces += [(owner, text[at : span.start]), *content]
        at = span.end
    return [*pieces, (owner, text[at:])]


def _members(text: bytes, span: Span) -> dict[str, Span]:
    """Return the spans of an object's values. Only the last value of a repeated name was read, so
    the owner of the others is unknown."""
    members = list(json_text.members(text, span))
    by_name = {member.name: member.value for member in members}
    if len(by_name) < len(members):
        raise _NotKept("a name is repeated in the JSON")
    return by_name


def _list_columns(reading: Reading, count: int) -> list[_Column]:
    columns: list[list[tuple[int, Tensor]]] = [[] for _ in range(count)]
    for index, inputs in enumerate(reading.shares):
        for tensor in inputs:
            columns[tensor.position].append((index, tensor))
    return [*columns]


def _divide_tensors(text: bytes, tail: bytes, reading: Reading) -> list[Piece]:
    """Divide a request of V2: each tensor in the JSON, and their bytes behind it."""
    found = _members(text, json_text.root(text))["inputs"] if text else Span(0, 0)
    spans = list(json_text.items(text, found))
    columns = _list_columns(reading, len(spans) or 1)
    raw = [(at, _raw_of(part)) for column in columns for at, part in column if part.data is None]
    if b"".join(content for _, content in raw) != tail:
        raise _NotKept("the tensors do not say where the binary data end")
    objects = [*map(_divide_object, (text[slice(*span)] for span in spans), columns)]
    return [*_cut(text, objects, spans), *raw]


def _raw_of(tensor: Tensor) -> bytes:
    return tensor.raw if tensor.raw is not None else encoded(BYTES, tensor.values or ()) or b""


def _divide_object(text: bytes, column: _Column) -> list[Piece]:
    owner, rows = column[0][0], [(index, (part.data or b"")[1:-1]) for index, part in column]
    members = {} if len(column) == 1 else _members(text, json_text.root(text))
    if "data" not in members or column[0][1].data is None:
        return [(owner, text)]
    spans, at = [], members["data"].start
    for _, row in rows:  # nothing but commas, brackets and blanks is between them
        start = text.index(row, at)
        at = start + len(row)
        spans.append(Span(start, at))
    return _cut(text, [[row] for row in rows], spans, owner)


def _divide_message(written: bytes, reading: Reading) -> list[Piece]:
    """Divide a ModelInferRequest: its inputs, then their raw contents, then everything else."""
    read = message("inference.ModelInferRequest").FromString(written)
    columns = _list_columns(reading, len(read.inputs))
    raw = assign_raw(read.inputs, read.raw_input_contents)
    if len(read.raw_input_contents) > sum(content is not None for content in raw):
        raise _NotKept("the message has values that were not read")
    inputs: list[Piece] = []
    contents: list[Piece] = []
    for tensor, column, content in zip(read.inputs, columns, raw, strict=True):
        owner, typed = column[0][0], []
        if content is not None:
            contents += _wrap(7, owner, [(index, _raw_of(part)) for index, part in column])
        elif field := contents_field(tensor):
            values = message("inference.InferTensorContents")
            rows = [(index, values(**{field: part.values})) for index, part in column]
            typed = _wrap(5, owner, [(index, row.SerializeToString()) for index, row in rows])
            tensor.contents.ClearField(field)
        if tensor.contents.ByteSize():
            raise _NotKept("the message has values that were not read")
        inputs += _wrap(5, owner, [(owner, tensor.SerializeToString()), *typed])
    del read.inputs[:], read.raw_input_contents[:]
    return [*inputs, *contents, (0, read.SerializeToString())]


def _divide_run(written: bytes, reading: Reading) -> list[Piece]:
    read = message("RunRequest").FromString(written)
    items = [item.SerializeToString() for item in read.inputs]
    if len(items) != len(reading.inferences):
        raise _NotKept("the items do not divide by the inferences")
    del read.inputs[:]
    wrapped = [_wrap(1, owner, [(owner, item)]) for owner, item in enumerate(items)]
    return [(0, read.SerializeToString()), *(piece for pieces in wrapped for piece in pieces)]


def _wrap(field: int, owner: int, pieces: Sequence[Piece]) -> list[Piece]:
    head = bytearray([field << 3 | 2])
    size = sum(len(content) for _, content in pieces)
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return [(owner, bytes(head)), *pieces]
