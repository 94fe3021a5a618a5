"""The request of a captured exchange, stored with the metadata: its structure without the data.

    {"method", "path", "query", "headers": [[name, value]…], "messages": [[part…]…]}

A message is a REST body without its content coding, or one message of gRPC. A part is a text,
`{"base64": "…"}`, or a reference to a data blob (request_pieces.py). Joined, the parts are a
request that is equal as JSON (members in their order, numbers as they were spelled), or as a
message of gRPC; not in its bytes. `messages` is null if the request was not kept, and `why` says
so.

For a batch all of this is stored with the first inference, except what belongs to another one: its
item, its tensor, or its row. That is in the `parts` of the other one's request, is erased with it,
and `{"of": <batch index>, "part": <number>}` refers to it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from inference_store.grpc_messages import message, parsed
from inference_store.inference import json_text
from inference_store.inference.json_text import Span, UnreadableJson, read_json
from inference_store.proxy.capture.redaction import remove_secrets, select_headers
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.documents import decoded
from inference_store.proxy.protocols.omi import RUN
from inference_store.proxy.protocols.protocol import Reading
from inference_store.proxy.protocols.tensors import BYTES, Tensor, encoded
from inference_store.proxy.protocols.v2 import JSON_LENGTH, json_part, utf8
from inference_store.proxy.protocols.v2_grpc import assign_raw, contents_field

from .request_pieces import Datum, Piece, store

MOST_BYTES: Final = 256 * 1024
"""The most bytes of a request without its data: the metadata blob has to stay readable."""
_REFERENCE: Final = 64
"""The approximate bytes of a reference in a metadata blob."""
_LENGTH: Final = 4
"""The bytes of the length before an element of BYTES."""


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
        "query": remove_secrets(exchange.query),
        "headers": select_headers(exchange.request_headers, allowed),
        "messages": None,
    }
    own: list[list[Any]] = [[] for _ in reading.inferences]
    try:
        divided, json_length = _divide(exchange, reading, limit)
        messages = [store(pieces, own) for pieces in divided]
        if max(_size(part for parts in messages for part in parts), *map(_size, own)) > MOST_BYTES:
            raise _NotKept(f"the request without its data is over {MOST_BYTES} bytes")
    except _NotKept as exc:
        return [request | {"why": str(exc)}, *({} for _ in own[1:])]
    if json_length is not None:
        length = [JSON_LENGTH, str(json_length)]
        headers = [length if pair[0] == JSON_LENGTH else pair for pair in request["headers"]]
        request["headers"] = headers
    others = ({"parts": parts} if parts else {} for parts in own[1:])
    return [request | {"messages": messages}, *others]


def _divide(
    exchange: Exchange, reading: Reading, limit: int
) -> tuple[list[list[Piece]], int | None]:
    if not exchange.request.whole:
        raise _NotKept("the body was over a cap, broke off, or was redacted")
    counts = [len(inputs) for inputs in reading.shares] or [1] * len(reading.inferences)
    pairs = zip(reading.inferences, counts, strict=True)
    data = [Datum(index, read.data, count) for index, (read, count) in enumerate(pairs)]
    if exchange.transport == "grpc":
        return _divide_grpc(exchange, reading, data), None
    body = decoded(exchange.request.bytes, exchange.request_headers, limit)
    if body is None:
        raise _NotKept("the body's content coding cannot be undone")
    if not body:
        return [], None
    if len(data) == 1 and (whole := data[0].whole(body)) is not None:
        return [[whole]], None
    if reading.shares:
        return _divide_v2(exchange, body, reading.shares, data)
    return [_divide_body(body, reading, data)], None


def _size(parts: Iterable[Any]) -> int:
    texts = (part if isinstance(part, str) else part.get("base64") for part in parts)
    return sum(_REFERENCE if text is None else len(text) for text in texts)


# JSON


def _divide_body(body: bytes, reading: Reading, data: Sequence[Datum]) -> list[Piece]:
    if len(data) == 1:
        return _json_or_bytes(body, data[0])
    if reading.items is None:
        lines = [line for line in body.split(b"\n") if line.strip()]
        if len(lines) != len(data):
            raise _NotKept("the lines do not divide by the inferences")
        divided = [
            [Piece(0, b"\n"), *_json_or_bytes(*pair)] for pair in zip(lines, data, strict=True)
        ]
        return [piece for line in divided for piece in line][1:]
    text = utf8(body)
    items = list(json_text.items(text, _members(text, json_text.root(text))[reading.items]))
    if len(items) == 1:  # a list of prompts inside a list
        items = list(json_text.items(text, items[0]))
    if len(items) != len(data):
        raise _NotKept(f"`{reading.items}` does not divide by the inferences")
    pieces, at = [], 0
    for span, datum in zip(items, data, strict=True):
        pieces += [Piece(0, text[at : span.start]), *datum.in_json(text, span)]
        at = span.end
    return [*pieces, Piece(0, text[at:])]


def _json_or_bytes(body: bytes, datum: Datum) -> list[Piece]:
    if (whole := datum.whole(body.strip())) is not None:
        return [whole]
    try:
        read_json(body)
    except UnreadableJson:
        return [Piece(datum.index, body)]
    return datum.in_json(utf8(body))


def _members(text: bytes, span: Span) -> dict[str, Span]:
    """Return the spans of an object's values. Only the last value of a repeated name was read, so
    the owner of the others is unknown."""
    members = list(json_text.members(text, span))
    by_name = {member.name: member.value for member in members}
    if len(by_name) < len(members):
        raise _NotKept("a name is repeated in the JSON")
    return by_name


# V2: a column holds, of one of the request's tensors, the part of each inference.

_Column = Sequence[tuple[Datum, int, Tensor]]
"""Of each inference that has a part: its datum, the tensor's number among its tensors, the part."""


