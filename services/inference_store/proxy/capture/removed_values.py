"""Removes a request's removed values from the answer, too: a model server may repeat its input in
an answer, in an error, or as an id."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, TypeAlias

from inference_store.inference.json_text import (
    Json,
    Number,
    UnreadableJson,
    is_json_number,
    read_exactly,
    write_json,
)

from .coded_texts import encode_in_codings, from_text, may_hold_bytes

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
    """Yield the texts and long whole numbers in a value."""
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif type(value) is str and value:
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
    """Yield a text in latin-1 misread as UTF-8, if enough of it is left to recognize it."""
    for raw, coding in encode_in_codings(text).items():
        misread = raw.decode("utf-8", "replace") if coding in _ONE_BYTE else ""
        if len(misread.replace("\ufffd", "")) >= SHORTEST:
            yield misread
