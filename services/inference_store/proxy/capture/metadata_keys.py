"""Removes metadata keys from metadata in any form: text, a list of items, sections, names and
values; anywhere in a body, at any depth."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from inference_store.inference.json_text import Json, UnreadableJson, read_exactly, write_json
from inference_store.proxy.rules import Redaction

from .coded_texts import encode_in_codings, find_base64_bytes
from .json_paths import GONE, Change

_SECTIONS = frozenset({"standard_metadata", "extended_metadata", "metadata"})
# Nested lists, objects and strings: what is nested deeper is not searched, and so not kept. Nobody
# reads metadata that deep.
_MOST_LEVELS = 32
_BEGIN_JSON = ("{", "[", '"')


class MetadataKeys:
    """The keys that some rules name. `changed` returns the replacement of a value."""

    def __init__(self, rules: Mapping[str, Redaction], changed: Any) -> None:
        self._changes: dict[str, Change] = {
            name: partial(changed, rule) for name, rule in rules.items()
        }
        self.removed_count = 0
        """How many values were removed."""

    def __bool__(self) -> bool:
        return bool(self._changes)

    def are_in(self, raw: bytes) -> bool:
        """Return whether one of the keys is in these bytes, unescaped."""
        return any(key.encode() in raw for key in self._changes)

    def may_be_in(self, raw: bytes) -> bool:
        """Return whether one of the keys is in these bytes, or may be as a JSON escape."""
        return b"\\u" in raw or self.are_in(raw)

    def are_coded_in(self, raw: bytes) -> bool:
        """Return whether one of the keys is a name in bytes that stand in JSON as base64."""
        names = b"|".join(
            re.escape(coded) for key in self._changes for coded in encode_in_codings(key)
        )
        written = re.compile(b'"(?:' + names + rb')"\s*[:,}]')
        return any(written.search(decoded) for decoded in find_base64_bytes(raw))

    def redact_body(self, document: Json) -> Json:
        """Redact a body: all `metadata` in it, and the body itself if it is metadata."""
        if not isinstance(document, dict):
            document = self.redact_envelope(document)
        else:
            document = self._redact_object(document, _MOST_LEVELS, is_body=True)
        waiting = [document]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                waiting.extend(member for name, member in value.items() if name not in _SECTIONS)
                if "metadata" in value:
                    value["metadata"] = self.redact_envelope(value["metadata"])
            elif isinstance(value, list):
                waiting.extend(value)
        return document

    def redact_envelope(self, value: Json) -> Json:
        """Redact metadata that are not in a body."""
        return self._redact_envelope(value, _MOST_LEVELS)

    def redact_value(self, name: str, value: Any) -> Any:
        """Return the redacted value of a key; GONE if it is removed."""
        change = self._changes.get(name)
        if change is None:
            return value
        self.removed_count += 1
        return change(value)

    def _remove(self) -> str:
        self.removed_count += 1
        return ""

    def _redact_envelope(self, value: Json, levels: int) -> Json:
        if type(value) is str:
            return self._redact_text(value, levels)
        if isinstance(value, (list, dict)) and levels <= 0:
            return self._remove()
        if isinstance(value, list):
            items = [self._redact_item(item, levels - 1) for item in value]
            return [item for item in items if item is not GONE]
        return self._redact_object(value, levels - 1) if isinstance(value, dict) else value

    def _redact_text(self, value: str, levels: int) -> str:
        """Redact metadata in a text."""
        try:
            inner = read_exactly(value)
        except UnreadableJson:
            return self._remove() if any(key in value for key in self._changes) else value
        if not isinstance(inner, (dict, list, str)):
            return value
        return (
            write_json(self._redact_envelope(inner, levels - 1)) if levels > 0 else self._remove()
        )

    def _redact_item(self, item: Json, levels: int) -> Json:
        if isinstance(item, dict) and isinstance(item.get("key"), str):
            if item["key"] not in self._changes:
                redacted = (
                    {"value": self._redact_inner(item["value"], levels)} if "value" in item else {}
                )
                return item | redacted
            new = self.redact_value(item["key"], item.get("value"))
            return GONE if new is GONE else {**item, "type": "string", "value": new}
        return self._redact_envelope(item, levels)

    def _redact_object(self, value: dict[str, Json], levels: int, *, is_body: bool = False) -> Json:
        if "key" in value and not is_body:
            item = self._redact_item(value, levels)
            return {} if item is GONE else item
        members: dict[str, Json] = {}
        for name, member in value.items():
            new = self.redact_value(name, member)
            if new is GONE:
                continue
            if name in _SECTIONS:
                new = self._redact_envelope(new, levels)
            elif not is_body and name not in self._changes:
                new = self._redact_inner(new, levels)
            members[name] = new
        return members

    def _redact_inner(self, value: Json, levels: int) -> Json:
        """Redact the value of another key, which may contain metadata; unchanged if it does not."""
        if isinstance(value, (dict, list)):
            return self._redact_envelope(value, levels)
        if type(value) is not str or not value.lstrip().startswith(_BEGIN_JSON):
            return value
        try:
            inner = read_exactly(value)
        except UnreadableJson:
            return value
        if levels <= 0:
            return self._remove()
        new = self._redact_envelope(inner, levels - 1) if isinstance(inner, (dict, list)) else inner
        return value if new == inner else write_json(new)
