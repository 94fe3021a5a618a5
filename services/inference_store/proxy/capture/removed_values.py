"""Removes a request's removed values from the answer, too: a model server may repeat its input in
an answer, in an error, or as an id.

Bytes that are not UTF-8 are written as base64, so the values are searched for in base64, too.
"""

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from inference_store.inference.json_text import (
    Json,
    Number,
    UnreadableJson,
    is_json_number,
    read_exactly,
    write_json,
)

Change: TypeAlias = Callable[[Json], Json]
"""Returns a value's replacement; GONE if it is removed."""
GONE = object()
ELEMENTS = "[]"
_STEP = re.compile(r'"((?:[^"\\]|\\.)*)"|([^.\[\]"]+)|(\[\])|(\.)')


def parse_path(path: str) -> tuple[str, ...]:
    """Return the steps of a path: names, and ELEMENTS for all elements of an array.

    A name with dots is written in double quotes. Raises ValueError if the text is not a path.
    """
    steps: list[str] = []
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise ValueError(f"{path!r} is no path: character {at} cannot be read")
        quoted, name, elements, _ = match.groups()
        if quoted is not None:
            steps.append(re.sub(r"\\(.)", r"\1", quoted))
        elif name or elements:
            steps.append(name or elements)
        at = match.end()
    if not steps:
        raise ValueError("a path has at least one name")
    return tuple(steps)


def change_values(document: Json, steps: Sequence[str], change: Change) -> None:
    """Change every value that a path leads to, in place; what is not there is left alone."""
    *way, last = steps
    for holder in list(_find_holders(document, way)):
        if last == ELEMENTS and isinstance(holder, list):
            holder[:] = [new for item in holder if (new := change(item)) is not GONE]
        elif isinstance(holder, dict) and last in holder:
            new = change(holder[last])
            if new is GONE:
                del holder[last]
            else:
                holder[last] = new


def _find_holders(document: Json, way: Sequence[str]) -> Iterator[Json]:
    if not way:
        yield document
        return
    step, *rest = way
    if step == ELEMENTS and isinstance(document, list):
        for item in document:
            yield from _find_holders(item, rest)
    elif isinstance(document, dict) and step in document:
        yield from _find_holders(document[step], rest)


_CODINGS = ("utf-8", "latin-1", "cp1252", "utf-16-le", "utf-16-be")
# Names that stand beside base64 wherever we write it: `b64`, `base64`, `data_base64`.
_MARKS = (b"b64", b"base64")


def encode_in_codings(text: str) -> dict[bytes, str]:
    """Return a text as bytes in all codings, each with the first coding that yields them."""
    list_codings: dict[bytes, str] = {}
    for coding in _CODINGS:
        try:
            list_codings.setdefault(text.encode(coding), coding)
        except UnicodeEncodeError:
            continue
    return list_codings


def may_hold_bytes(raw: bytes) -> bool:
    """Return whether JSON may contain base64 that we wrote."""
    return any(mark in raw for mark in _MARKS)


def from_text(text: str) -> bytes | None:
    """Return the bytes of a base64 text; None if it is not base64."""
    try:
        return b64decode(text, validate=True) if len(text) % 4 == 0 else None
    except (binascii.Error, ValueError):
        return None


def find_base64_bytes(raw: bytes) -> Iterator[bytes]:
    """Yield all bytes that stand in JSON as base64."""
    try:
        document = read_exactly(raw) if may_hold_bytes(raw) else None
    except UnreadableJson:
        return
    for value in walk(document):
        if type(value) is str and (decoded := from_text(value)):
            yield decoded


def walk(root: Json) -> Iterator[Json]:
    """Yield a document and every value in it, without recursion."""
    waiting = [root]
    while waiting:
        value = waiting.pop()
        yield value
        if isinstance(value, (dict, list)):
            waiting.extend(value.values() if isinstance(value, dict) else value)


GAP = "[redacted]"
"""Replaces a dropped value in an answer."""
MOST_VALUES = 64
"""The most values of an exchange that are searched for: each one costs a search of the whole
answer."""
SHORTEST = 4
"""The fewest characters of a text that is searched for inside others; a shorter one would match by
chance."""
LONGEST = 4096
_ONE_BYTE = frozenset({"latin-1", "cp1252"})
_WHOLE_NUMBER = re.compile(r"-?[0-9]{6,}")
Replacement: TypeAlias = str


