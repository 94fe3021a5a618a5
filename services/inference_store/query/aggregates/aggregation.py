"""The request for an aggregation: measures, groups, order."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TypeAlias

from .functions import Aggregate

MOST_GROUPINGS = 3
Bound: TypeAlias = Decimal | datetime
"""The beginning of a bin, or the end of the last one."""


@dataclass(frozen=True, slots=True)
class Name:
    """A property, a metadata key, `label`, or `prediction.` and a column.

    `path`: the field of the request that contains it. `type`: the type as which a metadata key is
    read; None: the most frequent type.
    """

    text: str
    type: str | None
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One function of one name. `name`: its name in the answer."""

    function: Aggregate
    of: Name | None
    name: str
    path: str
    at: tuple[Decimal, ...] = (Decimal(50), Decimal(90), Decimal(95), Decimal(99))
    bins: int = 20
    bounds: tuple[Bound, ...] | None = None
    limit: int = 10
    prefix: str = ""
    expected: bool = True
    """The truth value whose share `share` computes."""


@dataclass(frozen=True, slots=True)
class ByName:
    """A group for each value of a name."""

    name: str
    path: str
    of: Name


@dataclass(frozen=True, slots=True)
class ByLabel:
    """A group for each label of the inference's predictions."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class ByTime:
    """A group for each span of time in which inferences were received. `span`: see `width_of`."""

    name: str
    path: str
    span: str
    zone: str


@dataclass(frozen=True, slots=True)
class ByHistogram:
    """A group for each bin of a number or a timestamp."""

    name: str
    path: str
    of: Name
    bins: int = 20
    bounds: tuple[Bound, ...] | None = None


Grouping: TypeAlias = ByName | ByLabel | ByTime | ByHistogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """The request for measures over the matching inferences."""

    measures: tuple[Measure, ...]
    group_by: tuple[Grouping, ...] = ()
    limit: int = 100
    order: str | None = None
    """The name of a group or measure; `-` before it puts the largest first."""
