"""The possible kinds of a node, and the kind as which several nodes are compared."""

from collections.abc import Sequence
from typing import Final

from inference_store.query.cql2.operations import entry_of
from inference_store.query.cql2.tree import Instant, Named, Node, Operation, Scalar
from inference_store.query.filters import names
from inference_store.query.filters.filter_check import FilterCheck
from inference_store.query.filters.known_keys import KINDS, KnownKey
from inference_store.query.filters.mismatches import mismatch
from inference_store.query.filters.refusals import meaningless
from inference_store.query.filters.typed import Kind
from inference_store.query.properties import Property as Described

from .literals import kind_of

_GIVES: Final[dict[str, Kind]] = {"number": "number", "text": "string", "truth": "bool"}


def possible(node: Node, checking: FilterCheck) -> frozenset[Kind]:
    """Return the possible kinds of a node; empty: it cannot be compared."""
    match node:
        case Scalar():
            return frozenset[Kind]({kind_of(node)})
        case Instant():
            return frozenset[Kind]({"timestamp"})
        case Named():
            return _possible_name(node, checking)
        case Operation():
            entry = entry_of(node.op)
            kind = None if entry is None else _GIVES.get(entry.gives)
            return frozenset[Kind]({kind} if kind is not None else ())
    return frozenset()


def is_condition(node: Node) -> bool:
    """Check whether a node is a condition by its form; a name may be one too."""
    entry = entry_of(node.op) if isinstance(node, Operation) else None
    return entry is not None and entry.gives == "truth"


def _possible_name(node: Named, checking: FilterCheck) -> frozenset[Kind]:
    resolved = described(node, checking)
    if isinstance(resolved, KnownKey):
        return resolved.kinds
    if resolved.kind == "location":
        message = "a location is no value to compare: ask by S_INTERSECTS(location, …)"
        raise meaningless(node, checking.source, message)
    return frozenset[Kind]({resolved.kind})


def described(node: Named, checking: FilterCheck) -> Described | KnownKey:
    """Return the property, key or column that a name means at its place."""
    return names.column(node, checking) if checking.inside else names.meaning(node, checking)


def common(nodes: Sequence[Node], checking: FilterCheck) -> Kind:
    """Return the kind that all can be compared as, with most rows. Raises ImpossibleComparison."""
    kinds = [possible(node, checking) for node in nodes]
    shared = frozenset(KINDS).intersection(*kinds)
    if not shared:
        raise mismatch(nodes, kinds, checking)
    keys = [key for node in nodes if (key := _key(node, checking)) is not None]

    def weight(kind: Kind) -> tuple[int, int]:
        rows = min((key.rows.get(kind, 0) for key in keys), default=0)
        return -rows, KINDS.index(kind)

    return min(shared, key=weight)


def _key(node: Node, checking: FilterCheck) -> KnownKey | None:
    if not isinstance(node, Named) or checking.inside:
        return None
    resolved = names.meaning(node, checking)
    return resolved if isinstance(resolved, KnownKey) else None
