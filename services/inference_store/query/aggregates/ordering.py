"""The groups of the answer, and their order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_store.inference.errors import Fault, Invalid
from inference_store.inference.events.uid import received_at_of

from .aggregation import Aggregation, ByHistogram, ByTime
from .answer import format_bin, sort_value
from .exact import plain
from .partial import Key
from .rows import Dimension, InBins, InTime


@dataclass(frozen=True, slots=True)
class Group:
    """One group. `raw`: the key that it is sorted by; `key`, `measures`: by their names."""

    raw: Key
    inferences: int
    key: Mapping[str, Any]
    measures: Mapping[str, Any]

    @property
    def as_json(self) -> Mapping[str, Any]:
        """The group for the JSON of the answer."""
        return {"key": self.key, "measures": self.measures}


def name_key(aggregation: Aggregation, dimensions: Sequence[Dimension], key: Key) -> dict[str, Any]:
    """Return a group's key by the names of its parts; None: there is no value."""
    parts = zip(aggregation.group_by, dimensions, key, strict=True)
    return {by.name: _format_value(dimension, value) for by, dimension, value in parts}


def _format_value(dimension: Dimension, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(dimension, InTime):
        return received_at_of(dimension.starts[value - 1])
    if isinstance(dimension, InBins):
        return format_bin(value, dimension.bounds)
    return plain(value)


def sort_groups(
    aggregation: Aggregation, groups: Sequence[Group]
) -> tuple[Sequence[Group], Sequence[Group]]:
    """Return the groups to show, in order, and the others. Raises Invalid for an unknown order."""
    ordered = sorted(groups, key=lambda group: [_last(part) for part in group.raw])
    name, largest_first = _order(aggregation)
    if name is not None:
        present = [group for group in ordered if _value(aggregation, group, name) is not None]
        absent = [group for group in ordered if _value(aggregation, group, name) is None]
        present.sort(key=lambda group: _value(aggregation, group, name), reverse=largest_first)
        ordered = present + absent
    return ordered[: aggregation.limit], ordered[aggregation.limit :]


def _last(value: Any) -> tuple[bool, Any]:
    """Return a sort key that puts None last."""
    return (value is None, 0 if value is None else value)


def _order(aggregation: Aggregation) -> tuple[str | None, bool]:
    """Return the name to order by, and whether the largest comes first.

    None: by the key, as for spans of time and bins. Empty: by the number of inferences.
    """
    if aggregation.order is not None:
        return aggregation.order.removeprefix("-"), aggregation.order.startswith("-")
    by_key = bool(aggregation.group_by) and isinstance(
        aggregation.group_by[0], ByTime | ByHistogram
    )
    return (None, False) if by_key else ("", True)


def _value(aggregation: Aggregation, group: Group, name: str) -> Any:
    if not name:
        return group.inferences
    for index, by in enumerate(aggregation.group_by):
        if by.name == name:
            return group.raw[index]
    for measure in aggregation.measures:
        if measure.name == name:
            return sort_value(measure, group.measures[name])
    names = [item.name for item in (*aggregation.group_by, *aggregation.measures)]
    message = f"there is no {name!r} to order by"
    raise Invalid(f"{message}.", faults=[Fault("order", message, names)])
