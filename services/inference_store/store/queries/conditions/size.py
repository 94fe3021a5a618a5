"""How long a condition's SQL is: statements are kept to what is planned in a moment."""

from inference_store.store.filters.typed import Constant, Counted, Value

from .comparisons import Comparing
from .condition import Condition
from .logic import All, Either, Neither
from .names import Names
from .predictions import Counts, Predicts, of_one


def size_of(condition: Condition) -> int:
    """How many comparisons there are in it, about; one at least."""
    match condition:
        case All() | Either() | Neither():
            return sum(map(size_of, condition.parts))
        case Predicts():
            return 1 + size_of(of_one(condition.condition, condition.names))
        case Counts():
            return size_of(condition.compared)
        case Comparing():
            return max(1, sum(_of_leaf(leaf, condition.names) for leaf in condition.leaves))
        case _:
            return max(1, condition.scans)


def _of_leaf(leaf: Value, names: Names) -> int:
    if isinstance(leaf, Counted):
        return 1 + size_of(of_one(leaf.condition, names))
    return 0 if isinstance(leaf, Constant) else 1
