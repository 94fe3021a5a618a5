"""Reads a metadata blob as entries, leaves and presences. Never raises on untrusted input."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from inference_store.inference.json_text import (
    Json,
    TooDeep,
    UnreadableJson,
    encoding_problem,
    is_json_number,
    read_exactly,
    read_json,
    storable,
    write_json,
)
from inference_store.inference.metadata.entries import (
    FAITHFUL,
    Item,
    Opened,
    read_document,
)
from inference_store.inference.metadata.values import (
    COORDINATES,
    KEY_ALIASES,
    METADATA_TYPES,
    TAGS,
    TYPE_NAMES,
    Entry,
    Indexable,
    JsonSplitter,
    Leaf,
    Metadata,
    MetadataCaps,
    MetadataTypeEntry,
    Presence,
    type_named,
)

_STRING: Final = METADATA_TYPES["string"]
_INT: Final = METADATA_TYPES["int"]
_FLOAT: Final = METADATA_TYPES["float"]
_BOOL: Final = METADATA_TYPES["bool"]
_JSON: Final = METADATA_TYPES["json"]


@dataclass(slots=True)
class TypedItems:
    """The entries of one inference's items, in order, with their leaves and presences."""

    caps: MetadataCaps
    splitter: JsonSplitter
    entries: list[Entry] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    presences: list[Presence] = field(default_factory=list)

    def add(self, name: str, item: Item) -> None:
        """Keep one item, and index it under `name`."""
        key, declared, value, section, flags = item
        if name == TAGS and isinstance(value, (dict, list)):
            declared = _JSON.name  # whatever it says: the entry alone tells an array from its text
        unfit = self._find_obstacle(name)
        if unfit is not None:
            if unfit == "key_too_long":
                like, _ = _guess_type(name, declared, value)
                self.splitter.note_too_long(name, like.name, is_null=value is None)
            self.entries.append(entry_of(item, unfit))
            return
        kind = TYPE_NAMES.get(declared) if declared else None
        if kind is None:
            kind, remarks = _guess_type(name, declared, value)
            flags += remarks
        if name in COORDINATES and kind.family != "number":
            flags += ("reserved_type",)
        if value is None:
            self.presences.append(Presence(name, kind.name, True, flags))
        elif name == TAGS:
            flags += self._add_json(name, read_tags(kind, value))
        elif kind is _JSON:
            flags += self._add_json(name, value)
        else:
            flags += self._add_scalar(name, kind, value)
        text = value if type(value) is str or value is None else write_json(value)
        self.entries.append(Entry(key, declared or "", text, section, flags))

    def _find_obstacle(self, name: str) -> str | None:
        if len(self.entries) >= self.caps.keys:
            return "keys_capped"
        if len(name) > self.caps.key_characters:
            return "key_too_long"
        return None if name and storable(name) else "key_not_text"

    def _add_scalar(self, name: str, kind: MetadataTypeEntry, value: Json) -> tuple[str, ...]:
        text = value if type(value) is str else write_json(value)
        parsed, flag = kind.parse(text, self.caps)
        if kind is _STRING and text is not value and isinstance(value, (dict, list)):
            parsed, flag = None, "not_string"
        if parsed is None or kind.family is None:
            return self._add_unindexed(name, kind, text, flag or "")
        flags: tuple[str, ...] = (flag,) if flag else ()
        if name in COORDINATES and kind.family == "number" and not _is_on_the_map(name, parsed):
            flags += ("out_of_range",)
        self.leaves.append(Leaf(name, kind.type, kind.family, parsed, flags))
        return flags

    def _add_json(self, name: str, value: Json) -> tuple[str, ...]:
        if type(value) is str:
            try:
                return self.splitter.split(name, read_exactly(value))
            except TooDeep:
                self.presences.append(Presence(name, _JSON.name, False, ("too_deep",)))
                return ("too_deep",)
            except UnreadableJson:
                return self._add_unindexed(name, _JSON, value, "not_json")
        return self.splitter.split(name, value)

    def _add_unindexed(
        self, name: str, kind: MetadataTypeEntry, text: str, flag: str
    ) -> tuple[str, ...]:
        flags: tuple[str, ...] = (flag,)
        if flag.startswith("not_"):
            if storable(text):
                self.leaves.append(Leaf(name, kind.type, "string", text, (flag, "untyped")))
            else:
                flags += ("nul_character" if "\0" in text else "lone_surrogate",)
        self.presences.append(Presence(name, kind.name, False, flags))
        return flags


