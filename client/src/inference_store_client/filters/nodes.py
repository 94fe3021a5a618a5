"""Python values as parts of CQL2-JSON."""

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, Final, TypeAlias
from uuid import UUID

from inference_store_client.errors import FilterError
from inference_store_client.instants import format_instant

Tree: TypeAlias = Any
"""CQL2-JSON."""
_MICROSECONDS: Final = 1_000_000


class Node:
    """A part of a filter: CQL2-JSON."""

    __slots__ = ("_tree",)

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    @property
    def tree(self) -> Tree:
        """The part in CQL2-JSON."""
        return self._tree

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._tree})"


def make_operation(op: str, *args: Any) -> Tree:
    """Make an operation; the arguments are expressions or Python values."""
    return {"op": op, "args": [make_node(arg) for arg in args]}


def make_node(value: Any) -> Tree:  # noqa: PLR0911
    """Return a value in CQL2-JSON. Raises FilterError for what a filter cannot hold."""
    match value:
        case Node():
            return value.tree
        case bool() | str() | int():
            return value
        case float() | Decimal():
            return _check_number(value)
        case datetime():
            return {"timestamp": format_instant(value)}
        case date():
            return {"date": value.isoformat()}
        case timedelta():
            return {"op": "duration", "args": [format_duration(value)]}
        case UUID():
            return str(value)
        case Mapping():  # a geometry
            return dict(value)
        case list() | tuple() | set() | frozenset():
            return [make_node(item) for item in value]
    raise _make_refusal(value)


def format_duration(duration: timedelta) -> str:
    """Return a duration in ISO 8601, in seconds. Raises FilterError for a negative one."""
    if duration < timedelta(0):
        raise FilterError("a duration is not negative: subtract it instead")
    microseconds = duration // timedelta(microseconds=1)
    seconds, rest = divmod(microseconds, _MICROSECONDS)
    fraction = f".{rest:06}".rstrip("0") if rest else ""
    return f"PT{seconds}{fraction}S"


def _check_number(value: float | Decimal) -> float | Decimal:
    if not isfinite(value):
        raise FilterError(f"{value} is no number of a filter")
    return value


def _make_refusal(value: Any) -> FilterError:
    if value is None:
        return FilterError("nothing is equal to None: write .is_null(), or ~….is_null()")
    kind = type(value)
    hint = ": write value.item()" if kind.__module__ == "numpy" else ""
    return FilterError(f"a filter cannot hold a {kind.__module__}.{kind.__qualname__}{hint}")