def _list_columns(
    shares: Sequence[Sequence[Tensor]], data: Sequence[Datum], count: int
) -> list[_Column]:
    columns: list[list[tuple[Datum, int, Tensor]]] = [[] for _ in range(count)]
    for datum, inputs in zip(data, shares, strict=True):
        for number, tensor in enumerate(inputs):
            columns[tensor.position].append((datum, number, tensor))
    return [*columns]


def _divide_v2(
    exchange: Exchange, body: bytes, shares: Sequence[Sequence[Tensor]], data: Sequence[Datum]
) -> tuple[list[list[Piece]], int | None]:
    length = json_part(body, exchange.request_headers)
    text = utf8(body[:length])
    members = json_text.by_name(text, json_text.root(text)) if text else {}
    if text and "inputs" not in members:  # `generate`, which is never divided
        return [_json_or_bytes(body, data[0])], None
    if len(data) > 1:
        _members(text, json_text.root(text))
    objects = list(json_text.items(text, members["inputs"])) if text else []
    columns = _list_columns(shares, data, len(objects) if text else 1)
    pieces, at = [], 0
    for span, column in zip(objects, columns, strict=bool(text)):
        pieces += [Piece(0, text[at : span.start]), *_divide_object(text, span, column)]
        at = span.end
    pieces.append(Piece(0, text[at:]))
    json_length = sum(len(piece.content) for piece in pieces)
    tail = [
        piece
        for column in columns
        for cell in column
        if _is_binary(cell[2])
        for piece in _divide_raw(*cell)
    ]
    if sum(len(piece.content) for piece in tail) == len(body) - length:
        return [[*pieces, *tail]], None if length == len(body) else json_length
    if len(data) > 1:
        raise _NotKept("the tensors do not say where the binary data end")
    return [[*pieces, Piece(0, body[length:])]], json_length


def _is_binary(tensor: Tensor) -> bool:
    return tensor.data is None and (tensor.raw is not None or tensor.values is not None)


def _divide_object(text: bytes, span: Span, column: _Column) -> list[Piece]:
    owner = column[0][0].index
    is_single = len(column) == 1
    members = json_text.by_name(text, span) if is_single else _members(text, span)
    found = members.get("data")
    if found is None or column[0][2].data is None:
        return [Piece(owner, text[slice(*span)])]
    before, after = text[span.start : found.start], text[found.end : span.end]
    values = _divide_list(text[slice(*found)], column)
    return [Piece(owner, before), *values, Piece(owner, after)]


def _divide_list(text: bytes, column: _Column) -> list[Piece]:
    if len(column) == 1 and not text.startswith(b"["):
        return column[0][0].in_json(text)
    layers = 0
    while len(column) > 1:  # the only item of a list may be the list of all elements
        items = list(json_text.items(text, json_text.root(text)))
        if len(items) != 1 or not text.startswith(b"[", items[0].start):
            break
        text, layers = text[slice(*items[0])], layers + 1
    pieces = [Piece(0, b"[" * (layers + 1))]
    for position, (datum, number, tensor) in enumerate(column):
        lists = [tensor.data or b"", text] if len(column) == 1 else [tensor.data or b""]
        pieces += [Piece(0, b",")] if position else []
        items_piece = datum.items(number, lists)
        pieces += [items_piece] if items_piece else _without_brackets(datum.in_json(lists[-1]))
    return [*pieces, Piece(0, b"]" * (layers + 1))]


def _without_brackets(pieces: list[Piece]) -> list[Piece]:
    pieces[0] = pieces[0]._replace(content=pieces[0].content[1:])
    pieces[-1] = pieces[-1]._replace(content=pieces[-1].content[:-1])
    return pieces