def read_tags(kind: MetadataTypeEntry | None, value: Json) -> Json:
    """Return the tags in a value of this type. What is no array or object is an array of its text:
    so `tags` never has a value of its own, beside which a filter would not see the elements."""
    tags = value
    if kind is _JSON and type(value) is str:
        try:
            tags = read_exactly(value)
        except TooDeep:
            return value
        except UnreadableJson:
            pass
    if tags is None or isinstance(tags, (dict, list)):
        return tags
    return [tags if type(tags) is str else write_json(tags)]


def _is_on_the_map(name: str, value: Indexable) -> bool:
    return isinstance(value, Decimal) and abs(value) <= COORDINATES[name]


def entry_of(item: Item, *flags: str) -> Entry:
    """Return the entry of an item that is not indexed."""
    value = item.value
    text = value if type(value) is str or value is None else write_json(value)
    return Entry(item.key, item.type or "", text, item.section, (*item.flags, *flags))


def _guess_type(
    name: str, declared: str | None, value: Json
) -> tuple[MetadataTypeEntry, tuple[str, ...]]:
    """Return the type of a value, by its JSON if the table does not have the declared name."""
    declared_type = type_named(declared) if declared else None
    if declared_type is not None:
        return declared_type, ()
    remark = () if declared is None else ("unknown_type",) if declared else ("no_type",)
    if name in COORDINATES and not isinstance(value, (dict, list, bool)):
        return _FLOAT, remark
    if isinstance(value, bool):
        return _BOOL, remark
    if is_json_number(value):
        return _INT if str(value).lstrip("-").isdecimal() else _FLOAT, remark
    return _JSON if isinstance(value, (dict, list)) else _STRING, remark


_NOTHING = Metadata()
_DEFAULT_CAPS = MetadataCaps()
_PROBLEMS_SHOWN = 5


def read_metadata(
    blob: bytes | None, *, caps: MetadataCaps = _DEFAULT_CAPS, response: bytes | None = None
) -> Metadata:
    """Return all metadata of one inference, from any envelope or a proxy's blob.

    `response`: metadata that the engine copied into its parameters count, and its other parameters
    become standard metadata; a key that the blob has is the blob's alone. Numbers in the result are
    finite, strings storable by Postgres.
    """
    opened = Opened()
    from_response = Opened() if response is None else open_response(response)
    too_large = blob is not None and len(blob) > caps.blob_bytes
    if blob and not too_large:
        try:
            opened.open(read_document(blob))
        except UnreadableJson as exc:
            if blob.strip():  # only white space is no metadata, like an empty blob
                opened.problems.append(f"the metadata is not JSON: {exc}")
    if not (
        any((opened.items, opened.problems, from_response.items, from_response.problems))
        or too_large
    ):
        return _NOTHING
    return _read(opened, from_response, blob or b"", too_large, caps)


def _read(
    opened: Opened, from_response: Opened, blob: bytes, too_large: bool, caps: MetadataCaps
) -> Metadata:
    typed = TypedItems(caps, JsonSplitter(caps))
    named, nameless = _name_items(opened.items)
    copied, nameless_copied = _name_items(from_response.items)
    names = {name for name, _ in named}
    # the caller's first, so that no cap cuts them off in favour of the engine's
    named += [(name, item) for name, item in _select_distinct(copied) if name not in names]
    opened = Opened(opened.items + from_response.items, opened.problems + from_response.problems)
    for name, item in named:
        typed.add(name, item)
    typed.entries.extend(map(entry_of, nameless + nameless_copied))
    has_json, is_repeated = bool(typed.splitter.rows), len(dict(named)) < len(named)
    several = _merge_rows(typed) if has_json or is_repeated else ()
    if typed.splitter.too_long:
        there = {row.name for row in typed.presences} | {leaf.name for leaf in typed.leaves}
        rows = typed.splitter.too_long.values()
        typed.presences.extend(row for row in rows if row.name not in there)
    flags, problems = _collect_flags(opened, typed.entries, blob)
    if too_large:
        flags = ("metadata_too_large", *flags)
        problems.append(f"the blob has {len(blob)} bytes; at most {caps.blob_bytes} are read")
    problem = "; ".join(problems[:_PROBLEMS_SHOWN]) or None
    return Metadata(
        tuple(typed.entries), tuple(typed.leaves), tuple(typed.presences), several, flags, problem
    )


def _name_items(items: Sequence[Item]) -> tuple[list[tuple[str, Item]], list[Item]]:
    """Return the items with their indexed names, in order, and those that are not indexed: they
    have no key, or are a coordinate's earlier value. A name's later items are flagged."""
    named: list[tuple[str, Item]] = []
    unindexed: list[Item] = []
    last = {item.key: item for item in items if item.key in COORDINATES}
    names: set[str] = set()
    for item in items:
        name = KEY_ALIASES.get(item.key, item.key)
        if "malformed" in item.flags:
            unindexed.append(item)
            continue
        flags = item.flags
        if name in names and "from_response" not in flags:
            flags += ("duplicate_key",)
        names.add(name)
        if last.get(name, item) is item:
            named.append((name, item._replace(flags=flags)))
        else:
            unindexed.append(item._replace(flags=flags))
    return named, unindexed


