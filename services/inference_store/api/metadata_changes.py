"""Changes of metadata: what a caller may ask for, and what becomes of entries and blobs by it."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from inference_store.inference.errors import Conflict, Invalid
from inference_store.inference.field_docs import Body, ShortText, WrongField
from inference_store.inference.json_text import (
    Json,
    Number,
    UnreadableJson,
    read_exactly,
    write_json,
)
from inference_store.inference.metadata import (
    KEY_ALIASES,
    TAGS,
    TYPE_NAMES,
    Entry,
    Metadata,
    MetadataCaps,
    read_metadata,
    read_tags,
    type_named,
)
from inference_store.inference.nearest import shortened
from inference_store.inference.stored_requests import REPLAY_OF


def _read_value(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else write_json(_read_exact(value))


def _read_exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _read_exact(element) for name, element in value.items()}
    if isinstance(value, list):
        return [_read_exact(element) for element in value]
    return value if value is None or isinstance(value, (str, bool)) else Number(value)


class MetadataItem(Body):
    """A metadata item to add, or to replace the one with the same key."""

    key: Annotated[ShortText, Field(min_length=1)]
    type: Annotated[str, Field(max_length=32)]
    """string, int, float, bool, timestamp or json."""
    value: Annotated[Any, AfterValidator(_read_value)] = Field(
        description="A string, as in events; other JSON is taken as its text."
    )


class MetadataChange(Body):
    """Metadata to add, change or remove."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"metadata": [{"key": "reviewed", "type": "bool", "value": "true"}]}]
        }
    )

    metadata: Annotated[list[MetadataItem], Field(max_length=256)] = Field(default=[])
    """Items to add, or to replace those with the same keys."""
    remove: Annotated[list[ShortText], Field(max_length=256)] = Field(default=[])
    """Keys of items to remove. Keys that are not there are ignored."""

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.metadata and not self.remove:
            raise WrongField("metadata", "give items to add or change, or keys to `remove`")
        return self


@dataclass(frozen=True, slots=True)
class Change:
    """Items to add, or to replace those with the same keys; and keys to remove."""

    items: tuple[MetadataItem, ...]
    metadata: Metadata
    """The items as they are read."""
    removed: frozenset[str] = frozenset()

    @property
    def keys(self) -> frozenset[str]:
        """The keys that change."""
        return self.removed | {_resolve_alias(item.key) for item in self.items}

    @property
    def names(self) -> frozenset[str]:
        """The names that are indexed of the new items."""
        leaves, presences = self.metadata.leaves, self.metadata.presences
        return frozenset({leaf.name for leaf in leaves} | {each.name for each in presences})

    def touches(self, key: Json) -> bool:
        """Return whether the edit changes what the document calls `key`."""
        return isinstance(key, str) and _resolve_alias(key) in self.keys

    def entries(self, old: Iterable[Entry]) -> tuple[Entry, ...]:
        """Return the entries after the edit."""
        unchanged = (entry for entry in old if not self.touches(entry.key))
        return (*unchanged, *self.metadata.entries)

    def refuse_lasting(self, old: Iterable[Entry]) -> None:
        """Raise Conflict if a rebuild would read what is removed from the response again."""
        for entry in old:
            if "from_response" in entry.flags and _resolve_alias(entry.key) in self.removed:
                raise Conflict(
                    f"{shortened(entry.key)} came with the response and cannot be removed: change"
                    " its value instead."
                )

    def removes(self, name: str, old: Sequence[Entry]) -> bool:
        """Return whether an indexed name belongs to a key that changes, and to no other."""
        owners = [entry.key for entry in old if _belongs_to(name, entry.key)]
        changed = [key for key in self.keys if _belongs_to(name, key)]
        return bool(changed) and max(map(len, changed)) >= max(map(len, owners), default=0)

    def document(self, old: bytes | None, entries: Sequence[Entry]) -> bytes:
        """Return the blob after the edit; what is not changed stays as it is.

        `entries`: the known metadata, for an inference whose blob is missing or unreadable.
        """
        try:
            document = _make_envelope(entries) if old is None else read_exactly(old)
        except UnreadableJson:
            document = _make_envelope(entries)
        return write_json(self._edit(document)).encode("utf-8", "surrogatepass")

    def _edit(self, document: Json) -> Json:
        if isinstance(document, str) and document:
            with suppress(UnreadableJson):
                return self._edit(read_exactly(document))
        if isinstance(document, dict):
            return self._edit_object(document)
        kept = self._without(document) if isinstance(document, list) else []
        return [*kept, *(item.model_dump() for item in self.items)]

    def _edit_object(self, document: dict[str, Json]) -> Json:
        if "key" in document:
            return self._edit([document])
        edited = dict(document)
        if "standard_metadata" in edited:
            edited["standard_metadata"] = self._without(edited["standard_metadata"])
        is_foreign = edited.keys().isdisjoint(("metadata", "event", "request"))
        part = "extended_metadata" if is_foreign else "metadata"
        edited[part] = self._edit(edited.get(part))
        return edited

    def _without(self, section: Json) -> Json:
        if isinstance(section, dict):
            return {name: value for name, value in section.items() if not self.touches(name)}
        if isinstance(section, list):
            return [
                item
                for item in section
                if not (isinstance(item, dict) and self.touches(item.get("key")))
            ]
        return section


