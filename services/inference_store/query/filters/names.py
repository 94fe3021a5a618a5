"""What a name in a filter means: a property, a metadata key, or a column of a prediction."""

from collections.abc import Iterator
from typing import Final

from inference_store.inference.json_text import storable
from inference_store.inference.metadata import KEY_ALIASES
from inference_store.inference.nearest import nearest
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

from .checking import Checking
from .known import KnownKey
from .refusals import hinted, meaningless, unknown_key

OWN, METADATA = "inference.", "metadata."
PREDICTION_FUNCTIONS: Final = frozenset({"prediction", "count_predictions"})
ARRAY_FUNCTIONS: Final = frozenset({"a_equals", "a_contains", "a_containedby", "a_overlaps"})


def names_in(node: Node) -> set[str]:
    """The metadata keys that a tree may mean: what to look up before its check."""
    found: set[str] = set()
    for named, op in _named(node, ""):
        if named.name.startswith(OWN):
            continue
        name = key_of(named)
        found.add(name)
        if op in ARRAY_FUNCTIONS:
            found.add(f"{name}[]")
    return {name for name in found if storable(name)}


def children(node: Node) -> tuple[Node, ...]:
    """What a node is made of."""
    match node:
        case Operation():
            return node.args
        case Listed():
            return node.items
        case Interval():
            return tuple(end for end in (node.start, node.end) if end is not None)
        case Named() | Scalar() | Instant() | Geometry():
            return ()


def _named(node: Node, op: str) -> Iterator[tuple[Named, str]]:
    """Names outside predictions, each with the operation that it stands in."""
    if isinstance(node, Named):
        yield node, op
    here = node.op.lower() if isinstance(node, Operation) else op
    if here not in PREDICTION_FUNCTIONS:
        for child in children(node):
            yield from _named(child, here)


def key_of(named: Named) -> str:
    """The metadata key that a name is, if it is one."""
    name = named.name.removeprefix(METADATA)
    return KEY_ALIASES.get(name, name)


def meaning(named: Named, checking: Checking) -> Property | KnownKey:
    """The property, or the key. Raises UnknownKey, InvalidFilter."""
    if named.name.startswith(OWN):
        return _property(named, checking)
    if named.name.startswith(METADATA):
        return key(named, checking)
    found = PROPERTIES.get(named.name)
    if found is None:
        return key(named, checking)
    if key_of(named) in checking.known.keys:
        both = [OWN + named.name, METADATA + named.name]
        message = f"{named.name!r} is a property and a metadata key: write {' or '.join(both)}"
        raise meaningless(named, checking.source, message, both)
    return found


def _property(named: Named, checking: Checking) -> Property:
    name = named.name.removeprefix(OWN)
    if name not in PROPERTIES:
        near = nearest(name, PROPERTIES) or list(PROPERTIES)
        message = f"an inference has no property {name!r}; the nearest are {', '.join(near)}"
        raise meaningless(named, checking.source, message, near)
    return PROPERTIES[name]


def key(named: Named, checking: Checking) -> KnownKey:
    """The metadata key. Raises UnknownKey."""
    name = key_of(named)
    found = checking.known.keys.get(name)
    if found is None:
        if checking.unknown_keys == "refuse":
            near = checking.known.nearest.get(name, ())
            if named.name in PROPERTIES:
                near = (named.name, *near)
            refusal = unknown_key(named, checking.source, name, near)
            raise hinted(refusal, meant_by(named))
        found = KnownKey(name)
    if found.key is None and checking.unknown_keys == "accept":
        checking.warn(f"No inference has the metadata key {name!r} yet.")
    checking.keys[name] = found
    return found


def column(named: Named, checking: Checking) -> Property:
    """The column of a prediction. Raises InvalidFilter."""
    found = PREDICTION_COLUMNS.get(named.name)
    if found is None:
        known = list(PREDICTION_COLUMNS)
        message = (
            f"inside prediction(…) names are columns of a prediction only, and {named.name!r} is "
            f"none; they are {', '.join(known)}"
        )
        raise meaningless(named, checking.source, message, known)
    return found