def _select_distinct(named: Iterable[tuple[str, Item]]) -> Iterable[tuple[str, Item]]:
    """Return what an engine says of several outputs, once if it is the same of all."""
    return {(name, it.type, write_json(it.value)): (name, it) for name, it in named}.values()


def _merge_rows(typed: TypedItems) -> tuple[str, ...]:
    """Lay the rows of JSON values to the others, each once; return the names with several values
    of a family, which a repeated key has, or a key that is spelt like a path."""
    rows = typed.splitter.rows
    leaves: dict[object, Leaf] = {}
    for leaf in [*typed.leaves, *(row for row in rows if isinstance(row, Leaf))]:
        leaves.setdefault((leaf.name, leaf.family, leaf.value), leaf)
    typed.leaves[:] = leaves.values()
    with_leaf = {leaf.name for leaf in typed.leaves}
    presences = [*typed.presences, *(row for row in rows if isinstance(row, Presence))]
    typed.presences[:] = _select_presences(presences, with_leaf)
    times = Counter((leaf.name, leaf.family) for leaf in typed.leaves)
    several = {name for (name, _), number in times.items() if number > 1 and "[]" not in name}
    return tuple(sorted(several))


def _select_presences(rows: Iterable[Presence], with_leaf: set[str]) -> Iterable[Presence]:
    """Return one presence per name; a null is dropped if the name has a value, too."""
    presences: dict[str, Presence] = {}
    for row in rows:
        other = presences.setdefault(row.name, row)
        if other.is_null and not row.is_null:
            presences[row.name] = row
    return [row for row in presences.values() if not (row.is_null and row.name in with_leaf)]


def _collect_flags(
    opened: Opened, entries: list[Entry], blob: bytes
) -> tuple[tuple[str, ...], list[str]]:
    flags: list[str] = []
    problems = list(opened.problems)
    entry_flags = {flag for entry in entries if entry.flags for flag in entry.flags}
    if problems:
        readable = any("malformed" not in item.flags for item in opened.items)
        flags.append("metadata_partly_unreadable" if readable else "metadata_unreadable")
    flags.extend(
        f"metadata_{flag}"
        for flag in ("keys_capped", "leaves_capped", "too_deep")
        if flag in entry_flags
    )
    if "standard_from_client" in entry_flags:
        flags.append("standard_from_client")
    # Bytes that are not UTF-8 show up as lone surrogates.
    if entry_flags & {"lone_surrogate", "key_not_text"} and (problem := encoding_problem(blob)):
        flags.append("metadata_not_utf8")
        problems.append(problem)
    return tuple(flags), problems


def open_response(response: bytes) -> Opened:
    """Return the `parameters` of the root of an engine's answer and of every output.

    `metadata` is copied from the request, and equal copies count once; if it is not metadata, it is
    the engine's own remark like all other parameters: standard metadata.
    """
    opened = Opened()
    all_parameters = _read_parameters(response) if b'"parameters"' in response else []
    for parameters in all_parameters:
        opened.items += [
            _remark(name, value) for name, value in parameters.items() if name != "metadata"
        ]
    copies = [parameters["metadata"] for parameters in all_parameters if parameters.get("metadata")]
    for copy in {write_json(copy): copy for copy in copies}.values():
        _open_copy(copy, opened)
    return opened


def _open_copy(copy: Json, opened: Opened) -> None:
    opened_copy = Opened()
    opened_copy.open(copy)
    if not opened_copy.items and opened_copy.problems:
        opened.items.append(_remark("metadata", copy))
    else:
        opened.items += opened_copy.items
        opened.problems += opened_copy.problems


def _remark(name: str, value: Json) -> Item:
    return Item(name, None, value, "standard", ("from_response",))


def _read_parameters(response: bytes) -> list[dict[str, Json]]:
    try:
        holders = list(_holders(read_json(response)))
        if all(type(value) in FAITHFUL for holder in holders for value in holder.values()):
            return holders
        return list(_holders(read_exactly(response)))
    except UnreadableJson:
        return []


def _holders(document: Json) -> Iterator[dict[str, Json]]:
    if not isinstance(document, dict):
        return
    outputs = document.get("outputs")
    for holder in [document, *(outputs if isinstance(outputs, list) else [])]:
        if isinstance(holder, dict) and isinstance(holder.get("parameters"), dict):
            yield holder["parameters"]
