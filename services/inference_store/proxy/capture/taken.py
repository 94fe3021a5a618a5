"""Values that were taken out of a request, looked for in what was answered: a model server repeats
what it was sent, in its answer, in an error, as an id."""

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

from .coded_texts import from_text, in_codings, may_hold_bytes

GAP = "[redacted]"
"""Stands in an answer where a value was that was dropped."""
MOST_VALUES = 64
"""So many of an exchange are looked for: each costs a look through all of the answer."""
SHORTEST = 4
"""Characters of a text that is looked for inside others; a shorter one would be met by chance."""
LONGEST = 4096
_ONE_BYTE = frozenset({"latin-1", "cp1252"})
_WHOLE_NUMBER = re.compile(r"-?[0-9]{6,}")
Instead: TypeAlias = str


class Taken:
    """The values of one exchange, each with what stands in its place."""

    def __init__(self) -> None:
        self._texts: dict[str, Instead] = {}
        self._names: dict[str, Instead] = {}
        self._coded: dict[bytes, bytes] = {}

    def note(self, value: Json, instead: Any) -> None:
        """A value was taken out. `instead`: its hash; what is no text: it was dropped."""
        for text in _texts_of(value):
            if len(self._names) >= MOST_VALUES:
                return
            put = instead if isinstance(instead, str) and text != instead else GAP
            self._names.setdefault(text, put)
            if SHORTEST <= len(text) <= LONGEST:
                self._texts = {**dict.fromkeys(_forms_of(text), put), **self._texts}
        # a value may be a part of another: that one first
        self._texts = dict(sorted(self._texts.items(), key=lambda each: -len(each[0])))
        self._coded = {}

    def without(self, text: str) -> str:
        """A text without them."""
        for value, instead in self._texts.items():
            if value in text:
                text = text.replace(value, instead)
        return text

    def without_in_bytes(self, raw: bytes) -> bytes:
        """Bytes without them, in whatever coding they stand there."""
        if not self._coded:
            for text, put in self._texts.items():
                found = in_codings(text).items()
                self._coded |= {coded: put.encode(coding) for coded, coding in found}
        for coded, instead in self._coded.items():
            if coded in raw:
                raw = raw.replace(coded, instead)
        return raw

    def without_in_base64(self, text: str) -> str:
        """A text that is base64 without them; every other as it is."""
        raw = from_text(text) or b""
        found = self.without_in_bytes(raw)
        return text if found == raw else b64encode(found).decode()

    def name(self, name: str | None) -> str | None:
        """An id without them; None where one was in it that was dropped."""
        if name is None or not self._names:
            return name
        found = self._names.get(name) or self.without(name)
        return None if GAP in found and GAP not in name else found

    def answer(self, raw: bytes) -> bytes:
        """An answer without them; as it came, where there are none in it."""
        if not self._texts or self._is_plainly_without(raw):
            return raw
        try:
            document = read_exactly(raw)
        except UnreadableJson:
            return self.without_in_bytes(raw)
        changed = _Walk(self).through(document)
        return raw if changed is None else write_json(changed).encode("utf-8", "backslashreplace")

    def _is_plainly_without(self, raw: bytes) -> bool:
        """Without reading it: where nothing is escaped, what is in it stands there."""
        if b"\\" in raw or b"\0" in raw or may_hold_bytes(raw):
            return False
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return False
        return not any(value in text for value in self._texts)

    def number(self, value: Json) -> str | None:
        """What stands in the place of a number; None: itself."""
        return self._texts.get(str(value)) if is_json_number(value) else None


class _Walk:
    """Through a document, without recursion."""

    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self._changed = False

    def through(self, document: Json) -> Json | None:
        """The document changed; None: nothing was in it."""
        root = [document]
        waiting: list[Json] = [root]
        while waiting:
            holder = waiting.pop()
            if isinstance(holder, dict):
                self._rename(holder)
            pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
            for place, value in list(pairs):
                if isinstance(value, (dict, list)):
                    waiting.append(value)
                elif (new := self._new(value)) is not None:
                    holder[place], self._changed = new, True
        return root[0] if self._changed else None

    def _new(self, value: Json) -> str | None:
        if type(value) is not str:
            return self._taken.number(value)
        found = self._taken.without(value)
        if found == value:
            found = self._taken.without_in_base64(value)
        return None if found == value else found

    def _rename(self, holder: dict[str, Json]) -> None:
        names = {name: self._taken.without(name) for name in holder}
        if any(name != new for name, new in names.items()):
            members = [(names[name], value) for name, value in holder.items()]
            holder.clear()
            holder.update(members)
            self._changed = True


def _texts_of(value: Json) -> Iterator[str]:
    """The texts and long whole numbers in a value."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)
        elif type(found) is str and found:
            yield found
        elif is_json_number(found) and _WHOLE_NUMBER.fullmatch(str(found)):
            yield str(found)


def _forms_of(text: str) -> dict[str, None]:
    """A text as it is, as it stands in JSON inside a text, and in latin-1 read as UTF-8."""
    if isinstance(text, Number):
        return {str(text): None}
    escaped = (json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    return dict.fromkeys((text, *escaped, *_misread(text)))


def _misread(text: str) -> Iterator[str]:
    """A text in latin-1, read as UTF-8: where enough of it is left to be known again."""
    for raw, coding in in_codings(text).items():
        found = raw.decode("utf-8", "replace") if coding in _ONE_BYTE else ""
        if len(found.replace("\ufffd", "")) >= SHORTEST:
            yield found
