"""Saved filters of policies and holds: resolved when they are saved, and never changed after.

The saved document has the tree with every name in full, and the kinds of its keys at that time.
New values of a key change nothing, nor does a new property of the same name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import key_registry
from inference_store.inference.errors import Fault, Invalid
from inference_store.inference.json_text import Json, read_exactly, write_json
from inference_store.inference.metadata import TYPE_NAMES, type_named
from inference_store.query.cql2 import parse_json, to_json
from inference_store.query.cql2.tree import Interval, Listed, Named, Node, Operation
from inference_store.query.properties import PROPERTIES

from .check import Checked, check
from .names import (
    ARRAY_FUNCTIONS,
    KINDS,
    METADATA,
    OWN,
    PREDICTION_FUNCTIONS,
    FilterCheck,
    KnownKey,
    KnownKeys,
    key_of,
)
from .relations import elements
from .typed import Kind, Predicate

VERSION = 1


@dataclass(frozen=True, slots=True)
class SavedFilter:
    """A saved filter. `text`: JSON, with exact numbers."""

    text: str
    checked: Checked


def protects(predicate: bool | None) -> bool:
    """Check whether a hold's filter protects an inference: NULL does."""
    return predicate is not False


def deletes(predicate: bool | None) -> bool:
    """Check whether a rule's filter deletes an inference: NULL does not."""
    return predicate is True


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
    checking = FilterCheck(known, lambda *_: checked.predicate, unknown_keys="accept")
    document = {
        "version": VERSION,
        "filter": to_json(_spell_out(node, checking)),
        "keys": {name: dict(key.rows) for name, key in sorted(checked.keys.items())},
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
    keys = {name: _key(name, numbers.get(name), rows) for name, rows in document["keys"].items()}
    tree = parse_json(document["filter"])
    return check(tree, KnownKeys(keys), unknown_keys="accept", is_saved=True).predicate


def _key(name: str, number: tuple[int, bool] | None, rows: Json) -> KnownKey:
    kinds: dict[Kind, int] = {kind: int(rows[kind]) for kind in KINDS if kind in rows}
    key, several = number or (None, False)
    return KnownKey(name, key, kinds, tuple(sorted(kinds)), several=several)


def _with_declared(known: KnownKeys, types: Mapping[str, str]) -> KnownKeys:
    keys = dict(known.keys)
    for name, spelt in types.items():
        entry = type_named(spelt)
        if entry is None or entry.family is None:
            types_known = sorted(
                n for n, type_entry in TYPE_NAMES.items() if type_entry.family is not None
            )
            fault = Fault(f"types.{name}", f"there is no type {spelt!r} to compare", types_known)
            raise Invalid(f"The key {name!r} cannot be declared as {spelt!r}.", faults=[fault])
        key = keys.get(name, KnownKey(name))
        rows = {entry.family: 0, **key.rows}
        keys[name] = replace(key, rows=rows, types=(*key.types, entry.name))
    return replace(known, keys=keys)


def _spell_out(node: Node, checking: FilterCheck, op: str = "") -> Node:
    match node:
        case Named():
            return _spell_out_name(node, checking, op)
        case Operation() if node.op.lower() not in PREDICTION_FUNCTIONS:
            return replace(node, args=_all(node.args, checking, node.op.lower()))
        case Listed():
            return replace(node, items=_all(node.items, checking, ""))
        case Interval():
            start, end = (_end(bound, checking, op) for bound in (node.start, node.end))
            return Interval(start, end, at=node.at)
    return node


def _end(node: Node | None, checking: FilterCheck, op: str) -> Node | None:
    return None if node is None else _spell_out(node, checking, op)


def _all(nodes: Sequence[Node], checking: FilterCheck, op: str) -> tuple[Node, ...]:
    return tuple(_spell_out(node, checking, op) for node in nodes)


def _spell_out_name(node: Named, checking: FilterCheck, op: str) -> Named:
    if op in ARRAY_FUNCTIONS:
        node = elements(node, checking)
    if node.name in PROPERTIES and op != "sent":
        return replace(node, name=OWN + node.name)
    if node.name.startswith(OWN):
        return node
    return replace(node, name=METADATA + key_of(node))
