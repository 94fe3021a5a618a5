"""Reads untrusted JSON: any bytes give a value or one named error.

`read_json` is the fast way (orjson). It uses `read_exactly` if orjson refuses, which preserves what
orjson cannot: every number as it was written, lone surrogates, NaN, repeated names. `exact_json`
reads what people send us: strictly, with numbers to calculate with.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import orjson

Json: TypeAlias = Any  # dict | list | str | int | float | bool | None | Number

_SMALL_DIGITS: Final = 18
MAX_DEPTH: Final = 128
"""Nesting that is still read: far below what would exhaust Python's stack."""

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([+-]?[0-9]+))?", re.ASCII)
_NON_FINITE: Final = re.compile(r"[+-]?(?:nan|inf|infinity)", re.ASCII | re.IGNORECASE)
_STRINGS: Final = re.compile(r'"[^"]*"?')
_BRACKETS: Final = re.compile(r"[\[\]{}]")
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


class Number(str):
    """A JSON number as it was written; also `NaN`, `Infinity` and `-Infinity`."""

    __slots__ = ()


class RepeatedNames(dict[str, Json]):
    """An object with a repeated name, whose last value it has; `pairs` has all, in order."""

    pairs: Sequence[tuple[str, Json]] = ()

    @property
    def names(self) -> Sequence[str]:
        """The repeated names, in order."""
        times = Counter(name for name, _ in self.pairs)
        return sorted(name for name, number in times.items() if number > 1)


class UnreadableJson(ValueError):
    """The bytes are not JSON. `str()` of the error gives the reason and the position."""


class TooDeep(UnreadableJson):
    """Nested deeper than `MAX_DEPTH`."""


def read_json(raw: bytes | str) -> Json:
    """Return the value; numbers are int and float, or `Number` if the exact way was needed.

    Raises UnreadableJson.
    """
    try:
        return orjson.loads(raw)
    except ValueError:  # orjson's own error, and text that cannot be encoded
        return read_exactly(raw)


def read_exactly(raw: bytes | str) -> Json:
    """Return the value with every number a `Number`, and repeated names noticed (`RepeatedNames`).

    Bytes that are not UTF-8 become lone surrogates (U+DC80 to U+DCFF), so that the rest is saved.
    Raises UnreadableJson.
    """
    text = raw if isinstance(raw, str) else text_of(raw)
    _refuse_depth(text)
    try:
        return _EXACT.decode(text)
    except json.JSONDecodeError as exc:
        raise UnreadableJson(_describe_error(exc)) from None


def text_of(raw: bytes) -> str:
    """Return the text of JSON bytes: UTF-8, with or without a byte order mark, or UTF-16 or 32 by
    their zeros."""
    encoding = json.detect_encoding(raw)
    if encoding.startswith("utf-8"):
        return raw.decode(encoding, "surrogateescape")
    try:
        return raw.decode(encoding, "surrogatepass")
    except UnicodeDecodeError:  # cut in the middle of a character, or beyond the last one
        return raw.decode(encoding, "replace")


def write_json(value: Json, *, levels: int = MAX_DEPTH) -> str:
    """Return the JSON text of a value that was read here; a `Number` as it was written.

    A value nested deeper than `levels`, which only orjson reads, is written as "…".
    """
    if isinstance(value, Number):
        return str.__str__(value)
    if not isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    if levels == 0:
        return '"…"'
    if isinstance(value, list):
        return "[" + ", ".join([write_json(item, levels=levels - 1) for item in value]) + "]"
    written = [
        f"{json.dumps(name, ensure_ascii=False)}: {write_json(member, levels=levels - 1)}"
        for name, member in list_members(value)
    ]
    return "{" + ", ".join(written) + "}"


def list_members(value: Mapping[str, Json]) -> Iterable[tuple[str, Json]]:
    """Return the members of an object, those with a repeated name too."""
    return value.pairs if isinstance(value, RepeatedNames) else value.items()


def storable(text: str) -> bool:
    """Return whether Postgres can store a text: neither NUL nor a lone surrogate."""
    return "\0" not in text and (text.isascii() or _UNSTORABLE.search(text) is None)


def is_number(text: str) -> bool:
    """Return whether the whole text is a decimal number: no white space, no NaN, ASCII digits."""
    return _NUMBER.fullmatch(text) is not None


