"""The pieces of a stored request: its own text, and references to data blobs.

A reference is `{"data": <batch index>}`. With `at`, it names a value inside the datum's JSON by its
path, and with `as` how the value is written:

| as | written |
|---|---|
| nothing | the bytes; of a value in JSON, those of its text or its `{"b64": …}` |
| `slice` | the bytes between `from` and `to` |
| `text` | a text inside a JSON string |
| `base64` | base64, in lines of `line` characters between `ends` if these are there |
| `items` | a JSON list without its brackets |
| `decoded` | the bytes of a base64 text |
| a datatype | a JSON list as a raw tensor |
| `…_contents` | a JSON list as the serialized `InferTensorContents` |
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from typing import Any, Final, NamedTuple

from inference_store.grpc_messages import message
from inference_store.inference import json_text
from inference_store.inference.json_text import Span, UnreadableJson, read_json
from inference_store.proxy.exchange import from_base64
from inference_store.proxy.protocols.tensors import encoded

_MOST_LEVELS: Final = 32
_MOST_VALUES: Final = 10_000
"""The most values of a list or an object that are compared with the datum."""
_LONGEST_ESCAPE: Final = 6
"""The most characters of a byte in a JSON string: `\\u0000`."""
_LONGEST_HEAD: Final = 1024
"""The most characters around base64: those of a `data:` address."""
_NESTED: Final = re.compile(rb'["\[{]')
_LINE_END: Final = re.compile("\r?\n")


class Piece(NamedTuple):
    """A piece of a message. The pieces of a message, joined, are equal to it."""

    owner: int
    """The batch index of the inference that it is stored and erased with."""
    content: bytes
    reference: Mapping[str, Any] | None = None
    """What is stored in place of the content; None if the content is."""


class Datum:
    """The datum of an inference, and references to it that are checked."""

    def __init__(self, index: int, data: bytes | None, tensors: int = 1) -> None:
        """`tensors`: the number of tensors; the datum of several may be V2's JSON of them."""
        self.index, self._data = index, data or b""
        self._paths = [[]] if tensors == 1 else [["inputs", at] for at in range(tensors)]

    def whole(self, content: bytes) -> Piece | None:
        """Return a reference to the whole datum if it is the content."""
        if content and content == self._data:
            return Piece(self.index, content, {"data": self.index})
        return None

    def slices(self, parts: Sequence[bytes]) -> list[list[Piece]] | None:
        """Return a reference for each part if the datum is all of them."""
        if not self._data or b"".join(parts) != self._data:
            return None
        pieces, at = [], 0
        for part in parts:
            ends = {"as": "slice", "from": at, "to": at + len(part)}
            pieces.append([Piece(self.index, part, {"data": self.index, **ends})])
            at += len(part)
        return pieces

    def items(self, number: int, lists: Sequence[bytes]) -> Piece | None:
        """Return a reference to a tensor's JSON list without its brackets if the datum has one of
        `lists`, which are equal."""
        for path in self._list_paths(number, "data"):
            text = text_at(self._data, path)
            if text and text in lists:
                reference = self._refer(path, "items")
                return Piece(self.index, write(reference, self._data), reference)
        return None

    def member(self, name: str, content: bytes) -> Piece | None:
        """Return a reference to a member of the datum's JSON, a text or `{"b64": …}`."""
        return self._check(self._refer([name], None), content)

    def values(self, number: int, content: bytes, form: str) -> Piece | None:
        """Return a reference to a tensor's JSON list, written in a form, if that is the content."""
        references = [self._refer(path, form) for path in self._list_paths(number, "data")]
        paths = self._list_paths(number, "data_base64")
        references += [self._refer(path, "decoded") for path in paths if path]
        checked = (self._check(reference, content) for reference in references)
        return next((piece for piece in checked if piece), None)

    def element(self, content: bytes) -> list[Piece]:
        """Return the pieces of bytes that may be the datum, or its base64."""
        whole = self.whole(content)
        if whole is None and len(content) > len(self._data) > 0:
            try:
                return self._coded(content.decode("ascii"), quoted=False)
            except UnicodeDecodeError:
                pass
        return [whole or Piece(self.index, content)]

    def in_json(self, text: bytes, span: Span | None = None) -> list[Piece]:
        """Return the pieces of JSON text, with every value that is the datum as a reference."""
        start, end = span or (0, len(text))
        pieces, at = [], start
        if self._data:
            for found, written in self._find(text, span or json_text.root(text), _MOST_LEVELS):
                pieces += [Piece(self.index, text[at : found.start]), *written]
                at = found.end
        return [*pieces, Piece(self.index, text[at:end])]

    def _find(self, text: bytes, span: Span, levels: int) -> Iterator[tuple[Span, list[Piece]]]:
        size = span.end - span.start
        if size < len(self._data) or not levels:  # no form is shorter
            return
        if size == len(self._data) and (whole := self.whole(text[slice(*span)])):
            yield span, [whole]
        elif text.startswith(b'"', span.start):
            is_close = size <= _LONGEST_ESCAPE * len(self._data) + _LONGEST_HEAD
            pieces = self._string(text[slice(*span)]) if is_close else []
            if len(pieces) > 1:
                yield span, pieces
        elif _NESTED.search(text, span.start + 1, span.end):
            members = (member.value for member in json_text.members(text, span))
            for value in islice(chain(members, json_text.items(text, span)), _MOST_VALUES):
                yield from self._find(text, value, levels - 1)

    def _string(self, quoted: bytes) -> list[Piece]:
        try:
            content = str(read_json(quoted))
        except UnreadableJson:  # impossible: the whole was read
            return []
        if content.encode("utf-8", "surrogatepass") == self._data:
            reference = {"data": self.index, "as": "text"}
            text = Piece(self.index, write(reference, self._data), reference)
            return [Piece(self.index, b'"'), text, Piece(self.index, b'"')]
        return self._coded(content, quoted=True)

    def _coded(self, content: str, *, quoted: bool) -> list[Piece]:
        """Return the pieces of base64, maybe behind `data:…,`; a single one if it is other text."""
        start = content.find(",") + 1 if content[:5].lower() == "data:" else 0
        coded = content[start:].rstrip("\r\n")
        tail = content[start + len(coded) :]
        line_end = _LINE_END.search(coded)
        reference: dict[str, Any] = {"data": self.index, "as": "base64"}
        if line_end is not None:
            ends = _escape(line_end[0]) if quoted else line_end[0]
            reference |= {"line": line_end.start(), "ends": ends}
        quote, head, expected = "", content[:start], coded
        if quoted:
            quote, head, tail, expected = '"', _escape(head), _escape(tail), _escape(coded)
        if len(self._data) < len(coded) <= 2 * len(self._data) + 8 and from_base64(coded):
            written = write(reference, self._data) if reference.get("line", 1) else b""
            if written == expected.encode():
                around = (quote + head).encode(), (tail + quote).encode()
                base64 = Piece(self.index, written, reference)
                return [Piece(self.index, around[0]), base64, Piece(self.index, around[1])]
        return [Piece(self.index, content.encode("utf-8", "surrogatepass"))]

    def _list_paths(self, number: int, name: str) -> Iterator[list[Any]]:
        """Yield the paths at which the datum's JSON may have the list of a tensor."""
        path = self._paths[number]
        if self._data.startswith((b"[", b"{")):
            yield [*path, name] if path else []
            if not path:  # a single tensor whose list cannot be JSON
                yield ["inputs", 0, name]

    def _refer(self, path: Sequence[Any], form: str | None) -> dict[str, Any]:
        at = {"at": [*path]} if path else {}
        return {"data": self.index, **at, **({"as": form} if form else {})}

    def _check(self, reference: Mapping[str, Any], content: bytes) -> Piece | None:
        try:
            written = write(reference, self._data)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
            return None
        return Piece(self.index, content, reference) if written == content else None


