"""Reads a metadata blob as entries, leaves and presences. Never raises on untrusted input."""

from collections import Counter
from collections.abc import Iterable, Sequence

from inference_store.inference.json_text import UnreadableJson, encoding_problem, write_json

from .caps import MetadataCaps
from .document import read_document
from .entry import Entry, Leaf, Metadata, Presence
from .envelope import Item, Opened, open_envelope
from .leaves import JsonSplitter
from .reserved import COORDINATES, KEY_ALIASES
from .response_parameters import open_response
from .typed_items import TypedItems, entry_of

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
        _open_blob(blob, opened)
    if not (
        any((opened.items, opened.problems, from_response.items, from_response.problems))
        or too_large
    ):
        return _NOTHING
    return _read(opened, from_response, blob or b"", too_large, caps)


def _open_blob(blob: bytes, opened: Opened) -> None:
    try:
        document = read_document(blob)
    except UnreadableJson as exc:
        if blob.strip():  # only white space is no metadata, like an empty blob
            opened.problems.append(f"the metadata is not JSON: {exc}")
    else:
        open_envelope(document, opened)


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
    """Return the flags of the inference, and the sentences for people."""
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
