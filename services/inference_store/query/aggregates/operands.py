"""What the names of an aggregation mean: what they do in a filter, and as what a key is read."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import key_registry
from inference_store.index.key_registry import FROM_TEXT, Models
from inference_store.inference.errors import ImpossibleComparison, Invalid, InvalidFilter
from inference_store.inference.metadata import TYPE_NAMES, type_named
from inference_store.inference.nearest import counted, describe_nearest, nearest, shortened, suggest
from inference_store.query.cql2.tree import Named, Refusal, SourceRange
from inference_store.query.deadline import ScanRange
from inference_store.query.filters.check import to_predicate
from inference_store.query.filters.names import (
    KINDS,
    FilterCheck,
    KnownKey,
    KnownKeys,
    column_of,
    elements,
    find_known_keys,
    meaning,
    names_in,
)
from inference_store.query.filters.typed import Kind
from inference_store.query.preparation import UnknownKeys
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES, Property, Stored

from .aggregation import ORDERED, TypedName

Source: TypeAlias = Literal["inference", "metadata", "prediction", "label", "time", "rows"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A resolved name. `key`: the integer of a metadata key; 0: no inference has it.

    `rows`: of the source `rows`, what it is a column of; the range limits each table in it.
    """

    source: Source
    name: str
    kind: Kind
    many: bool = False
    stored: Stored = "other"
    key: int = 0
    rows: Callable[[ScanRange], Select[Any]] | None = None

    @property
    def is_label(self) -> bool:
        """Check whether its raw values are integers of labels, which are named afterwards."""
        if self.rows:  # a text that is stored as a number is a label
            return self.kind == "string" and self.stored == "whole"
        return self.name == ("top_label" if self.source == "inference" else "label") and (
            self.source != "metadata"
        )

    @property
    def is_apart(self) -> bool:
        """Check whether its values are in another table than inferences."""
        return self.source in {"metadata", "prediction", "label", "rows"}

    @property
    def is_single_key(self) -> bool:
        """Check whether it is a metadata key of which an inference has one value."""
        return self.source == "metadata" and not self.many

    def of(self, row: Any) -> Any:
        """Return its value in a row, in SQL."""
        if self.source in {"metadata", "rows"}:
            return row.c[self.name if self.rows else "value"]
        sql = (PROPERTIES if self.source == "inference" else PREDICTION_COLUMNS)[self.name].sql
        assert sql is not None
        return sql(row)

    def raw(self, row: Any) -> Any:
        """Return its value in a row for grouping: labels by number, texts as the index has them."""
        return row.c[self.name] if self.is_label else self.of(row)


LABEL: Final = Operand("label", "label", "string", many=True)
TIME: Final = Operand("time", "time", "timestamp")
"""When an inference came in, as its uid says."""
_OF_PREDICTION: Final = "prediction."


async def find_names(
    connection: AsyncConnection,
    models: Models,
    names: Sequence[TypedName],
    unknown_keys: UnknownKeys,
) -> FilterCheck:
    """Look up all names of an aggregation that may be metadata keys; it collects the warnings."""
    keys = [one.name for one in names if not one.name.startswith(_OF_PREDICTION)]
    wanted = {key for name in keys if name != LABEL.name for key in names_in(Named(name))}
    known = await find_known_keys(connection, models, wanted) if wanted else KnownKeys()
    return FilterCheck(known, to_predicate, unknown_keys)


def resolve(checking: FilterCheck, name: TypedName, path: str, kinds: Collection[Kind]) -> Operand:
    """Return the operand of a name; a key of several types is read as one of `kinds`, if any.

    Raises Invalid, UnknownKey, ImpossibleComparison.
    """
    if name.name == LABEL.name:
        return LABEL
    if name.name.startswith(_OF_PREDICTION):
        column = name.name.removeprefix(_OF_PREDICTION)
        if column not in PREDICTION_COLUMNS:
            near = nearest(column, PREDICTION_COLUMNS)
            hint = describe_nearest(near, list(PREDICTION_COLUMNS))
            raise Invalid.of(path, f"a prediction has no column {column!r}; {hint}", near)
        return _of_property(name, path, PREDICTION_COLUMNS[column], "prediction")
    node = Named(name.name, at=SourceRange(path))
    try:
        meant = meaning(elements(node, checking.known_keys), checking)
    except Refusal as refused:
        raise _refuse(refused, name) from None
    if isinstance(meant, KnownKey):
        return _of_key(checking, name, path, meant, kinds)
    return _of_property(name, path, meant, "inference")


def _of_key(
    checking: FilterCheck, name: TypedName, path: str, key: KnownKey, kinds: Collection[Kind]
) -> Operand:
    named, counts = _kind_named(name, path), _count_kinds(key)
    if not counts or (named is not None and named not in counts):
        seen = ", ".join(key.types)
        message = f"{key.name!r} has been seen as {seen}"
        raise ImpossibleComparison.of(path, message, [*counts])
    fitting = [kind for kind in counts if kind in kinds] or [*counts]
    kind = max(fitting, key=counts.__getitem__) if named is None else named
    others = [f"{counted(n, 'time')} as {one}" for one, n in counts.items() if n and one != kind]
    if key.seen is None:
        near = suggest(checking.known_keys.nearest.get(key.name, ()))
        checking.warn(f"No inference has the metadata key {shortened(key.name)}.{near}")
    elif named is None and others:
        sent = f"it was also sent {', '.join(others)}"
        checking.warn(f"{key.name!r} is read as {kind}; {sent}; `type` says which.")
    elif named is None and kind == "string" and kinds == ORDERED and key.seen.spells_numbers:
        remedy = f'Set `"type": "float"` beside the name {key.name!r}'
        checking.warn(key_registry.warn_of_text_order(key.seen, remedy))
    return Operand("metadata", key.name, kind, key.many, "exact", key.key or 0)


def _refuse(refused: Refusal, name: TypedName) -> Invalid:
    """Return the refusal of a filter as that of a field."""
    column = column_of(name.name)
    meant = refused.meant if column is None else _OF_PREDICTION + column
    message = refused.message if meant is None else f"{refused.message}; probably meant: {meant}"
    known = [meant if one == refused.meant else one for one in refused.suggestions]
    is_other = refused.error is None or issubclass(refused.error, InvalidFilter)
    error: Any = Invalid if is_other else refused.error
    refusal: Invalid = error.of(refused.at.path, message, known)
    return refusal


def _count_kinds(key: KnownKey) -> Mapping[Kind, int]:
    """Count the values of each kind; a text that spells a number counts as a text only."""
    entries = [] if key.seen is None else [e for e in key.seen.types if e.flag != FROM_TEXT]
    return {
        kind: sum(entry.count for entry in entries if entry.kind == kind)
        for kind in KINDS
        if kind in key.kinds
    }


def _kind_named(name: TypedName, path: str) -> Kind | None:
    if name.type is None:
        return None
    entry = type_named(name.type)
    if entry is None or entry.family is None:
        message = f"there is no type {name.type!r} to read a value as"
        raise Invalid.of(path, message, sorted(TYPE_NAMES))
    return entry.family


def _of_property(name: TypedName, path: str, entry: Property, source: Source) -> Operand:
    if entry.kind == "location" or entry.sql is None:
        raise Invalid.of(path, f"nothing is computed of {name.name!r}")
    if name.type is not None:
        raise Invalid.of(path, "only metadata keys have a choice of types")
    is_many = source == "prediction"
    return Operand(source, entry.name, entry.kind, many=is_many, stored=entry.stored)
