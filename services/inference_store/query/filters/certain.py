"""What is TRUE of an inference that the index does not have whole, whatever it lacks of it.

Flags tell which inferences those are. Of metadata that were not read or not indexed nothing is
known: a key without a value may have one, an array may have more elements. Of predictions beyond
a cap, or without their label, likewise. A truth that such a doubt could end is NULL there, so that
nothing is deleted because the index lacks something.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, Literal, TypeAlias

from . import typed
from .typed import Truth

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
"""Flags of inferences of which the index lacks some metadata, or some predictions."""
_NEVER: Final = typed.Fixed(False)
_METADATA: Final = (typed.Metadata, typed.Sent, typed.Located, typed.Distance)
_PREDICTIONS: Final = (typed.Predicted, typed.Counted)
_OF_PREDICTIONS: Final = frozenset({"top_label", "top_score", "prediction_count"})
_COMPARED: Final = (typed.Compared, typed.Between, typed.Among, typed.Like, typed.Holds)


def doubts_of(flags: Iterable[str]) -> Doubts:
    """What the index may lack of an inference with these flags."""
    found = set(flags)
    return frozenset(doubt for doubt, names in FLAGS.items() if not found.isdisjoint(names))


def spoken_of(truth: Any) -> Doubts:
    """What of the index a truth, or a value, speaks of, and could lack."""
    return frozenset(found for node in nodes(truth) if (found := _kind(node)) is not None)


def certain(truth: Truth, doubts: Collection[Doubt]) -> Truth:
    """TRUE where the truth is, whatever else there is of what is in doubt; the truth itself where
    nothing is that it speaks of."""
    about = frozenset(doubts) & spoken_of(truth)
    return _certain(truth, about, when=True) if about else truth


def names_project(truth: Truth) -> bool:
    """Whether it depends on the model's project, which the model may leave."""
    return any(
        isinstance(node, typed.Property) and node.name == "project_id" for node in nodes(truth)
    )


def nodes(truth: Any) -> Iterator[Any]:
    """Every truth and value of it, without recursion."""
    waiting: list[Any] = [truth]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif is_dataclass(node):
            yield node
            waiting.extend(getattr(node, each.name) for each in fields(node))


def _kind(node: Any) -> Doubt | None:
    if isinstance(node, _METADATA):
        return "metadata"
    if isinstance(node, _PREDICTIONS):
        return "predictions"
    named = isinstance(node, typed.Property) and node.name in _OF_PREDICTIONS
    # a label beyond a cap is not there; conditions on columns stand inside `prediction()`
    return "predictions" if named or isinstance(node, typed.Column) else None


def _certain(truth: Truth, doubts: Doubts, *, when: bool) -> Truth:
    """TRUE where the truth is certainly true, or (`when` False) certainly false."""
    if spoken_of(truth).isdisjoint(doubts):
        return truth if when else typed.Not(truth)
    return _MADE.get(type(truth), _nothing)(truth, doubts, when)


def _nothing(truth: Truth, doubts: Doubts, when: bool) -> Truth:  # noqa: ARG001
    return _NEVER


def _all(truth: typed.And, doubts: Doubts, when: bool) -> Truth:
    parts = tuple(_certain(part, doubts, when=when) for part in truth.parts)
    return typed.And(parts) if when else typed.Or(parts)


def _either(truth: typed.Or, doubts: Doubts, when: bool) -> Truth:
    parts = tuple(_certain(part, doubts, when=when) for part in truth.parts)
    return typed.Or(parts) if when else typed.And(parts)


def _not(truth: typed.Not, doubts: Doubts, when: bool) -> Truth:
    inner = _certain(truth.of, doubts, when=not when)
    return truth if inner == typed.Not(truth.of) else inner


def _unknown(truth: typed.Unknown, doubts: Doubts, when: bool) -> Truth:
    """What is not known now may be; what is known stays so."""
    if when:
        return _NEVER
    return typed.Or(tuple(_certain(truth.of, doubts, when=each) for each in (True, False)))


def _missing(truth: typed.Missing, doubts: Doubts, when: bool) -> Truth:  # noqa: ARG001
    """A value that is there does not go away."""
    return _NEVER if when else typed.Not(truth)


def _compared(truth: Truth, doubts: Doubts, when: bool) -> Truth:
    """By values that are known. Of several values one that satisfies it stays; that none does is
    not certain."""
    leaves = list(nodes(truth))
    if any(_in_doubt(leaf, doubts) for leaf in leaves):
        return _NEVER
    if when:
        return truth
    several = any(isinstance(leaf, typed.Metadata) and leaf.many for leaf in leaves)
    return _NEVER if several else typed.Not(truth)


def _in_doubt(node: Any, doubts: Doubts) -> bool:
    """A value that may be another one than the index says."""
    if isinstance(node, (typed.Counted, typed.Truthful)):
        return not spoken_of(node).isdisjoint(doubts)
    named = isinstance(node, typed.Property) and node.name in _OF_PREDICTIONS
    return named and "predictions" in doubts


def _sent(truth: typed.Sent, doubts: Doubts, when: bool) -> Truth:  # noqa: ARG001
    return truth if when else _NEVER


def _located(truth: typed.Located, doubts: Doubts, when: bool) -> Truth:  # noqa: ARG001
    """It has one place, or none is known."""
    return truth if when else typed.Not(truth)


def _predicted(truth: typed.Predicted, doubts: Doubts, when: bool) -> Truth:
    """A prediction that is there stays."""
    if not when or truth.condition is None:
        return truth if when else _NEVER
    return typed.Predicted(_certain(truth.condition, doubts, when=True))


def _array(truth: typed.Array, doubts: Doubts, when: bool) -> Truth:  # noqa: ARG001
    """More elements end neither that it has these, nor that it has others."""
    if when:
        return truth if truth.relation in {"contains", "overlaps"} else _NEVER
    return typed.Not(truth) if truth.relation == "containedby" else _NEVER


_MADE: Final[Mapping[type[Any], Callable[[Any, Doubts, bool], Truth]]] = {
    typed.And: _all,
    typed.Or: _either,
    typed.Not: _not,
    typed.Unknown: _unknown,
    typed.Missing: _missing,
    typed.Sent: _sent,
    typed.Located: _located,
    typed.Predicted: _predicted,
    typed.Array: _array,
    **dict.fromkeys(_COMPARED, _compared),
}
