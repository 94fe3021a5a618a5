"""Resolves a name in a filter: a property, a metadata key, or a column of a prediction."""

from collections.abc import Iterator
from typing import Final

from inference_store.inference.json_text import storable
from inference_store.inference.metadata import KEY_ALIASES
from inference_store.inference.nearest import describe_nearest, nearest
from inference_store.query.cql2 import meant_by
from inference_store.query.cql2.tree import (
    Geometry,
    Instant,
    Interval,
    Listed,
    Named,
    Node,
    Operation,
    Scalar,
)
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES, Property

from .filter_check import FilterCheck
from .known_keys import KnownKey
from .refusals import hinted, meaningless, unknown_key

OWN, METADATA = "inference.", "metadata."
PREDICTION_FUNCTIONS: Final = frozenset({"prediction", "count_predictions"})
ARRAY_FUNCTIONS: Final = frozenset({"a_equals", "a_contains", "a_containedby", "a_overlaps"})


def names_in(node: Node) -> set[str]:
    """Return the metadata keys that a tree may refer to, which are looked up before its check."""
    keys: set[str] = set()
    for name_node, op in _iterate_names(node, ""):
        if name_node.name.startswith(OWN):
            continue
        name = key_of(name_node)
        keys.add(name)
        if op in ARRAY_FUNCTIONS:
            keys.add(f"{name}[]")
    return {name for name in keys if storable(name)}


def children(node: Node) -> tuple[Node, ...]:
    """Return the parts of a node."""
    match node:
        case Operation():
            return node.args
        case Listed():
            return node.items
        case Interval():
            return tuple(end for end in (node.start, node.end) if end is not None)
        case Named() | Scalar() | Instant() | Geometry():
            return ()


def _iterate_names(node: Node, op: str) -> Iterator[tuple[Named, str]]:
    """Yield the names outside predictions, each with the operation that contains it."""
    if isinstance(node, Named):
        yield node, op
    here = node.op.lower() if isinstance(node, Operation) else op
    if here not in PREDICTION_FUNCTIONS:
        for child in children(node):
            yield from _iterate_names(child, here)


def key_of(node: Named) -> str:
    """Return the metadata key for a name, if it is one."""
    name = node.name.removeprefix(METADATA)
    return KEY_ALIASES.get(name, name)


def meaning(node: Named, checking: FilterCheck) -> Property | KnownKey:
    """Return the property or key that a name means. Raises UnknownKey, InvalidFilter."""
    if node.name.startswith(OWN):
        return _property(node, checking)
    if node.name.startswith(METADATA):
        return key(node, checking)
    entry = PROPERTIES.get(node.name)
    if entry is None:
        return key(node, checking, may_be_property=True)
    if key_of(node) in checking.known_keys.keys:
        both = [OWN + node.name, METADATA + node.name]
        message = f"{node.name!r} is a property and a metadata key: write {' or '.join(both)}"
        raise meaningless(node, checking.source, message, both)
    return entry


def _property(node: Named, checking: FilterCheck) -> Property:
    name = node.name.removeprefix(OWN)
    if name not in PROPERTIES:
        near = nearest(name, PROPERTIES)
        hint = describe_nearest(near, list(PROPERTIES))
        message = f"an inference has no property {name!r}; {hint}"
        raise meaningless(node, checking.source, message, near or list(PROPERTIES))
    return PROPERTIES[name]


def key(node: Named, checking: FilterCheck, *, may_be_property: bool = False) -> KnownKey:
    """Return the metadata key of a name. Raises UnknownKey, with the nearest names."""
    name = key_of(node)
    known_key = checking.known_keys.keys.get(name)
    if known_key is None:
        if checking.unknown_keys == "refuse":
            near = checking.known_keys.nearest.get(name, ())
            if may_be_property:
                near = nearest(name, [*near, *PROPERTIES]) or near
            refusal = unknown_key(node, checking.source, name, near)
            raise hinted(refusal, meant_by(node))
        known_key = KnownKey(name)
    if known_key.key is None and checking.unknown_keys == "accept":
        checking.warn(f"No inference has the metadata key {name!r} yet.")
    checking.keys[name] = known_key
    return known_key


def column(node: Named, checking: FilterCheck) -> Property:
    """Return the column of a prediction with this name. Raises InvalidFilter."""
    entry = PREDICTION_COLUMNS.get(node.name)
    if entry is None:
        columns = list(PREDICTION_COLUMNS)
        message = (
            f"inside prediction(…) names are columns of a prediction only, and {node.name!r} is "
            f"none; they are {', '.join(columns)}"
        )
        raise meaningless(node, checking.source, message, columns)
    return entry
