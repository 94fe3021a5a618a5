"""A metadata blob becomes entries, leaves and presences. Never raises on what strangers wrote."""

from collections.abc import Iterable
from itertools import groupby

from inference_store.inference.json_text import UnreadableJson, encoding_problem

from .caps import MetadataCaps
from .document import read_document
from .entry import Entry, Leaf, Metadata, Presence
from .envelope import Item, Opened, open_envelope
from .leaves import Found, Walk
from .reserved import KEY_ALIASES
from .response_parameters import open_response
from .typed_items import TypedItems, kept

_NOTHING = Metadata()
_DEFAULT_CAPS = MetadataCaps()
_PROBLEMS_SHOWN = 5


def read_metadata(
    blob: bytes | None, *, caps: MetadataCaps = _DEFAULT_CAPS, response: bytes | None = None
) -> Metadata:
    """All metadata of one inference, from any envelope or a proxy's blob.

    `response`: metadata that the engine copied into its parameters count, and its other parameters
    become standard metadata; what the blob says of the same key wins. Numbers of the answer are
    finite, strings storable by Postgres.
    """
    opened = Opened()
    told = Opened() if response is None else open_response(response)
    too_large = blob is not None and len(blob) > caps.blob_bytes
    if blob and not too_large:
        _open_blob(blob, opened)
    if not (any((opened.items, opened.problems, told.items, told.problems)) or too_large):
        return _NOTHING
    return _read(opened, told, blob or b"", too_large, caps)


def _open_blob(blob: bytes, opened: Opened) -> None:
    try:
        document = read_document(blob)
    except UnreadableJson as exc:
        if blob.strip():  # white space alone is no metadata, like an empty blob
            opened.problems.append(f"the metadata is not JSON: {exc}")
    else:
        open_envelope(document, opened)


def _read(
    opened: Opened, told: Opened, blob: bytes, too_large: bool, caps: MetadataCaps
) -> Metadata:
    typed = TypedItems(caps, Walk(caps))
    by_name, nameless = _last_of_each(opened.items)
    by_name_told, nameless_told = _last_of_each(told.items)
    # the caller's first, so that no cap cuts them off in favour of the engine's
    by_name = by_name | {name: it for name, it in by_name_told.items() if name not in by_name}
    nameless += nameless_told
    opened = Opened(opened.items + told.items, opened.problems + told.problems)
    for name, item in by_name.items():
        typed.add(name, item)
    typed.entries.extend(map(kept, nameless))
    if typed.walk.found:
        _add_walked(typed, by_name)
    if typed.walk.too_long:
        there = {row.name for row in typed.presences} | {leaf.name for leaf in typed.leaves}
        rows = typed.walk.too_long.values()
        typed.presences.extend(row for row in rows if row.name not in there)
    flags, problems = _of_the_whole(opened, typed.entries, blob)
    if too_large:
        flags = ("metadata_too_large", *flags)
        problems.append(f"the blob has {len(blob)} bytes; at most {caps.blob_bytes} are read")
    problem = "; ".join(problems[:_PROBLEMS_SHOWN]) or None
    return Metadata(
        tuple(typed.entries), tuple(typed.leaves), tuple(typed.presences), flags, problem
    )


def _last_of_each(items: Iterable[Item]) -> tuple[dict[str, Item], list[Item]]:
    """By the name that is indexed, the last item; and the items that have no key at all."""
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


def _add_walked(typed: TypedItems, literal: dict[str, Item]) -> None:
    """The rows of JSON values: each once, and none whose path is spelled like a nearer name."""
    found = _nearest(typed.walk.found, literal)
    leaves: dict[object, Leaf] = {}
    for row in found:
        if isinstance(row, Leaf):
            leaves.setdefault((row.name, row.family, row.value), row)
    typed.leaves.extend(leaves.values())
    typed.presences.extend(_presences(found, {leaf.name for leaf in leaves.values()}))


def _nearest(found: list[Found], literal: dict[str, Item]) -> list[Leaf | Presence]:
    """What a name stands for: one value, but for the elements of arrays; of two the last."""
    nearest = dict.fromkeys(literal, 1)
    for segments, row in found:
        nearest[row.name] = min(segments, nearest.get(row.name, segments))
    # rows of one value are next to each other
    runs = [list(run) for _, run in groupby(found, key=lambda each: (each[1].name, each[0]))]
    near = [run for run in runs if run[0][0] == nearest[run[0][1].name]]
    last = {run[0][1].name: run for run in near}
    return [row for run in near for _, row in run if "[]" in row.name or run is last[row.name]]


def _presences(found: list[Leaf | Presence], with_leaf: set[str]) -> Iterable[Presence]:
    """One a name; a null says nothing where the name has a value as well."""
    presences: dict[str, Presence] = {}
    for row in found:
        if isinstance(row, Presence):
            other = presences.setdefault(row.name, row)
            if other.is_null and not row.is_null:
                presences[row.name] = row
    return (row for row in presences.values() if not (row.is_null and row.name in with_leaf))


def _of_the_whole(
    opened: Opened, entries: list[Entry], blob: bytes
) -> tuple[tuple[str, ...], list[str]]:
    """Flags of the inference, and the sentences for people."""
    flags: list[str] = []
    problems = list(opened.problems)
    seen = {flag for entry in entries if entry.flags for flag in entry.flags}
    if problems:
        readable = any("malformed" not in item.flags for item in opened.items)
        flags.append("metadata_partly_unreadable" if readable else "metadata_unreadable")
    flags.extend(
        f"metadata_{flag}" for flag in ("keys_capped", "leaves_capped", "too_deep") if flag in seen
    )
    if "standard_from_client" in seen:
        flags.append("standard_from_client")
    # Bytes that are not UTF-8 show up as lone surrogates.
    if seen & {"lone_surrogate", "key_not_text"} and (problem := encoding_problem(blob)):
        flags.append("metadata_not_utf8")
        problems.append(problem)
    return tuple(flags), problems