def is_non_finite(text: str) -> bool:
    """Return whether the whole text spells NaN or an infinity."""
    return _NON_FINITE.fullmatch(text) is not None


def is_json_number(value: Json) -> bool:
    """Return whether a value is a number, however it was read; a bool is not."""
    return isinstance(value, (Number, int, float)) and not isinstance(value, bool)


def encoding_problem(raw: bytes) -> str | None:
    """Return where bytes are not UTF-8; None if they are, or are UTF-16 or 32."""
    if not json.detect_encoding(raw).startswith("utf-8"):
        return None
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        return f"byte 0x{raw[exc.start]:02x} at offset {exc.start} is not UTF-8"
    return None


def exact(text: str, *, digits: int, exponent: int) -> Decimal | None:
    """Return the number that a decimal text spells; None if it is over a cap.

    `digits`: most digits written; `exponent`: largest |exponent| written after the `e`.
    Raises ValueError if the text is not a number.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError("not a decimal number")
    power = match[1]
    if power is not None and (len(power.lstrip("+-0")) > 6 or abs(int(power)) > exponent):
        return None
    if len(text) > digits and sum(map(str.isdigit, re.split("[eE]", text)[0])) > digits:
        return None
    return Decimal(text)


def read_object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Return the object of these members, with repeated names noticed (`RepeatedNames`)."""
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    repeated = RepeatedNames(members)
    repeated.pairs = pairs
    return repeated


def exact_json(text: bytes) -> Json:
    """Return what strict JSON in UTF-8 says: a number with a point or many digits is a Decimal, and
    repeated names are noticed. Raises json.JSONDecodeError, whatever is wrong with it."""
    try:
        return _STRICT.decode(text.decode("utf-8"))
    except UnicodeDecodeError as exc:
        raise json.JSONDecodeError("it is not UTF-8", "", exc.start) from None
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", "", 0) from None
    except InvalidOperation:
        raise json.JSONDecodeError("the exponent of a number is too large", "", 0) from None


def _read_integer(digits: str) -> int | Decimal:
    # Python's int() refuses very many digits, and is slow before that.
    return int(digits) if len(digits) <= _SMALL_DIGITS else Decimal(digits)


def _refuse_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is not JSON", "", 0)


def _refuse_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    without_escapes = text.replace("\\\\", "").replace('\\"', "")
    for bracket in _BRACKETS.findall(_STRINGS.sub("", without_escapes)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise TooDeep(f"nested deeper than {MAX_DEPTH} levels")


def _describe_error(exc: json.JSONDecodeError) -> str:
    """Describe the error, its position, and the text around it, so that it can be stored and
    shown."""
    near = exc.doc[max(0, exc.pos - 20) : exc.pos + 20]  # repr() escapes NUL and surrogates
    what = exc.msg[:1].lower() + exc.msg[1:].removesuffix(" at")
    position = f"line {exc.lineno}, column {exc.colno} (character {exc.pos})"
    return f"{what} at {position}, near {near!r}"


_number: Callable[[str], Number] = Number
# strict=False: a raw control character in a string is kept, not refused.
_EXACT: Final = json.JSONDecoder(
    object_pairs_hook=read_object,
    parse_float=_number,
    parse_int=_number,
    parse_constant=_number,
    strict=False,
)
_STRICT: Final = json.JSONDecoder(
    object_pairs_hook=read_object,
    parse_float=Decimal,
    parse_int=_read_integer,
    parse_constant=_refuse_constant,
)


# The spans of values in a JSON text, in bytes: to take or cut them out unchanged.
#
# The text must be JSON, as `json_text.read_json` reads it, in UTF-8: errors are not noticed here.
# Only names are decoded; nesting of any depth needs no stack.

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
# No pattern here can fail after a partial match, so none ever backtracks; and a repetition of
# groups has a limit, since each round of it takes memory.
_BLANK: Final = re.compile(rb"[ \t\r\n]*")
_SCALAR: Final = re.compile(rb'[^ \t\r\n,:"\[\]{}]*')
_ESCAPES: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*){0,999}', re.DOTALL)
# Everything but brackets, and strings that are long or have escapes: there is a faster way for
# those.
_PLAIN: Final = re.compile(rb'(?:[^"\[\]{}]+|"[^"\\]{0,99}"|\[[^"\[\]{}]*\]){0,999}', re.DOTALL)