def _divide_raw(datum: Datum, number: int, tensor: Tensor) -> list[Piece]:
    """Divide a tensor's raw bytes; each element of BYTES follows its length."""
    raw = tensor.raw if tensor.raw is not None else encoded(BYTES, tensor.values or ()) or b""
    if (whole := datum.whole(raw)) is not None:
        return [whole]
    if raw and len(raw) == _LENGTH + int.from_bytes(raw[:_LENGTH], "little"):
        element = datum.element(raw[_LENGTH:])
        if any(piece.reference for piece in element):
            return [Piece(datum.index, raw[:_LENGTH]), *element]
    form = BYTES if tensor.raw is None else tensor.datatype
    return [datum.values(number, raw, form) or Piece(datum.index, raw)]


# gRPC


def _divide_grpc(exchange: Exchange, reading: Reading, data: Sequence[Datum]) -> list[list[Piece]]:
    parts = exchange.request.parts
    if len(data) == 1 and (slices := data[0].slices(parts)) is not None:
        return slices
    if len(parts) == 1 and reading.shares:
        return [_divide_message(parts[0], reading.shares, data)]
    if len(parts) == 1 and exchange.path == RUN:
        return [_divide_run(parts[0], data)]
    if len(data) > 1:
        raise _NotKept("the messages do not divide by the inferences")
    return [[Piece(0, part)] for part in parts]


def _divide_message(
    written: bytes, shares: Sequence[Sequence[Tensor]], data: Sequence[Datum]
) -> list[Piece]:
    """Divide a ModelInferRequest: everything else, then its inputs, then their raw contents."""
    read = message("inference.ModelInferRequest").FromString(written)
    columns = _list_columns(shares, data, len(read.inputs))
    raw = assign_raw(read.inputs, read.raw_input_contents)
    left = list(read.raw_input_contents)[sum(content is not None for content in raw) :]
    inputs: list[Piece] = []
    contents: list[Piece] = []
    for tensor, column, content in zip(read.inputs, columns, raw, strict=True):
        owner = column[0][0].index
        typed = [] if content is not None else _divide_typed(tensor, column)
        if len(data) > 1 and (left or tensor.contents.ByteSize()):
            raise _NotKept("the message has values that were not read")
        inputs += _wrap(5, owner, [Piece(owner, tensor.SerializeToString()), *typed])
        if content is not None:
            divided = [piece for cell in column for piece in _divide_raw(*cell)]
            contents += _wrap(7, owner, divided)
    del read.inputs[:]
    read.raw_input_contents[:] = left
    # repeated fields are joined in order: what is left of the raw contents comes last
    return [*inputs, *contents, Piece(0, read.SerializeToString())]


def _divide_typed(tensor: Any, column: _Column) -> list[Piece]:
    field = contents_field(tensor)
    if field is None:
        return []
    pieces: list[Piece] = []
    for datum, number, part in column:
        values = message("inference.InferTensorContents")(**{field: part.values})
        content = bytes(values.SerializeToString(deterministic=True))
        piece = datum.values(number, content, field)
        pieces += [piece] if piece else _divide_texts(datum, content, values)
    tensor.contents.ClearField(field)
    return _wrap(5, column[0][0].index, pieces)


def _divide_texts(datum: Datum, content: bytes, values: Any) -> list[Piece]:
    texts = values.bytes_contents
    if len(texts) != 1:
        return [Piece(datum.index, content)]
    return _wrap(8, datum.index, datum.element(texts[0]))


def _divide_run(written: bytes, data: Sequence[Datum]) -> list[Piece]:
    """Divide OMI's RunRequest: everything else, then its items, which are files by name."""
    read = parsed("RunRequest", written)
    if read is None or len(read.inputs) != len(data):
        if len(data) == 1:
            return [Piece(0, written)]
        raise _NotKept("the items do not divide by the inferences")
    pieces: list[Piece] = []
    for item, datum in zip(read.inputs, data, strict=True):
        owner, files = datum.index, dict(item.input)
        item.input.clear()
        inside = [Piece(owner, item.SerializeToString())]
        for name, content in files.items():
            piece = datum.whole(content) or datum.member(name, content) or Piece(owner, content)
            key = _wrap(1, owner, [Piece(owner, name.encode())])
            inside += _wrap(1, owner, [*key, *_wrap(2, owner, [piece])])
        pieces += _wrap(1, owner, inside)
    del read.inputs[:]
    return [Piece(0, read.SerializeToString()), *pieces]


def _wrap(field: int, owner: int, pieces: Sequence[Piece]) -> list[Piece]:
    head = bytearray([field << 3 | 2])
    size = sum(len(piece.content) for piece in pieces)
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return [Piece(owner, bytes(head)), *pieces]
