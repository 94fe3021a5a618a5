"""The properties of an inference, the columns of a prediction, and the comparison operators: three
closed lists.

Filters, sorts, fields, aggregates, queryables and documentation read them. All but
`inference_ids` have one value or none.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    FromClause,
    Integer,
    Interval,
    Numeric,
    String,
    Table,
    Text,
    any_,
    case,
    cast,
    extract,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import TEXT

from inference_store.index.tables import inference, label, registration, truth_set
from inference_store.inference.events import SIDES, CaptureSide, flags_of

PropertyKind: TypeAlias = Literal["number", "string", "bool", "timestamp", "location"]
Stored: TypeAlias = Literal["whole", "double", "exact", "other"]
Sql: TypeAlias = Callable[[FromClause], ColumnElement[Any]]


@dataclass(frozen=True, slots=True)
class Property:
    """One property. `sql`: its value in a row of `inference` (or `prediction`) or an alias.

    A double is the decimal of its shortest spelling (0.1 is 0.1): `stored` says which are doubles.
    """

    name: str
    kind: PropertyKind
    meaning: str
    sql: Sql | None
    stored: Stored = "other"
    many: bool = False


def _column(name: str) -> Sql:
    return lambda row: row.c[name]


def _looked_up(value: ColumnElement[Any], key: Column[Any], name: str) -> Sql:
    def select_value(row: FromClause) -> ColumnElement[Any]:
        rows = select(value).where(key == row.c[name])
        # it correlates with this row, whatever query surrounds it, and however far out the row is
        return rows.correlate_except(key.table).scalar_subquery()

    return select_value


def _of_model(column: ColumnElement[Any]) -> Sql:
    return _looked_up(column, registration.c.model, "model")


def _label(name: str) -> Sql:
    return _looked_up(label.c.name, label.c.label, name)


def _has_truth(row: FromClause) -> ColumnElement[Any]:
    here = truth_set.c
    sets = select(here.uid).where(here.model == row.c.model, here.uid == row.c.uid)
    return sets.correlate_except(truth_set).exists()


def _of_newest_truth(value: ColumnElement[Any]) -> Sql:
    here = truth_set.c

    def select_value(row: FromClause) -> ColumnElement[Any]:
        newest = select(value).select_from(truth_set.outerjoin(label, label.c.label == here.label))
        newest = newest.where(here.model == row.c.model, here.uid == row.c.uid)
        newest = newest.order_by(here.at.desc(), here.source).limit(1)
        return newest.correlate_except(truth_set, label).scalar_subquery()

    return select_value


truth_label_number: Final = _of_newest_truth(truth_set.c.label)
"""The integer of `truth_label`, in a row of `inference`."""


def _milliseconds(start: str, end: str) -> Sql:
    def between(row: FromClause) -> ColumnElement[Any]:
        lasted = type_coerce(row.c[end] - row.c[start], Interval())
        return cast(extract("epoch", lasted), Numeric()) * 1000

    return between


def _capture_problem(side: CaptureSide) -> Sql:
    """Return one of a few fixed names, which are literals of the statement."""
    named: list[tuple[Any, Any]] = [
        (literal_column(f"'{flag}'"), literal_column(f"'{kind}'", Text))
        for flag, kind in flags_of(side).items()
    ]
    return lambda row: case(*((flag == any_(row.c.flags), kind) for flag, kind in named))


_KINDS: Final[Mapping[type[Any], tuple[PropertyKind, Stored]]] = {
    Boolean: ("bool", "other"),
    Integer: ("number", "whole"),
    BigInteger: ("number", "whole"),
    TEXT: ("string", "other"),
}


def _described(table: Table) -> Iterator[Property]:
    for column in table.columns:
        if column.doc:
            kind, stored = _KINDS[type(column.type)]
            name = str(column.name)  # not a quoted_name, which orjson refuses
            yield Property(name, kind, column.doc, _column(name), stored)


LATENCIES: Final[Mapping[str, tuple[str, str]]] = {
    "pre_ms": ("received_at", "forwarded_at"),
    "model_ms": ("forwarded_at", "responded_at"),
    "post_ms": ("responded_at", "published_at"),
}
"""The columns that each begins and ends with."""


# fmt: off
PROPERTIES: Final[Mapping[str, Property]] = {entry.name: entry for entry in (
    Property("model_id", "string", "the model", _of_model(registration.c.model_id)),
    Property("project_id", "string", "the model's project",
             _of_model(registration.c.project_id)),
    Property("inference_id", "string", "the client's id", _column("inference_id")),
    Property("inference_ids", "string", "the client's id and its aliases", None, many=True),
    Property("uid", "string", "the inference's own id, a UUID",
             lambda row: cast(row.c.uid, String())),
    Property("received_at", "timestamp", "when the request came in", _column("received_at")),
    Property("forwarded_at", "timestamp", "when the model was asked", _column("forwarded_at")),
    Property("responded_at", "timestamp", "when the model had answered", _column("responded_at")),
    Property("published_at", "timestamp", "when the event was published", _column("published_at")),
    Property("indexed_at", "timestamp", "when it was indexed here", _column("indexed_at")),
    *(Property(name, "number", f"milliseconds from {start[:-3]} to {end[:-3]}",
               _milliseconds(start, end), "exact") for name, (start, end) in LATENCIES.items()),
    *_described(inference),
    Property("location", "location", "the point of the metadata `longitude` and `latitude`", None),
    Property("top_label", "string", "the label of the prediction of rank 1", _label("top_label")),
    Property("top_score", "number", "its score", _column("top_score"), "double"),
    Property("prediction_count", "number", "how many predictions there are",
             _column("prediction_count"), "whole"),
    Property("problem", "string", "why the response could not be read", _column("problem")),
    *(Property(f"{side}_problem", "string", f"what is wrong with the captured {side}",
               _capture_problem(side)) for side in SIDES),
    Property("revision", "number", "how often its metadata was written",
             _column("revision"), "whole"),
    Property("data_deleted_at", "timestamp", "when its input was deleted",
             _column("data_deleted_at")),
    Property("has_truth", "bool", "whether anybody has said what is true of it", _has_truth),
    Property("truth_label", "string",
             "the first label of its ground truth, as the newest source says",
             _of_newest_truth(label.c.name)),
)}
PREDICTION_COLUMNS: Final[Mapping[str, Property]] = {entry.name: entry for entry in (
    Property("label", "string", "what was recognised", _label("label")),
    Property("score", "number", "how sure the model was", _column("score"), "double"),
    Property("rank", "number", "1 is the first", _column("rank"), "whole"),
    Property("output", "number", "the number of the response's output", _column("output"), "whole"),
    Property("output_name", "string", "the name of the output", _column("output_name")),
    *(Property(name, "number", meaning, _column(name), "double") for name, meaning in (
        ("xmin", "the box's left edge, pixels"), ("xmax", "the box's right edge, pixels"),
        ("ymin", "the box's upper edge, pixels"), ("ymax", "the box's lower edge, pixels"),
        ("area", "the box's area, square pixels"),
        ("cx", "the oriented box's centre, a share of the width"),
        ("cy", "the oriented box's centre, a share of the height"),
        ("w", "the oriented box's width, a share"), ("h", "the oriented box's height, a share"),
        ("angle", "the oriented box's angle, radians clockwise"),
    )),
    Property("prompt", "string", "the prompt", _column("prompt")),
    Property("answer", "string", "the answer", _column("answer")),
    Property("text", "string", "the text generated or classified", _column("text")),
    Property("start", "number", "where in the text it starts", _column("start"), "whole"),
    Property("end", "number", "where in the text it ends", _column("end"), "whole"),
    Property("value", "number", "the value of a tabular output", _column("value"), "exact"),
)}
TRUTH_COLUMNS: Final[Mapping[str, Property]] = {entry.name: entry for entry in (
    Property("label", "string", "what it is", _label("label")),
    Property("source", "string", "who says so", _column("source")),
    *(PREDICTION_COLUMNS[name] for name in ("xmin", "xmax", "ymin", "ymax", "area")),
    Property("text", "string", "the text", _column("text")),
    Property("value", "number", "the value", _column("value"), "exact"),
)}
ITEM_COLUMNS: Final = {"prediction": PREDICTION_COLUMNS, "truth": TRUTH_COLUMNS}
# fmt: on


_MICROSECOND: Final = timedelta(microseconds=1)


def compute_latency(row: Mapping[str, Any], name: str) -> float | None:
    """Return a latency in milliseconds; None if it did not begin or end."""
    start, end = map(row.__getitem__, LATENCIES[name])
    return None if start is None or end is None else (end - start) / _MICROSECOND / 1000


# The comparison operators of `metadata_filter`, each by an operation of the language: one table.


class Takes(StrEnum):
    """The type of an operator's `value`."""

    ONE = "one value"
    LIST = "a list of values"
    PAIR = "a list of two values, the lower and the upper"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator. A metadata name may have several values (`tags[]`); a missing name has none, so
    a comparison is neither true nor false for it, as with SQL's NULL."""

    name: str
    op: str
    """The operation in CQL2-JSON, which is `negated`."""
    meaning: str
    aliases: tuple[str, ...]
    negated: bool = False

    @property
    def takes(self) -> Takes:
        """The type of its `value`."""
        several = {"in": Takes.LIST, "between": Takes.PAIR, "sent": Takes.NONE}
        return several.get(self.op, Takes.ONE)


