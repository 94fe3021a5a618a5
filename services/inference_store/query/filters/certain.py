"""Certain matches: predicates that stay TRUE whatever data of an inference the index lacks.

Flags mark the inferences that are not indexed completely. If metadata was not read or not indexed,
a key without a value may have one, and an array may have more elements. The same holds for
predictions beyond a cap, or without their label. A predicate that such a doubt could change is
NULL, so that nothing is deleted because the index is incomplete.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import key_registry
from inference_store.inference.errors import Fault, Invalid
from inference_store.inference.json_text import read_exactly, write_json
from inference_store.inference.metadata import TYPE_NAMES, type_named
from inference_store.query.cql2 import parse_json, to_json
from inference_store.query.cql2.tree import Named, Node, Operation, change_inside
from inference_store.query.filters import typed
from inference_store.query.filters.check import Checked, check
from inference_store.query.filters.names import (
    ITEM_FUNCTIONS,
    KINDS,
    METADATA,
    OWN,
    KnownKey,
    KnownKeys,
    elements,
    key_of,
)
from inference_store.query.filters.typed import Kind, Predicate, iterate_nodes
from inference_store.query.properties import PROPERTIES

Doubt: TypeAlias = Literal["metadata", "predictions"]
Doubts: TypeAlias = frozenset[Doubt]

FLAGS: Final[Mapping[Doubt, tuple[str, ...]]] = {
    "metadata": (
        *("model_keys_capped", "metadata_keys_capped", "metadata_leaves_capped"),
        *("metadata_too_deep", "metadata_too_large"),
        *("metadata_unreadable", "metadata_partly_unreadable"),
    ),
    "predictions": ("model_labels_capped", "predictions_capped"),
}
"""Flags of inferences for which the index lacks some metadata, or some predictions."""
_NEVER: Final = typed.Fixed(False)
_OF_PREDICTIONS: Final = frozenset({"top_label", "top_score", "prediction_count"})


def find_doubts(predicate: Any) -> Doubts:
    """Return which parts of the index, of those that may be incomplete, a predicate refers to."""
    kinds = (_kind(node) for node in iterate_nodes(predicate))
    return frozenset(kind for kind in kinds if kind is not None)


def make_certain(predicate: Predicate, doubts: Collection[Doubt]) -> Predicate:
    """Return a predicate that is TRUE only if this one is TRUE whatever the doubts hide.

    A predicate that none of the doubts concerns is returned as it is.
    """
    return _certain(predicate, frozenset(doubts), when=True)


def names_project(predicate: Predicate) -> bool:
    """Check whether it depends on the model's project, which may change."""
    return any(
        isinstance(node, typed.Property) and node.name == "project_id"
        for node in iterate_nodes(predicate)
    )


def _kind(node: Any) -> Doubt | None:
    match node:
        case typed.Metadata() | typed.Sent() | typed.Located() | typed.Distance():
            return "metadata"
        case typed.Predicted(of="truth") | typed.Counted(of="truth") | typed.Column(of="truth"):
            return None  # the index has all of it
        case typed.Predicted() | typed.Counted() | typed.Column():  # a label may be missing too
            return "predictions"
        case typed.Property(name) if name in _OF_PREDICTIONS:
            return "predictions"
    return None


def _certain(predicate: Predicate, doubts: Doubts, *, when: bool) -> Predicate:
    """Return a predicate that is TRUE if this one is certainly true, or (`when` False) false."""
    match predicate:
        case _ if find_doubts(predicate).isdisjoint(doubts) or _stays(predicate, doubts, when):
            return predicate if when else typed.Not(predicate)
        case typed.And(parts) | typed.Or(parts):
            joined = typed.And if isinstance(predicate, typed.And) is when else typed.Or
            return joined(tuple(_certain(part, doubts, when=when) for part in parts))
        case typed.Not(of):
            return _certain(of, doubts, when=not when)
        case typed.Unknown(of) if not when:
            # a decided predicate stays so
            return typed.Or(tuple(_certain(of, doubts, when=truth) for truth in (True, False)))
        case typed.Predicted(condition) if when and condition is not None:
            return typed.Predicted(_certain(condition, doubts, when=True))
    return _NEVER


