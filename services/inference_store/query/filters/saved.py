"""Filters that are kept, of policies and holds: resolved when they are saved, the same for ever.

What is saved is the tree with every name spelt out, and the kinds that its keys had then. What
is seen later of a key changes nothing, nor does a property that comes to be named like it.
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

from . import sets
from .check import Checked, check
from .checking import Checking
from .known import KINDS, Known, KnownKey
from .names import ARRAY_FUNCTIONS, METADATA, OWN, PREDICTION_FUNCTIONS, key_of
from .typed import Kind, Predicate

VERSION = 1


@dataclass(frozen=True, slots=True)
class SavedFilter:
    """A filter as it is kept. `text`: JSON, with exact numbers."""

    text: str
    checked: Checked


def protects(predicate: bool | None) -> bool:
    """Whether a hold's filter holds an inference: NULL protects."""
    return predicate is not False


def deletes(predicate: bool | None) -> bool:
    """Whether a rule's filter lets an inference go: NULL does not delete."""
    return predicate is True


def save(
    node: Node,
    known: Known,
    *,
    declared: Mapping[str, str] | None = None,
    source: str | None = None,
) -> SavedFilter:
    """The filter, resolved. `declared`: types of keys that nothing has yet, by name.

    Such keys are accepted, with a warning. Raises what `check` does, and Invalid for a type.
    """
    known = _with_declared(known, declared or {})
    checked = check(node, known, source=source, unknown_keys="accept")
    checking = Checking(known, lambda *_: checked.predicate, unknown_keys="accept")
    document = {
        "version": VERSION,
        "filter": to_json(_spell_out(node, checking)),
        "keys": {name: dict(each.rows) for name, each in sorted(checked.keys.items())},
    }
    text = write_json(document)
    resolve(text, {})  # what cannot be loaded is refused now
    return SavedFilter(text, checked)


async def load(connection: AsyncConnection, text: str) -> Predicate:
    """The filter as it was saved. Asks the dictionary for its keys' integers, and no registry."""
    names = read_exactly(text)["keys"]
    return resolve(text, await key_registry.numbers(connection, names))


def resolve(text: str, numbers: Mapping[str, int]) -> Predicate:
    """The filter as it was saved. `numbers`: its keys' integers; one that is not there has none."""
    document = read_exactly(text)
    if document["version"] != str(VERSION):
        raise Invalid(f"The filter was saved by another version: {document['version']}.")
    keys = {name: _key(name, numbers.get(name), rows) for name, rows in document["keys"].items()}
    tree = parse_json(document["filter"])
    return check(tree, Known(keys), unknown_keys="accept", kept=True).predicate


def _key(name: str, number: int | None, rows: Json) -> KnownKey:
    kinds: dict[Kind, int] = {kind: int(rows[kind]) for kind in KINDS if kind in rows}
    return KnownKey(name, number, kinds, tuple(sorted(kinds)))


def _with_declared(known: Known, types: Mapping[str, str]) -> Known:
    keys = dict(known.keys)
    for name, spelt in types.items():
        entry = type_named(spelt)
        if entry is None or entry.family is None:
            types_known = sorted(n for n, each in TYPE_NAMES.items() if each.family is not None)
            fault = Fault(f"types.{name}", f"there is no type {spelt!r} to compare", types_known)
            raise Invalid(f"The key {name!r} cannot be declared as {spelt!r}.", faults=[fault])
        key = keys.get(name, KnownKey(name))
        rows = {entry.family: 0, **key.rows}
        keys[name] = replace(key, rows=rows, types=(*key.types, entry.name))
    return replace(known, keys=keys)


def _spell_out(node: Node, checking: Checking, op: str = "") -> Node:
    """Every name with what it is a name of."""
    match node:
        case Named():
            return _named(node, checking, op)
        case Operation() if node.op.lower() not in PREDICTION_FUNCTIONS:
            return replace(node, args=_all(node.args, checking, node.op.lower()))
        case Listed():
            return replace(node, items=_all(node.items, checking, ""))
        case Interval():
            start, end = (_end(each, checking, op) for each in (node.start, node.end))
            return Interval(start, end, at=node.at)
    return node


def _end(node: Node | None, checking: Checking, op: str) -> Node | None:
    return None if node is None else _spell_out(node, checking, op)


def _all(nodes: Sequence[Node], checking: Checking, op: str) -> tuple[Node, ...]:
    return tuple(_spell_out(each, checking, op) for each in nodes)


def _named(named: Named, checking: Checking, op: str) -> Named:
    if op in ARRAY_FUNCTIONS:
        named = sets.elements(named, checking)
    if named.name in PROPERTIES and op != "sent":
        return replace(named, name=OWN + named.name)
    if named.name.startswith(OWN):
        return named
    return replace(named, name=METADATA + key_of(named))