def like_tokens(pattern: str) -> list[str]:
    tokens = re.findall(r"\\.|[^\\]|\\\Z", pattern, re.DOTALL)
    if tokens and tokens[-1] == "\\":
        raise ValueError(
            "a LIKE pattern cannot end in a backslash; write two for one, in a text of CQL2 four"
        )
    return tokens


def like_prefix(pattern: str) -> tuple[str, bool]:
    r"""Return the text that every match begins with, and whether every text with it matches LIKE.

    `%` is any text, `_` one character; `\` escapes the next. Raises ValueError if the pattern ends
    in a single backslash.
    """
    tokens = like_tokens(pattern)
    plain = list(takewhile(lambda token: token not in {"%", "_"}, tokens))
    rest = tokens[len(plain) :]
    return "".join(token[-1] for token in plain), bool(rest) and set(rest) == {"%"}


# fmt: off
OPERATORS: Final[Mapping[str, Operator]] = {entry.name: entry for entry in (
    Operator("eq", "=", "some value is equal", ("EQUAL", "EQUALS", "=")),
    Operator("neq", "<>", "some value is different; a name that is missing does not match",
             ("NOT_EQUAL", "NOT_EQUALS", "<>", "!=")),
    Operator("gt", ">", "some value is greater", ("GREATER_THAN", ">")),
    Operator("gte", ">=", "some value is greater or equal",
             ("GREATER_THAN_OR_EQUAL", "GREATER_THAN_OR_EQUAL_TO", ">=")),
    Operator("lt", "<", "some value is less", ("LESS_THAN", "<")),
    Operator("lte", "<=", "some value is less or equal",
             ("LESS_THAN_OR_EQUAL", "LESS_THAN_OR_EQUAL_TO", "<=")),
    Operator("in", "in", "some value is one of the list", ("IN",)),
    Operator("not_in", "in", "there is a value, and none is one of the list; a name that is missing"
             " does not match", ("NOT_IN",), negated=True),
    Operator("between", "between", "some value lies between the two, or is one of them",
             ("BETWEEN",)),
    Operator("like", "like", "some text matches: `%` is any text, `_` one character, `\\` takes the"
             " next as it is", ("LIKE",)),
    Operator("exists", "sent", "the key was sent, whatever its value; JSON null counts",
             ("EXISTS", "IS_NOT_NULL")),
    Operator("missing", "sent", "the key was not sent",
             ("MISSING", "NOT_EXISTS", "IS_NULL", "DOES_NOT_EXIST"), negated=True),
)}
# fmt: on

_NAMED: Final[Mapping[str, Operator]] = MappingProxyType(
    {name.lower(): entry for entry in OPERATORS.values() for name in (entry.name, *entry.aliases)}
)


def find_operator(name: str) -> Operator | None:
    """Return the operator of a name or an alias, in upper or lower case."""
    return _NAMED.get(name.strip().lower())
