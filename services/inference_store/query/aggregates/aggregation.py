"""The request for an aggregation: its functions, measures and groups, and what its names mean."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import key_registry
from inference_store.index.key_registry import FROM_TEXT, KeySeen
from inference_store.inference.errors import Fault, ImpossibleComparison, Invalid, UnknownKey
from inference_store.inference.metadata import TYPE_NAMES, Family, type_named
from inference_store.inference.nearest import counted, nearest
from inference_store.query.filters.names import KINDS, METADATA, OWN
from inference_store.query.filters.typed import Kind
from inference_store.query.preparation import UnknownKeys
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES, Property, Stored

Needs: TypeAlias = Literal["sums", "values", "bins", "percentiles"]
Sum: TypeAlias = Literal["low", "high", "squares", "total", "true"]
_ALL: Final[frozenset[Kind]] = frozenset({"number", "string", "bool", "timestamp"})
_ORDERED: Final[frozenset[Kind]] = frozenset({"number", "string", "timestamp"})
_BINNED: Final[frozenset[Kind]] = frozenset({"number", "timestamp"})
_NUMBER: Final[frozenset[Kind]] = frozenset({"number"})
_BOOL: Final[frozenset[Kind]] = frozenset({"bool"})


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One function. `kinds`: the kinds allowed for `of`; `options`: its own fields of a measure."""

    name: str
    meaning: str
    kinds: frozenset[Kind]
    needs: Needs
    sums: frozenset[Sum] = frozenset()
    options: tuple[str, ...] = ()
    without_of: bool = False
    """Whether `of` may be left out."""
    elsewhere: tuple[str, ...] = ()
    """Its names in other systems: an error suggests the function for them."""


def _sums(*names: Sum) -> frozenset[Sum]:
    return frozenset(names)


def _table(*entries: Aggregate) -> Mapping[str, Aggregate]:
    return MappingProxyType({entry.name: entry for entry in entries})


# fmt: off
AGGREGATES: Final = _table(
    Aggregate("count", "how many inferences; with `of`: how many values it has",
              _ALL, "sums", without_of=True, elsewhere=("size", "n")),
    Aggregate("min", "the smallest value, the earliest, the first in code-point order",
              _ORDERED, "sums", _sums("low"), elsewhere=("minimum", "first", "earliest")),
    Aggregate("max", "the largest value, the latest, the last in code-point order",
              _ORDERED, "sums", _sums("high"), elsewhere=("maximum", "last", "latest")),
    Aggregate("sum", "the exact sum; null of no values", _NUMBER, "sums", _sums("total"),
              elsewhere=("total",)),
    Aggregate("mean", "the exact sum by the number of values, to 34 digits; null of no values",
              _NUMBER, "sums", _sums("total"), elsewhere=("avg", "average")),
    Aggregate("variance", "the variance of a sample (the sum of squared distances from the mean, by"
              " one less than the number of values), to 34 digits; null of fewer than two",
              _NUMBER, "sums", _sums("total", "squares"), elsewhere=("var", "var_samp")),
    Aggregate("stddev", "the standard deviation of a sample: the variance's root, to 34 digits",
              _NUMBER, "sums", _sums("total", "squares"), elsewhere=("std", "stddev_samp")),
    Aggregate("share", "the share of values that are true, or what `is` says; null of no values",
              _BOOL, "sums", _sums("true"), ("is",), elsewhere=("ratio", "rate", "fraction")),
    Aggregate("percentiles", "for each of `at`: the smallest value that so many per cent of the"
              " values do not exceed", _NUMBER, "percentiles", _sums("low", "high"), ("at",),
              elsewhere=("median", "quantile", "quantiles", "p50", "p90", "p95", "p99")),
    Aggregate("histogram", "how many values lie between given `bounds`, or between bounds made"
              " of about so many `bins`", _BINNED, "bins", _sums("low", "high"),
              ("bins", "bounds"), elsewhere=("hist", "buckets")),
    Aggregate("top", "the `limit` most frequent values with their counts, and `others`",
              _ALL, "values", options=("limit",), elsewhere=("mode", "terms", "frequencies")),
    Aggregate("distinct", "the first `limit` different values that begin with `prefix`, in order",
              _ORDERED, "values", options=("limit", "prefix"), elsewhere=("unique", "values")),
)
# fmt: on


def nearest_of(name: str) -> list[str]:
    """Return the functions that an unknown name probably stands for."""
    meant = [entry.name for entry in AGGREGATES.values() if name.lower() in entry.elsewhere]
    return meant or nearest(name, AGGREGATES)


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


Source: TypeAlias = Literal["inference", "metadata", "prediction", "label"]
# Grouped by the integers of labels, which are named afterwards.
COUNTED_BY_NUMBER = {("inference", "top_label"), ("prediction", "label"), ("label", "label")}


@dataclass(frozen=True, slots=True)
class Operand:
    """A resolved name. `key`: the integer of a metadata key; 0: no inference has it."""

    source: Source
    name: str
    kind: Kind
    many: bool = False
    stored: Stored = "other"
    key: int = 0

    @property
    def is_label(self) -> bool:
        """Check whether its raw values are integers of labels."""
        return (self.source, self.name) in COUNTED_BY_NUMBER

    @property
    def property(self) -> Property:
        """Its entry in the list of properties, or of columns."""
        return (PROPERTIES if self.source == "inference" else PREDICTION_COLUMNS)[self.name]


LABEL = Operand("label", "label", "string", many=True)


