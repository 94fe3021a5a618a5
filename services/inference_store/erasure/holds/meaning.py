"""What a hold's filter says of one inference, without SQL: the same answer as the database's.

NULL protects. So does a doubt: where an inference has more metadata or predictions than the index
took, a filter that speaks of them may say FALSE of what it would have said TRUE.
"""

from collections.abc import Collection
from functools import lru_cache
from typing import Final

from inference_store.query.filters.certain import FLAGS, find_doubts
from inference_store.query.filters.evaluate import evaluate
from inference_store.query.filters.facts import Facts
from inference_store.query.filters.saved import protects, resolve
from inference_store.query.filters.typed import Predicate

from .hold import Hold

DOUBTFUL: Final = (*FLAGS["predictions"], *FLAGS["metadata"])
"""Flags of an inference of which the index does not have all."""


def held(hold: Hold, facts: Facts, flags: Collection[str] = ()) -> bool:
    """Whether a hold keeps an inference with these facts and flags.

    Raises what `resolve` does for a filter that cannot be evaluated.
    """
    predicate = meaning(hold.filter)
    if speaks_of_indexed(predicate) and not set(DOUBTFUL).isdisjoint(flags):
        return True
    return protects(evaluate(predicate, facts))


@lru_cache(maxsize=256)
def meaning(text: str) -> Predicate:
    """The predicate that a saved filter is, by names alone."""
    return resolve(text, {})


def speaks_of_indexed(predicate: Predicate) -> bool:
    """Whether it speaks of metadata or predictions, of which the index may lack some."""
    return bool(find_doubts(predicate))
