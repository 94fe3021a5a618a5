"""What each operator of `metadata_filter` means for a name's values: its SQL is held against it."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from inference_store.query.properties import Operator
from tests.unit.query.filters.oracle import like_expression

TESTS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    **{"eq": operator.eq, "neq": operator.ne, "gt": operator.gt, "gte": operator.ge},
    **{"lt": operator.lt, "lte": operator.le},
    **dict.fromkeys(("in", "not_in"), lambda value, operands: value in operands),
    "between": lambda value, operands: operands[0] <= value <= operands[1],
    "like": lambda value, pattern: like_expression(pattern).fullmatch(value) is not None,
}


def holds(entry: Operator, values: Sequence[Any], operand: Any) -> bool:
    """Check whether it holds for a name's values; `exists` and `missing`: for all that was sent."""
    if entry.op == "sent":
        return bool(values) is not entry.negated
    some = any(TESTS[entry.name](value, operand) for value in values)
    return bool(values) and not some if entry.negated else some