def raw(operand: Operand, row: Any) -> Any:
    """Return its value in a row for grouping: labels by number, texts as the index has them."""
    if operand.is_label:
        return row.c["top_label" if operand.source == "inference" else "label"]
    if operand.source == "metadata":
        return row.c.value
    sql = operand.property.sql
    assert sql is not None
    return sql(row)


@dataclass(slots=True)
class Names:
    """Resolves names for several models, and remembers the metadata keys that were looked up."""

    models: Sequence[int]
    unknown_keys: UnknownKeys
    keys: dict[str, KeySeen | None] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    """Each warning once, in order, however many measures cause it."""

    async def operand(
        self, connection: AsyncConnection, name: Name, kinds: Collection[Kind]
    ) -> Operand:
        """Return the operand of a name; a key of several types is read as one of `kinds`, if any.

        Raises Invalid, UnknownKey, ImpossibleComparison.
        """
        text = name.text
        if text.startswith(METADATA):
            return await self._key(connection, name, text.removeprefix(METADATA), kinds)
        for prefix, properties in ((OWN, PROPERTIES), ("prediction.", PREDICTION_COLUMNS)):
            if text.startswith(prefix):
                return _property(name, text.removeprefix(prefix), properties)
        own = text in PROPERTIES or text == "label"
        if own and await self._find(connection, text):
            other = "prediction.label" if text == "label" else f"{OWN}{text}"
            both = [other, f"{METADATA}{text}"]
            raise _wrong(name, f"{text!r} is a metadata key of the model, too", both)
        if text == "label":
            return LABEL
        if own:
            return _property(name, text, PROPERTIES)
        return await self._key(connection, name, text, kinds)

    async def _find(self, connection: AsyncConnection, key: str) -> KeySeen | None:
        if key not in self.keys:
            keys = await key_registry.find(connection, self.models, {key})
            self.keys[key] = keys.get(key)
        return self.keys[key]

    async def _key(
        self, connection: AsyncConnection, name: Name, key: str, kinds: Collection[Kind]
    ) -> Operand:
        stored, named_family = await self._find(connection, key), _family_named(name)
        if stored is None:
            if self.unknown_keys == "empty":
                fitting = [kind for kind in KINDS if kind in kinds]
                kind = fitting[0] if named_family is None else named_family
                return Operand("metadata", key, kind, "[]" in key)
            raise await self._unknown(connection, name, key)
        counts = _counts(stored)
        if named_family is not None and named_family not in counts:
            raise _impossible(name, f"seen as {', '.join(counts) or 'nothing comparable'}", counts)
        if not counts:
            raise _impossible(name, "seen with no value that could be compared", ())
        fitting = [kind for kind in counts if kind in kinds] or list(counts)
        family = (
            max(fitting, key=lambda kind: counts[kind]) if named_family is None else named_family
        )
        other = {kind: n for kind, n in counts.items() if n and kind != family}
        if named_family is None and other:
            others = ", ".join(f"{counted(n, 'time')} as {kind}" for kind, n in other.items())
            warning = f"{key!r} is read as {family}; it was also sent {others}; `type` says which."
            self.warnings[warning] = None
        return Operand("metadata", key, family, stored.many, "exact", stored.key)

    async def _unknown(self, connection: AsyncConnection, name: Name, key: str) -> UnknownKey:
        near = await key_registry.nearest(connection, self.models, key)
        names = sorted({*near, *PROPERTIES, "label"})
        suggestions = nearest(key, names)
        detail = f"There is no property and no metadata key {key!r}."
        if suggestions:
            detail += f" The nearest are {', '.join(suggestions)}."
        return UnknownKey(detail, faults=[Fault(name.path, "unknown name", suggestions)])


def _counts(key: KeySeen) -> Mapping[Family, int]:
    """Count the values of each family; a text that spells a number counts as a text only."""
    counts: dict[Family, int] = {}
    for entry in key.types:
        if entry.family is not None and entry.flag != FROM_TEXT:
            counts[entry.family] = counts.get(entry.family, 0) + entry.count
    for family in key.families - set(counts):
        counts[family] = 0
    return {family: counts[family] for family in KINDS if family in counts}


def _family_named(name: Name) -> Kind | None:
    if name.type is None:
        return None
    entry = type_named(name.type)
    if entry is None or entry.family is None:
        raise _wrong(name, f"there is no type {name.type!r} to read a value as", sorted(TYPE_NAMES))
    return entry.family


def _property(name: Name, text: str, properties: Mapping[str, Property]) -> Operand:
    entry = properties.get(text)
    if entry is None:
        raise _wrong(name, f"there is no {name.text!r}", nearest(text, sorted(properties)))
    if entry.kind == "location" or entry.sql is None:
        raise _wrong(name, f"nothing is computed of {text!r}", [])
    if name.type is not None:
        raise _wrong(name, "only metadata keys have a choice of types", [])
    of_prediction = properties is PREDICTION_COLUMNS
    source: Source = "prediction" if of_prediction else "inference"
    return Operand(source, text, entry.kind, many=of_prediction, stored=entry.stored)


def _wrong(name: Name, message: str, suggestions: Sequence[str]) -> Invalid:
    return Invalid(f"{name.text!r}: {message}.", faults=[Fault(name.path, message, suggestions)])


def _impossible(name: Name, message: str, families: Iterable[str]) -> ImpossibleComparison:
    faults = [Fault(name.path, message, list(families))]
    return ImpossibleComparison(f"{name.text!r} was {message}.", faults=faults)
