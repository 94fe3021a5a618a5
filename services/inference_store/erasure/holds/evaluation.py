"""Evaluates a hold's filter for one inference without SQL: the answer is that of the database.

NULL protects. So does a doubt: if an inference has more metadata or predictions than are indexed, a
filter about them may be FALSE although it would be TRUE of all of them.
"""

from collections.abc import Collection
from functools import lru_cache
from typing import Final

from inference_store.query.filters.certain import FLAGS, find_doubts
from inference_store.query.filters.evaluate import Facts, evaluate
from inference_store.query.filters.saved import protects, resolve
from inference_store.query.filters.typed import Predicate

from .hold import Hold

INCOMPLETE_FLAGS: Final = (*FLAGS["predictions"], *FLAGS["metadata"])
"""Flags of an inference that is not indexed completely."""


def is_held(hold: Hold, facts: Facts, flags: Collection[str] = ()) -> bool:
    """Return whether a hold protects an inference with these facts and flags.

    Raises what `resolve` does for a filter that cannot be evaluated.
    """
    predicate = resolve_filter(hold.filter)
    if depends_on_index(predicate) and not set(INCOMPLETE_FLAGS).isdisjoint(flags):
        return True
    return protects(evaluate(predicate, facts))


@lru_cache(maxsize=256)
def resolve_filter(text: str) -> Predicate:
    """Return the predicate of a saved filter, by names alone."""
    return resolve(text, {})


def depends_on_index(predicate: Predicate) -> bool:
    """Return whether it depends on metadata or predictions, of which the index may lack some."""
    return bool(find_doubts(predicate))
