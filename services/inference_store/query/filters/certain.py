"""Certain matches: predicates that stay TRUE whatever data of an inference the index lacks.

Flags mark the inferences that are not indexed completely. If metadata was not read or not indexed,
a key without a value may have one, and an array may have more elements. The same holds for
predictions beyond a cap, or without their label. A predicate that such a doubt could change is
NULL, so that nothing is deleted because the index is incomplete.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

from . import typed
from .typed import Predicate, iterate_nodes

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
_METADATA: Final = (typed.Metadata, typed.Sent, typed.Located, typed.Distance)
_PREDICTIONS: Final = (typed.Predicted, typed.Counted)
_OF_PREDICTIONS: Final = frozenset({"top_label", "top_score", "prediction_count"})
_COMPARED: Final = (typed.Compared, typed.Between, typed.Among, typed.Like, typed.Holds)


def doubts_of(flags: Iterable[str]) -> Doubts:
    """Return the parts that the index may lack of an inference with these flags."""
    present = set(flags)
    return frozenset(doubt for doubt, names in FLAGS.items() if not present.isdisjoint(names))


def find_doubts(predicate: Any) -> Doubts:
    """Return which parts of the index, of those that may be incomplete, a predicate refers to."""
    return frozenset(
        doubt for node in iterate_nodes(predicate) if (doubt := _kind(node)) is not None
    )


def make_certain(predicate: Predicate, doubts: Collection[Doubt]) -> Predicate:
    """Return a predicate that is TRUE only if this one is TRUE whatever the doubts hide.

    A predicate that none of the doubts concerns is returned as it is.
    """
    about = frozenset(doubts) & find_doubts(predicate)
    return _certain(predicate, about, when=True) if about else predicate


def names_project(predicate: Predicate) -> bool:
    """Check whether it depends on the model's project, which may change."""
    return any(
        isinstance(node, typed.Property) and node.name == "project_id"
        for node in iterate_nodes(predicate)
    )


def _kind(node: Any) -> Doubt | None:
    if isinstance(node, _METADATA):
        return "metadata"
    if isinstance(node, _PREDICTIONS):
        return "predictions"
    is_of_predictions = isinstance(node, typed.Property) and node.name in _OF_PREDICTIONS
    # a label beyond a cap is missing; conditions on columns are inside `prediction()`
    return "predictions" if is_of_predictions or isinstance(node, typed.Column) else None


def _certain(predicate: Predicate, doubts: Doubts, *, when: bool) -> Predicate:
    """Return a predicate that is TRUE if this one is certainly true, or (`when` False) false."""
    if find_doubts(predicate).isdisjoint(doubts):
        return predicate if when else typed.Not(predicate)
    return _CERTAIN.get(type(predicate), _nothing)(predicate, doubts, when)


def _nothing(predicate: Predicate, doubts: Doubts, when: bool) -> Predicate:  # noqa: ARG001
    return _NEVER


def _joined(predicate: typed.And | typed.Or, doubts: Doubts, when: bool) -> Predicate:
    parts = tuple(_certain(part, doubts, when=when) for part in predicate.parts)
    return typed.And(parts) if isinstance(predicate, typed.And) is when else typed.Or(parts)


def _not(predicate: typed.Not, doubts: Doubts, when: bool) -> Predicate:
    inner = _certain(predicate.of, doubts, when=not when)
    return predicate if inner == typed.Not(predicate.of) else inner


def _unknown(predicate: typed.Unknown, doubts: Doubts, when: bool) -> Predicate:
    """IS NULL is never certain, because the doubts may decide it; a decided predicate stays so."""
    if when:
        return _NEVER
    return typed.Or(tuple(_certain(predicate.of, doubts, when=truth) for truth in (True, False)))


def _missing(predicate: typed.Missing, doubts: Doubts, when: bool) -> Predicate:  # noqa: ARG001
    """A missing value may exist, so IS NULL is never certain; an existing value stays."""
    return _NEVER if when else typed.Not(predicate)


def _compared(predicate: Predicate, doubts: Doubts, when: bool) -> Predicate:
    """A value that satisfies the comparison stays. That none satisfies it is not certain, because
    any key may have several values."""
    leaves = list(iterate_nodes(predicate))
    if any(_in_doubt(leaf, doubts) for leaf in leaves):
        return _NEVER
    if when:
        return predicate
    several = any(isinstance(leaf, typed.Metadata) for leaf in leaves)
    return _NEVER if several else typed.Not(predicate)


def _in_doubt(node: Any, doubts: Doubts) -> bool:
    """Check whether the value may differ from the one in the index."""
    if isinstance(node, (typed.Counted, typed.PredicateValue)):
        return not find_doubts(node).isdisjoint(doubts)
    is_of_predictions = isinstance(node, typed.Property) and node.name in _OF_PREDICTIONS
    return is_of_predictions and "predictions" in doubts


def _sent(predicate: typed.Sent, doubts: Doubts, when: bool) -> Predicate:  # noqa: ARG001
    return predicate if when else _NEVER


def _located(predicate: typed.Located, doubts: Doubts, when: bool) -> Predicate:  # noqa: ARG001
    """A known location stays, because an inference has one at most."""
    return predicate if when else typed.Not(predicate)


def _predicted(predicate: typed.Predicted, doubts: Doubts, when: bool) -> Predicate:
    """A prediction that satisfies the condition stays; that none does is not certain."""
    if not when or predicate.condition is None:
        return predicate if when else _NEVER
    return typed.Predicted(_certain(predicate.condition, doubts, when=True))


def _array(predicate: typed.Array, doubts: Doubts, when: bool) -> Predicate:  # noqa: ARG001
    """With more elements the set still has these, and still has others."""
    if when:
        return predicate if predicate.relation in {"contains", "overlaps"} else _NEVER
    return typed.Not(predicate) if predicate.relation == "containedby" else _NEVER


_CERTAIN: Final[Mapping[type[Any], Callable[[Any, Doubts, bool], Predicate]]] = {
    typed.And: _joined,
    typed.Or: _joined,
    typed.Not: _not,
    typed.Unknown: _unknown,
    typed.Missing: _missing,
    typed.Sent: _sent,
    typed.Located: _located,
    typed.Predicted: _predicted,
    typed.Array: _array,
    **dict.fromkeys(_COMPARED, _compared),
}
