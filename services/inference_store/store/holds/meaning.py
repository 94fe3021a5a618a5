"""What a hold's filter says of one inference, without SQL: the same answer as the database's.

NULL protects. So does a doubt: where an inference has more metadata or predictions than the index
took, a filter that speaks of them may say FALSE of what it would have said TRUE.
"""

from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Final

from inference_store.store.filters import typed
from inference_store.store.filters.evaluate import evaluate
from inference_store.store.filters.facts import Facts
from inference_store.store.filters.saved import protects, resolved
from inference_store.store.filters.typed import Truth

from .hold import Hold

DOUBTFUL: Final = (
    *("model_keys_capped", "model_labels_capped", "predictions_capped"),
    *("metadata_keys_capped", "metadata_leaves_capped", "metadata_too_deep"),
    *("metadata_too_large", "metadata_unreadable", "metadata_partly_unreadable"),
)
"""Flags of an inference of which the index does not have all."""
_INDEXED: Final = (
    *(typed.Metadata, typed.Sent, typed.Located, typed.Distance),
    *(typed.Predicted, typed.Counted),
)
_OF_PREDICTIONS: Final = frozenset({"top_label", "top_score", "prediction_count"})


def held(hold: Hold, facts: Facts, flags: Collection[str] = ()) -> bool:
    """Whether a hold keeps an inference with these facts and flags.

    Raises what `resolved` does for a filter that cannot be evaluated.
    """
    truth = meaning(hold.filter)
    if speaks_of_indexed(truth) and not set(DOUBTFUL).isdisjoint(flags):
        return True
    return protects(evaluate(truth, facts))


@lru_cache(maxsize=256)
def meaning(text: str) -> Truth:
    """The truth that a saved filter is, by names alone."""
    return resolved(text, {})


def speaks_of_indexed(truth: Truth) -> bool:
    """Whether it speaks of metadata or predictions, of which the index may lack some."""
    return any(
        isinstance(node, _INDEXED)
        or (isinstance(node, typed.Property) and node.name in _OF_PREDICTIONS)
        for node in nodes(truth)
    )


def nodes(truth: Truth) -> Iterator[Any]:
    """Every truth and value of it, without recursion."""
    waiting: list[Any] = [truth]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif is_dataclass(node):
            yield node
            waiting.extend(getattr(node, each.name) for each in fields(node))