def check_change(
    items: Sequence[MetadataItem], *, remove: Iterable[str] = (), caps: MetadataCaps
) -> Change:
    """Check the items, and return the change that they request.

    Raises Invalid for an unknown type, a value that does not fit its type, or a key given twice.
    """
    for number, item in enumerate(items):
        _check_item(f"metadata[{number}]", item, caps)
    removed = frozenset(map(_resolve_alias, remove))
    if REPLAY_OF in removed | {item.key for item in items}:
        raise Invalid.of("metadata", f"{REPLAY_OF} cannot be changed: erasures go by it")
    if len({_resolve_alias(item.key) for item in items} - removed) < len(items):
        raise Invalid.of("metadata", "each key may be given once")
    document: Json = [item.model_dump() for item in items]
    metadata = read_metadata(write_json(document).encode(), caps=caps)
    return Change(tuple(items), metadata, removed)


def _check_item(path: str, item: MetadataItem, caps: MetadataCaps) -> None:
    entry = type_named(item.type)
    if entry is None:
        raise Invalid.of(f"{path}.type", f"there is no type {item.type!r}", sorted(TYPE_NAMES))
    if item.value is None:
        return
    value, flag = entry.parse(item.value, caps)
    # JSON has no value of its own: it is split into leaves
    if flag is not None if entry.family is None else value is None:
        raise Invalid.of(f"{path}.value", f"it is not of the type {entry.type.value} ({flag})")


def _resolve_alias(key: str) -> str:
    return KEY_ALIASES.get(key, key)


def _belongs_to(name: str, key: str) -> bool:
    rest = name[len(_resolve_alias(key)) :] if name.startswith(_resolve_alias(key)) else None
    return rest is not None and rest[:1] in ("", ".", "[")


def _make_envelope(entries: Sequence[Entry]) -> Json:
    sections: dict[str, list[Json]] = {"standard_metadata": [], "extended_metadata": []}
    for entry in entries:
        item = {"key": entry.key, "type": entry.type, "value": entry.value}
        sections[f"{entry.section}_metadata"].append(item)
    return sections


# Tags are a metadata item like any other: a JSON array of texts, whose elements filters find by
# `tags = 'x'`. What an event sent as a single value is, as a text, its first tag.

TAG_NAMES: Final = (TAGS, f"{TAGS}[]")
_MOST_TAGS: Final = 100


def change_tags(
    old: Iterable[Entry], *, add: Iterable[str], remove: Iterable[str], caps: MetadataCaps
) -> Change | None:
    """Return the change that adds and removes tags; None: they are so already.

    Raises Conflict for too many, and for an item that is no array of texts.
    """
    before = [tag for entry in old if entry.key == TAGS for tag in _read_tags(entry)]
    gone = set(remove)
    after = list(dict.fromkeys(tag for tag in (*before, *add) if tag not in gone))
    if after == before:
        return None
    if len(after) > _MOST_TAGS:
        raise Conflict(f"An inference has at most {_MOST_TAGS} tags.")
    if not after:
        return check_change([], remove=[TAGS], caps=caps)
    return check_change([MetadataItem(key=TAGS, type="json", value=after)], caps=caps)


def _read_tags(entry: Entry) -> list[str]:
    tags = read_tags(type_named(entry.type), entry.value)
    if tags is None:
        return []
    if isinstance(tags, list) and all(type(tag) is str for tag in tags):
        return tags
    raise Conflict(
        "Its metadata item `tags` is not an array of strings: change it with /metadata first."
    )