def store(pieces: Sequence[Piece], own: Sequence[list[Any]]) -> list[Any]:
    """Return the parts of a message. What another inference than the first owns is added to its
    parts in `own`, and referred to."""
    parts: list[Any] = []
    for (owner, is_reference), group in groupby(pieces, lambda p: (p.owner, bool(p.reference))):
        if is_reference:
            parts += [piece.reference for piece in group]
            continue
        content = b"".join(piece.content for piece in group)
        part = _encode(content)
        if owner and content:
            own[owner].append(part)
            part = {"of": owner, "part": len(own[owner]) - 1}
        parts += [part] if content else []
    return parts


def write(reference: Mapping[str, Any], datum: bytes) -> bytes:
    """Write what a reference refers to. Raises ValueError, TypeError and the like if the datum does
    not have it."""
    path, form = reference.get("at"), reference.get("as")
    value = text_at(datum, path) if path else datum
    if value is None:
        raise ValueError(f"the datum has nothing at {path}")
    if form is None:
        content: bytes = _bytes_of(json.loads(value)) if path else value
        return content
    if form == "slice":
        return value[reference["from"] : reference["to"]]
    if form == "base64":
        return _write_base64(value, reference.get("line"), reference.get("ends", ""))
    return _FORMS[form](value) if form in _FORMS else _write_tensor(value, form)


def _write_tensor(text: bytes, form: str) -> bytes:
    values = [_bytes_of(item) for item in json.loads(text)]
    if form.endswith("_contents"):
        built = message("inference.InferTensorContents")(**{form: values})
        return bytes(built.SerializeToString(deterministic=True))
    raw = encoded(form, values)
    if raw is None:
        raise ValueError(f"the values are not {form}")
    return raw


def text_at(text: bytes, path: Sequence[Any]) -> bytes | None:
    """Return the JSON text at a path; None if there is none."""
    span: Span | None = json_text.root(text)
    for step in path:
        if span is None:
            return None
        if isinstance(step, str):
            span = json_text.by_name(text, span).get(step)
        else:
            span = next(islice(json_text.items(text, span), step, None), None)
    return None if span is None else text[slice(*span)]


def _bytes_of(value: Any) -> Any:
    """Return the bytes of a text or of `{"b64": …}`; another value unchanged."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return b64decode(value["b64"]) if isinstance(value, dict) else value


def _write_base64(datum: bytes, line: int | None, ends: str) -> bytes:
    coded = b64encode(datum)
    if not line:
        return coded
    return ends.encode().join(coded[at : at + line] for at in range(0, len(coded), line))


def _escape(text: str) -> str:
    return json.dumps(text)[1:-1]


def _encode(content: bytes) -> Any:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(content).decode()}


_FORMS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "text": lambda value: _escape(value.decode("utf-8", "surrogatepass")).encode(),
    "items": lambda value: value.strip()[1:-1],
    "decoded": lambda value: b64decode(json.loads(value)),
}
