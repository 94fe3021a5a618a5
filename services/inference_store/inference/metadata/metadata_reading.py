"""Reads a metadata blob as entries, leaves and presences. Never raises on untrusted input."""

from collections.abc import Iterable
from itertools import groupby

from inference_store.inference.json_text import UnreadableJson, encoding_problem

from .caps import MetadataCaps
from .document import read_document
from .entry import Entry, Leaf, Metadata, Presence
from .envelope import Item, Opened, open_envelope
from .leaves import JsonSplitter, PathRow
from .reserved import KEY_ALIASES
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
    become standard metadata; the blob's value of the same key wins. Numbers in the result are
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
    by_name, nameless = _select_last(opened.items)
    by_name_from_response, nameless_from_response = _select_last(from_response.items)
    # the caller's first, so that no cap cuts them off in favour of the engine's
    by_name = by_name | {
        name: it for name, it in by_name_from_response.items() if name not in by_name
    }
    nameless += nameless_from_response
    opened = Opened(opened.items + from_response.items, opened.problems + from_response.problems)
    for name, item in by_name.items():
        typed.add(name, item)
    typed.entries.extend(map(entry_of, nameless))
    if typed.splitter.rows:
        _add_json_rows(typed, by_name)
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
        tuple(typed.entries), tuple(typed.leaves), tuple(typed.presences), flags, problem
    )


def _select_last(items: Iterable[Item]) -> tuple[dict[str, Item], list[Item]]:
    """Return the last item by indexed name, and the items without a key."""
    by_name: dict[str, Item] = {}
    nameless: list[Item] = []
    for item in items:
        if "malformed" in item.flags:
            nameless.append(item)
            continue
        name = KEY_ALIASES.get(item.key, item.key)
        if name in by_name and "from_response" not in by_name[name].flags:
            by_name[name] = item._replace(flags=(*item.flags, "duplicate_key"))
        else:
            by_name[name] = item
    return by_name, nameless


def _add_json_rows(typed: TypedItems, literal: dict[str, Item]) -> None:
    """Add the rows of JSON values: each once, and none whose path is spelled like a name with fewer
    segments."""
    rows = _select_nearest(typed.splitter.rows, literal)
    leaves: dict[object, Leaf] = {}
    for row in rows:
        if isinstance(row, Leaf):
            leaves.setdefault((row.name, row.family, row.value), row)
    typed.leaves.extend(leaves.values())
    typed.presences.extend(_select_presences(rows, {leaf.name for leaf in leaves.values()}))


def _select_nearest(rows: list[PathRow], literal: dict[str, Item]) -> list[Leaf | Presence]:
    """Return the rows of each name: one value, except for the elements of arrays; of two the
    last."""
    nearest = dict.fromkeys(literal, 1)
    for segments, row in rows:
        nearest[row.name] = min(segments, nearest.get(row.name, segments))
    # rows of one value are next to each other
    runs = [
        list(run) for _, run in groupby(rows, key=lambda path_row: (path_row[1].name, path_row[0]))
    ]
    near = [run for run in runs if run[0][0] == nearest[run[0][1].name]]
    last = {run[0][1].name: run for run in near}
    return [row for run in near for _, row in run if "[]" in row.name or run is last[row.name]]


def _select_presences(rows: list[Leaf | Presence], with_leaf: set[str]) -> Iterable[Presence]:
    """Return one presence per name; a null is dropped if the name has a value, too."""
    presences: dict[str, Presence] = {}
    for row in rows:
        if isinstance(row, Presence):
            other = presences.setdefault(row.name, row)
            if other.is_null and not row.is_null:
                presences[row.name] = row
    return (row for row in presences.values() if not (row.is_null and row.name in with_leaf))


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
