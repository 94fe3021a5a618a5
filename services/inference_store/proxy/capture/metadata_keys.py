"""Metadata keys, taken out of metadata in any of its forms: text, a list of items, sections, names
and values; wherever it lies in a body, and however deep inside."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from inference_store.inference.json_text import Json, UnreadableJson, read_exactly, write_json
from inference_store.proxy.rules import Redaction

from .coded_texts import bytes_in, in_codings
from .json_paths import GONE, Change

_SECTIONS = frozenset({"standard_metadata", "extended_metadata", "metadata"})
# Lists, objects and strings inside each other: what lies deeper is not looked through, and so not
# kept. Nobody reads metadata that deep.
_MOST_LEVELS = 32
_BEGIN_JSON = ("{", "[", '"')


class MetadataKeys:
    """The keys that some rules name. `changed`: what comes in a value's place."""

    def __init__(self, rules: Mapping[str, Redaction], changed: Any) -> None:
        self._changes: dict[str, Change] = {
            name: partial(changed, rule) for name, rule in rules.items()
        }
        self.found = 0
        """How often something was taken out."""

    def __bool__(self) -> bool:
        return bool(self._changes)

    def are_in(self, raw: bytes) -> bool:
        """Whether one of them is in these bytes, word for word."""
        return any(key.encode() in raw for key in self._changes)

    def may_be_in(self, raw: bytes) -> bool:
        """Whether one of them is, or may be as an escape of JSON."""
        return b"\\u" in raw or self.are_in(raw)

    def are_coded_in(self, raw: bytes) -> bool:
        """Whether one of them is a name in bytes that stand in JSON as base64."""
        names = b"|".join(re.escape(each) for key in self._changes for each in in_codings(key))
        written = re.compile(b'"(?:' + names + rb')"\s*[:,}]')
        return any(written.search(found) for found in bytes_in(raw))

    def body(self, document: Json) -> Json:
        """A body: all `metadata` in it, and itself where it is metadata."""
        if not isinstance(document, dict):
            document = self.envelope(document)
        else:
            document = self._object(document, _MOST_LEVELS, is_body=True)
        waiting = [document]
        while waiting:
            found = waiting.pop()
            if isinstance(found, dict):
                waiting.extend(each for name, each in found.items() if name not in _SECTIONS)
                if "metadata" in found:
                    found["metadata"] = self.envelope(found["metadata"])
            elif isinstance(found, list):
                waiting.extend(found)
        return document

    def envelope(self, value: Json) -> Json:
        """Metadata alone."""
        return self._envelope(value, _MOST_LEVELS)

    def by_key(self, name: str, value: Any) -> Any:
        """What becomes of the value of a key; GONE: it is taken out."""
        change = self._changes.get(name)
        if change is None:
            return value
        self.found += 1
        return change(value)

    def _nothing(self) -> str:
        self.found += 1
        return ""

    def _envelope(self, value: Json, left: int) -> Json:
        if type(value) is str:
            return self._text(value, left)
        if isinstance(value, (list, dict)) and left <= 0:
            return self._nothing()
        if isinstance(value, list):
            items = [self._item(each, left - 1) for each in value]
            return [each for each in items if each is not GONE]
        return self._object(value, left - 1) if isinstance(value, dict) else value

    def _text(self, value: str, left: int) -> str:
        """Metadata as a text."""
        try:
            inner = read_exactly(value)
        except UnreadableJson:
            return self._nothing() if any(key in value for key in self._changes) else value
        if not isinstance(inner, (dict, list, str)):
            return value
        return write_json(self._envelope(inner, left - 1)) if left > 0 else self._nothing()

    def _item(self, item: Json, left: int) -> Json:
        if isinstance(item, dict) and isinstance(item.get("key"), str):
            if item["key"] not in self._changes:
                given = {"value": self._value(item["value"], left)} if "value" in item else {}
                return item | given
            new = self.by_key(item["key"], item.get("value"))
            return GONE if new is GONE else {**item, "type": "string", "value": new}
        return self._envelope(item, left)

    def _object(self, value: dict[str, Json], left: int, *, is_body: bool = False) -> Json:
        if "key" in value and not is_body:
            item = self._item(value, left)
            return {} if item is GONE else item
        found: dict[str, Json] = {}
        for name, each in value.items():
            new = self.by_key(name, each)
            if new is GONE:
                continue
            if name in _SECTIONS:
                new = self._envelope(new, left)
            elif not is_body and name not in self._changes:
                new = self._value(new, left)
            found[name] = new
        return found

    def _value(self, value: Json, left: int) -> Json:
        """The value of another key, which may hold more metadata: as it was, where it does not."""
        if isinstance(value, (dict, list)):
            return self._envelope(value, left)
        if type(value) is not str or not value.lstrip().startswith(_BEGIN_JSON):
            return value
        try:
            inner = read_exactly(value)
        except UnreadableJson:
            return value
        if left <= 0:
            return self._nothing()
        new = self._envelope(inner, left - 1) if isinstance(inner, (dict, list)) else inner
        return value if new == inner else write_json(new)