def _stays(predicate: Predicate, doubts: Doubts, when: bool) -> bool:
    """Check whether it stays true, or (`when` False) false, with all that the index lacks.

    A missing value may exist, so IS NULL is never certain. A value that satisfies a comparison
    stays; that none satisfies it is not certain, because any key may have several values.
    """
    match predicate:
        case typed.Located():  # an inference has one location at most
            return True
        case typed.Missing():
            return not when
        case typed.Sent() | typed.Predicted(None):
            return when
        case typed.Compared():
            nodes = list(iterate_nodes(predicate))
            several = any(isinstance(node, typed.Metadata) for node in nodes)
            return (when or not several) and not any(_in_doubt(node, doubts) for node in nodes)
    return False


def _in_doubt(node: Any, doubts: Doubts) -> bool:
    """Check whether the value may differ from the one in the index."""
    may_differ = isinstance(node, typed.Counted | typed.PredicateValue | typed.Property)
    return may_differ and not find_doubts(node).isdisjoint(doubts)


# Saved filters of policies and holds: resolved when they are saved, and never changed after.
#
# The saved document has the tree with every name in full, and the kinds of its keys at that time.
# New values of a key change nothing, nor does a new property of the same name.

VERSION = 1


@dataclass(frozen=True, slots=True)
class SavedFilter:
    """A saved filter. `text`: JSON, with exact numbers."""

    text: str
    checked: Checked


def save(
    node: Node,
    known: KnownKeys,
    *,
    declared: Mapping[str, str] | None = None,
    source: str | None = None,
) -> SavedFilter:
    """Resolve a filter. `declared`: types of keys that no inference has yet, by name.

    Such keys are accepted, with a warning. Raises what `check` does, and Invalid for a type.
    """
    known = _with_declared(known, declared or {})
    checked = check(node, known, source=source, unknown_keys="accept")
    document = {
        "version": VERSION,
        "filter": to_json(_spell_out(node, known)),
        "keys": {name: dict(key.rows) for name, key in sorted(checked.keys.items())},
        "stray": sorted(name for name, key in checked.keys.items() if key.only_stray_texts),
    }
    text = write_json(document)
    resolve(text, {})  # a filter that cannot be loaded is refused now
    return SavedFilter(text, checked)


async def load(connection: AsyncConnection, text: str) -> Predicate:
    """Load a saved filter. It reads the keys' integers from the dictionary, and no registry."""
    names = read_exactly(text)["keys"]
    return resolve(text, await key_registry.numbers(connection, names))


def resolve(text: str, numbers: Mapping[str, tuple[int, bool]]) -> Predicate:
    """Return the saved filter. `numbers`: the integers of its keys, as far as they have one, and
    whether they have several values."""
    document = read_exactly(text)
    if document["version"] != str(VERSION):
        raise Invalid(f"The filter was saved by another version: {document['version']}.")
    keys: dict[str, KnownKey] = {}
    for name, saved in document["keys"].items():
        rows: dict[Kind, int] = {kind: int(saved[kind]) for kind in KINDS if kind in saved}
        (number, several), stray = numbers.get(name) or (None, False), name in document["stray"]
        types = tuple(sorted(rows))
        keys[name] = KnownKey(name, number, rows, types, only_stray_texts=stray, several=several)
    tree = parse_json(document["filter"])
    return check(tree, KnownKeys(keys), unknown_keys="accept", is_saved=True).predicate


def _with_declared(known: KnownKeys, types: Mapping[str, str]) -> KnownKeys:
    keys = dict(known.keys)
    for name, spelt in types.items():
        entry = type_named(spelt)
        if entry is None or entry.family is None:
            known_types = sorted(n for n, known in TYPE_NAMES.items() if known.family is not None)
            fault = Fault(f"types.{name}", f"there is no type {spelt!r} to compare", known_types)
            raise Invalid(f"The key {name!r} cannot be declared as {spelt!r}.", faults=[fault])
        key = keys.get(name, KnownKey(name))
        rows = {entry.family: 0, **key.rows}
        keys[name] = replace(key, rows=rows, types=(*key.types, entry.name))
    return replace(known, keys=keys)


def _spell_out(node: Node, known: KnownKeys, op: str = "") -> Node:
    """Return the tree with every name in full. `op`: the operation around it."""
    if not isinstance(node, Named):
        here = node.op if isinstance(node, Operation) else ""
        is_inside = here in ITEM_FUNCTIONS
        return node if is_inside else change_inside(node, lambda of: _spell_out(of, known, here))
    node = node if op in ("isNull", "sent") else elements(node, known)
    if node.name in PROPERTIES and op != "sent":
        return replace(node, name=OWN + node.name)
    return node if node.name.startswith(OWN) else replace(node, name=METADATA + key_of(node))