class RemovedValues:
    """The removed values of one exchange, each with its replacement."""

    def __init__(self) -> None:
        self._texts: dict[str, Replacement] = {}
        self._names: dict[str, Replacement] = {}
        self._coded: dict[bytes, bytes] = {}

    def note(self, value: Json, instead: Any) -> None:
        """Note a removed value. `instead`: its hash; anything but a text means that it was
        dropped."""
        for text in _find_texts(value):
            if len(self._names) >= MOST_VALUES:
                return
            replacement = instead if isinstance(instead, str) and text != instead else GAP
            self._names.setdefault(text, replacement)
            if SHORTEST <= len(text) <= LONGEST:
                self._texts = {**dict.fromkeys(_list_forms(text), replacement), **self._texts}
        # a value may be a part of another: replace the longer one first
        self._texts = dict(sorted(self._texts.items(), key=lambda item: -len(item[0])))
        self._coded = {}

    def replace_in_text(self, text: str) -> str:
        """Return a text with the values replaced."""
        for value, instead in self._texts.items():
            if value in text:
                text = text.replace(value, instead)
        return text

    def replace_in_bytes(self, raw: bytes) -> bytes:
        """Return bytes with the values replaced, in any coding."""
        if not self._coded:
            for text, replacement in self._texts.items():
                list_codings = encode_in_codings(text).items()
                self._coded |= {coded: replacement.encode(coding) for coded, coding in list_codings}
        for coded, instead in self._coded.items():
            if coded in raw:
                raw = raw.replace(coded, instead)
        return raw

    def replace_in_base64(self, text: str) -> str:
        """Return a base64 text with the values replaced; any other text unchanged."""
        raw = from_text(text) or b""
        replaced = self.replace_in_bytes(raw)
        return text if replaced == raw else b64encode(replaced).decode()

    def name(self, name: str | None) -> str | None:
        """Return an id with the values replaced; None if it contained a dropped value."""
        if name is None or not self._names:
            return name
        replaced = self._names.get(name) or self.replace_in_text(name)
        return None if GAP in replaced and GAP not in name else replaced

    def answer(self, raw: bytes) -> bytes:
        """Return an answer with the values replaced; unchanged if it contains none."""
        if not self._texts or self._is_surely_clean(raw):
            return raw
        try:
            document = read_exactly(raw)
        except UnreadableJson:
            return self.replace_in_bytes(raw)
        changed = _DocumentReplacer(self).replace(document)
        return raw if changed is None else write_json(changed).encode("utf-8", "backslashreplace")

    def _is_surely_clean(self, raw: bytes) -> bool:
        """Return whether an answer certainly contains no value, without parsing it: nothing is
        escaped, and no value occurs."""
        if b"\\" in raw or b"\0" in raw or may_hold_bytes(raw):
            return False
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return False
        return not any(value in text for value in self._texts)

    def number(self, value: Json) -> str | None:
        """Return the replacement of a number; None if it has none."""
        return self._texts.get(str(value)) if is_json_number(value) else None


class _DocumentReplacer:
    """Replaces values in a document, without recursion."""

    def __init__(self, values: RemovedValues) -> None:
        self._values = values
        self._changed = False

    def replace(self, document: Json) -> Json | None:
        """Return the changed document; None if it contained no value."""
        root = [document]
        waiting: list[Json] = [root]
        while waiting:
            holder = waiting.pop()
            if isinstance(holder, dict):
                self._replace_names(holder)
            pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
            for key, value in list(pairs):
                if isinstance(value, (dict, list)):
                    waiting.append(value)
                elif (new := self._find_replacement(value)) is not None:
                    holder[key], self._changed = new, True
        return root[0] if self._changed else None

    def _find_replacement(self, value: Json) -> str | None:
        if type(value) is not str:
            return self._values.number(value)
        replaced = self._values.replace_in_text(value)
        if replaced == value:
            replaced = self._values.replace_in_base64(value)
        return None if replaced == value else replaced

    def _replace_names(self, holder: dict[str, Json]) -> None:
        names = {name: self._values.replace_in_text(name) for name in holder}
        if any(name != new for name, new in names.items()):
            members = [(names[name], value) for name, value in holder.items()]
            holder.clear()
            holder.update(members)
            self._changed = True


def _find_texts(root: Json) -> Iterator[str]:
    for value in walk(root):
        if type(value) is str and value:
            yield value
        elif is_json_number(value) and _WHOLE_NUMBER.fullmatch(str(value)):
            yield str(value)


def _list_forms(text: str) -> dict[str, None]:
    """Return the forms of a text: unchanged, as JSON inside a text, and as latin-1 misread as
    UTF-8."""
    if isinstance(text, Number):
        return {str(text): None}
    escaped = (json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    return dict.fromkeys((text, *escaped, *_list_misread(text)))


def _list_misread(text: str) -> Iterator[str]:
    for raw, coding in encode_in_codings(text).items():
        misread = raw.decode("utf-8", "replace") if coding in _ONE_BYTE else ""
        if len(misread.replace("\ufffd", "")) >= SHORTEST:
            yield misread
