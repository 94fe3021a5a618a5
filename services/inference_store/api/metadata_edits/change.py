"""The effect of an edit on the blob's document and on the entries. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inference_store.inference.errors import Fault, Invalid
from inference_store.inference.json_text import Json, UnreadableJson, read_exactly, write_json
from inference_store.inference.metadata import (
    KEY_ALIASES,
    TYPE_NAMES,
    Entry,
    Metadata,
    MetadataCaps,
    read_metadata,
    type_named,
)


@dataclass(frozen=True, slots=True)
class Item:
    """One requested metadata item. `value`: text, or None for null."""

    key: str
    type: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """Items to add, or to replace those with the same keys."""

    items: tuple[Item, ...]
    metadata: Metadata
    """Return the new items."""

    @property
    def keys(self) -> frozenset[str]:
        """The keys that change."""
        return frozenset(_resolve_alias(item.key) for item in self.items)

    def touches(self, key: Json) -> bool:
        """Return whether the edit changes what the document calls `key`."""
        return isinstance(key, str) and _resolve_alias(key) in self.keys

    def entries(self, old: Iterable[Entry]) -> tuple[Entry, ...]:
        """Return the entries after the edit."""
        unchanged = (entry for entry in old if not self.touches(entry.key))
        return (*unchanged, *self.metadata.entries)

    def removes(self, name: str, old: Sequence[Entry]) -> bool:
        """Return whether an indexed name belongs to a key that changes, and to no other."""
        owners = [entry.key for entry in old if _belongs_to(name, entry.key)]
        changed = [key for key in self.keys if _belongs_to(name, key)]
        return bool(changed) and max(map(len, changed)) >= max(map(len, owners), default=0)

    def document(self, old: bytes | None, entries: Sequence[Entry]) -> bytes:
        """Return the blob after the edit; what is not changed stays as it is.

        `entries`: the known metadata, for an inference whose blob is missing or unreadable.
        """
        document: Json = _make_envelope(entries)
        if old is not None:
            try:
                document = read_exactly(old)
            except UnreadableJson:
                document = _make_envelope(entries)
        edited = self._edit(document)
        return write_json(edited).encode("utf-8", "surrogatepass")

    def _edit(self, document: Json) -> Json:
        if isinstance(document, dict):
            return self._edit_object(document)
        if isinstance(document, list):
            return [item for item in document if not self._is_touched(item)] + self._format_items
        if isinstance(document, str) and document:
            try:
                return self._edit(read_exactly(document))
            except UnreadableJson:
                return self._format_items
        return self._format_items

    def _edit_object(self, document: dict[str, Json]) -> Json:
        if "key" in document:
            return self._edit([document])
        edited = dict(document)
        if "standard_metadata" in edited:
            edited["standard_metadata"] = self._without(edited["standard_metadata"])
        part = "metadata" if "metadata" in edited or _is_of_proxy(edited) else "extended_metadata"
        edited[part] = self._edit(edited.get(part))
        return edited

    def _without(self, section: Json) -> Json:
        if isinstance(section, dict):
            return {name: value for name, value in section.items() if not self.touches(name)}
        if isinstance(section, list):
            return [item for item in section if not self._is_touched(item)]
        return section

    def _is_touched(self, item: Json) -> bool:
        return isinstance(item, dict) and self.touches(item.get("key"))

    @property
    def _format_items(self) -> list[Json]:
        return [{"key": i.key, "type": i.type, "value": i.value} for i in self.items]


def check_change(items: Sequence[Item], *, caps: MetadataCaps) -> Change:
    """Check the items, and return the change that they request.

    Raises Invalid for an unknown type, a value that does not fit its type, or a key given twice.
    """
    for number, item in enumerate(items):
        _check_item(f"metadata[{number}]", item, caps)
    if len({_resolve_alias(item.key) for item in items}) < len(items):
        raise Invalid("A key is given twice.", faults=[Fault("metadata", "a key is given twice")])
    document = [{"key": i.key, "type": i.type, "value": i.value} for i in items]
    metadata = read_metadata(write_json(document).encode(), caps=caps)
    return Change(tuple(items), metadata)


def _check_item(path: str, item: Item, caps: MetadataCaps) -> None:
    entry = type_named(item.type)
    if entry is None:
        raise _make_invalid(f"{path}.type", f"there is no type {item.type!r}", sorted(TYPE_NAMES))
    if item.value is None:
        return
    value, flag = entry.parse(item.value, caps)
    # JSON has no value of its own: it is split into leaves
    if flag is not None if entry.family is None else value is None:
        raise _make_invalid(f"{path}.value", f"the value is no {entry.type.value} ({flag})")


def _make_invalid(path: str, message: str, known_types: Sequence[str] = ()) -> Invalid:
    return Invalid(f"{path}: {message}.", faults=[Fault(path, message, known_types)])


def _resolve_alias(key: str) -> str:
    return KEY_ALIASES.get(key, key)


def _belongs_to(name: str, key: str) -> bool:
    """Return whether an indexed name is the key, or a path into its value."""
    rest = name[len(_resolve_alias(key)) :] if name.startswith(_resolve_alias(key)) else None
    return rest is not None and rest[:1] in ("", ".", "[")


def _is_of_proxy(document: Mapping[str, Json]) -> bool:
    return "event" in document or "request" in document


def _make_envelope(entries: Sequence[Entry]) -> Json:
    """Return known entries as an envelope."""
    sections: dict[str, list[Json]] = {"standard_metadata": [], "extended_metadata": []}
    for entry in entries:
        item = {"key": entry.key, "type": entry.type, "value": entry.value}
        sections[f"{entry.section}_metadata"].append(item)
    return sections