class Span(NamedTuple):
    """The start and the end of a value."""

    start: int
    end: int


class Member(NamedTuple):
    """A member of an object."""

    name: str
    whole: Span
    """From its name's first quote to its value's end."""
    value: Span


def root(text: bytes, at: int = 0) -> Span:
    """Return the span of the whole text's value, or of the value after a position."""
    return _value(
        text, _skip(text, len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK, at) else at)
    )


def members(text: bytes, span: Span) -> Iterator[Member]:
    """Yield each member of an object in order, including repeated names; nothing for other
    values."""
    if text[span.start : span.start + 1] != b"{":
        return
    at = _skip(text, span.start + 1)
    while at < span.end - 1:
        name = _value(text, at)
        value = _value(text, _skip(text, _skip(text, name.end) + 1))
        yield Member(_name(text[name.start : name.end]), Span(at, value.end), value)
        at = _skip(text, _skip(text, value.end) + 1)


def items(text: bytes, span: Span) -> Iterator[Span]:
    """Yield the span of each element of a list; nothing for other values."""
    if text[span.start : span.start + 1] != b"[":
        return
    at = _skip(text, span.start + 1)
    while at < span.end - 1:
        value = _value(text, at)
        yield value
        at = _skip(text, _skip(text, value.end) + 1)


def by_name(text: bytes, span: Span) -> dict[str, Span]:
    """Return the spans of the members' values; of a repeated name the last."""
    return {member.name: member.value for member in members(text, span)}


_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SHORT: Final = 1024 * 1024
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECTS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def cut_members(text: bytes) -> dict[str, bytes]:
    """Return the members' values of a JSON text as they are written; of a repeated name the last;
    nothing of other values."""
    try:
        return {name: bytes(value) for name, value in _MEMBERS.decode(text).items()}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):  # NaN, surrogates, no object
        return {it.name: text[slice(*it.value)] for it in members(text, root(text))}


def cut_items(text: bytes, most: int | None = None) -> list[bytes]:
    """Return the elements of a JSON text as they are written, of many at least `most`; nothing of
    other values."""
    if most is None or len(text) <= _SHORT:
        with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return [bytes(value) for value in _ITEMS.decode(text)]
    return [text[slice(*it)] for it in islice(items(text, root(text)), most)]


def cut_objects(text: bytes, most: int) -> list[dict[str, bytes]] | None:
    """Return the members of each object in a list, as `cut_members` does, of many objects at least
    `most`; None if an element is none. A long text is scanned once."""
    if len(text) <= _SHORT:
        with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            found = _OBJECTS.decode(text)
            return [{name: bytes(value) for name, value in each.items()} for each in found]
    elements = cut_items(text, most)
    is_of_objects = all(element.startswith(b"{") for element in elements)
    return list(map(cut_members, elements)) if is_of_objects else None


def _name(text: bytes) -> str:
    try:
        return str(read_json(text))
    except UnreadableJson:  # impossible in JSON
        return text.decode("latin-1")


def _skip(text: bytes, at: int) -> int:
    return _match_end(_BLANK, text, at)


def _match_end(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _value(text: bytes, at: int) -> Span:
    """Return the span of the value at a position; never empty, so that every loop ends."""
    first = text[at : at + 1]
    if first in (b"{", b"["):
        return Span(at, _closed(text, at))
    if first == b'"':
        return Span(at, _skip_text(text, at))
    return Span(at, max(_match_end(_SCALAR, text, at), at + 1))


def _skip_text(text: bytes, start: int) -> int:
    end = text.find(b'"', start + 1)  # images in base64: a hundred times faster than any pattern
    if end >= 0 and text.find(b"\\", start + 1, end) < 0:
        return end + 1
    before, at = start, start + 1
    while at > before:
        before, at = at, _match_end(_ESCAPES, text, at)
        if text.startswith(b'"', at):
            return at + 1
    return len(text)


def _closed(text: bytes, start: int) -> int:
    depth, at = 1, start + 1
    while depth:
        at = _match_end(_PLAIN, text, at)
        first = text[at : at + 1]
        if first == b'"':
            at = _skip_text(text, at)
        elif first in (b"[", b"{"):
            depth, at = depth + 1, at + 1
        elif first in (b"]", b"}"):
            depth, at = depth - 1, at + 1
        elif not first:
            break
    return at
