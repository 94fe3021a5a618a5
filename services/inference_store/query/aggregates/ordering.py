"""Groups as they are shown, and in which order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_store.inference.errors import Fault, Invalid
from inference_store.inference.events.uid import received_at_of

from .answer import bin_shown, sort_value
from .asked import Aggregation, ByHistogram, ByTime
from .exact import plain
from .partial import Key
from .rows import Dimension, InBins, InTime


@dataclass(frozen=True, slots=True)
class Group:
    """One group. `raw`: its key by which it sorts; `key`, `measures`: by their names."""

    raw: Key
    inferences: int
    key: Mapping[str, Any]
    measures: Mapping[str, Any]

    @property
    def shown(self) -> Mapping[str, Any]:
        """As it is answered."""
        return {"key": self.key, "measures": self.measures}


def key_of(asked: Aggregation, dimensions: Sequence[Dimension], key: Key) -> dict[str, Any]:
    """A group's key by its names; null: there is no value."""
    named = zip(asked.group_by, dimensions, key, strict=True)
    return {by.name: _shown(dimension, value) for by, dimension, value in named}


def _shown(dimension: Dimension, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(dimension, InTime):
        return received_at_of(dimension.starts[value - 1])
    if isinstance(dimension, InBins):
        return bin_shown(value, dimension.bounds)
    return plain(value)


def in_order(
    asked: Aggregation, groups: Sequence[Group]
) -> tuple[Sequence[Group], Sequence[Group]]:
    """The groups that are shown, in order, and the others. Raises Invalid for an unknown order."""
    ordered = sorted(groups, key=lambda group: [_last(each) for each in group.raw])
    name, largest_first = _order(asked)
    if name is not None:
        present = [group for group in ordered if _value(asked, group, name) is not None]
        absent = [group for group in ordered if _value(asked, group, name) is None]
        present.sort(key=lambda group: _value(asked, group, name), reverse=largest_first)
        ordered = present + absent
    return ordered[: asked.limit], ordered[asked.limit :]


def _last(value: Any) -> tuple[bool, Any]:
    """Null comes last."""
    return (value is None, 0 if value is None else value)


def _order(asked: Aggregation) -> tuple[str | None, bool]:
    """By what: None is by the key. Spans of time and bins come in their own order."""
    if asked.order is not None:
        return asked.order.removeprefix("-"), asked.order.startswith("-")
    by_key = bool(asked.group_by) and isinstance(asked.group_by[0], ByTime | ByHistogram)
    return (None, False) if by_key else ("", True)


def _value(asked: Aggregation, group: Group, name: str) -> Any:
    if not name:
        return group.inferences
    for place, by in enumerate(asked.group_by):
        if by.name == name:
            return group.raw[place]
    for measure in asked.measures:
        if measure.name == name:
            return sort_value(measure, group.measures[name])
    known = [each.name for each in (*asked.group_by, *asked.measures)]
    message = f"there is no {name!r} to order by"
    raise Invalid(f"{message}.", faults=[Fault("order", message, known)])
