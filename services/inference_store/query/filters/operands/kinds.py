"""The kinds of value that a node can be, and the one that several can be compared as."""

from collections.abc import Sequence
from typing import Final

from inference_store.query.cql2.operations import entry_of
from inference_store.query.cql2.tree import Instant, Named, Node, Operation, Scalar
from inference_store.query.filters import names
from inference_store.query.filters.checking import Checking
from inference_store.query.filters.known import KINDS, KnownKey
from inference_store.query.filters.mismatches import mismatch
from inference_store.query.filters.refusals import meaningless
from inference_store.query.filters.typed import Kind
from inference_store.query.properties import Property as Described

from .written import kind_of

_GIVES: Final[dict[str, Kind]] = {"number": "number", "text": "string", "truth": "bool"}


def possible(node: Node, checking: Checking) -> frozenset[Kind]:
    """The kinds that a node can be; none: it is nothing that can be compared."""
    match node:
        case Scalar():
            return frozenset[Kind]({kind_of(node)})
        case Instant():
            return frozenset[Kind]({"timestamp"})
        case Named():
            return _possible_name(node, checking)
        case Operation():
            entry = entry_of(node.op)
            given = None if entry is None else _GIVES.get(entry.gives)
            return frozenset[Kind]({given} if given is not None else ())
    return frozenset()


def is_condition(node: Node) -> bool:
    """Whether a node is one by its form; a name may be."""
    entry = entry_of(node.op) if isinstance(node, Operation) else None
    return entry is not None and entry.gives == "truth"


def _possible_name(named: Named, checking: Checking) -> frozenset[Kind]:
    found = described(named, checking)
    if isinstance(found, KnownKey):
        return found.kinds
    if found.kind == "location":
        message = "a location is no value to compare: ask by S_INTERSECTS(location, …)"
        raise meaningless(named, checking.source, message)
    return frozenset[Kind]({found.kind})


def described(named: Named, checking: Checking) -> Described | KnownKey:
    """What a name is, where it stands."""
    return names.column(named, checking) if checking.inside else names.meaning(named, checking)


def common(nodes: Sequence[Node], checking: Checking) -> Kind:
    """The kind that all can be compared as: the one of most rows. Raises ImpossibleComparison."""
    kinds = [possible(node, checking) for node in nodes]
    shared = frozenset(KINDS).intersection(*kinds)
    if not shared:
        raise mismatch(nodes, kinds, checking)
    keys = [each for node in nodes if (each := _key(node, checking)) is not None]

    def weight(kind: Kind) -> tuple[int, int]:
        rows = min((key.rows.get(kind, 0) for key in keys), default=0)
        return -rows, KINDS.index(kind)

    return min(shared, key=weight)


def _key(node: Node, checking: Checking) -> KnownKey | None:
    if not isinstance(node, Named) or checking.inside:
        return None
    found = names.meaning(node, checking)
    return found if isinstance(found, KnownKey) else None
