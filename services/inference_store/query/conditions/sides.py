"""One side of a comparison in SQL: by its kind, and by how its values are stored."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import ColumnElement, Numeric, and_, cast, false, func, true
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION, INTEGER, TEXT

from inference_store.index import long_text
from inference_store.query.filters.typed import Comparison, Constant, Kind
from inference_store.query.operators import like_prefix

from .names import Names

COMPARISONS: Final[Mapping[Comparison, Callable[[Any, Any], ColumnElement[bool]]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# For texts of at most this length, the index and the whole texts have the same order.
_ALIKE_BYTES: Final = long_text.PREFIX_BYTES - 3


@dataclass(frozen=True, slots=True)
class Side:
    """Values of one combination. `sql`: the value; if `nullable`, NULL means that there is none."""

    kind: Kind
    sql: ColumnElement[Any]
    names: Names
    nullable: bool = True

    def against(self, op: Comparison, constant: Constant) -> ColumnElement[bool]:
        """Compare with a constant."""
        return COMPARISONS[op](self.sql, self.names.constant(constant))

    def among(self, items: Sequence[Constant]) -> ColumnElement[bool]:
        """Test equality with one of the constants."""
        is_equal: ColumnElement[bool] = self.sql == self.names.constants(items, self.kind).any_()
        return is_equal

    def like(self, pattern: str) -> ColumnElement[bool]:
        """Test whether it matches the pattern."""
        return self.sql.like(self.names.bind_one(pattern, TEXT()))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataText(Side):
    """A text of metadata. `value`: the indexed part; bounds on it contain every match.

    If the part in the index decides, the row itself is not read.
    """

    value: ColumnElement[Any]

    def against(self, op: Comparison, constant: Constant) -> ColumnElement[bool]:
        text = str(constant.value)
        size = len(text.encode())
        if size <= (long_text.WHOLE_BYTES if op in {"=", "<>"} else _ALIKE_BYTES):
            return COMPARISONS[op](self.value, self._text(text))
        return and_(COMPARISONS[op](self.sql, self._text(text)), *self._around(op, text))

    def _around(self, op: Comparison, text: str) -> Sequence[ColumnElement[bool]]:
        match op:
            case "=":
                return [self.value == self._text(long_text.encode(text)[0])]
            case ">" | ">=":
                return [self.value >= self._text(long_text.lower_bound(text))]
            case "<" | "<=":
                return self._below(long_text.upper_bound(text))
            case _:
                return []

    def among(self, items: Sequence[Constant]) -> ColumnElement[bool]:
        texts = [str(item.value) for item in items]
        indexed = [long_text.encode(text) for text in texts]
        candidates: ColumnElement[bool] = (
            self.value == self.names.bind_many([value for value, _ in indexed], TEXT()).any_()
        )
        if all(whole is None for _, whole in indexed):
            return candidates
        return and_(candidates, Side.among(self, items))

    def like(self, pattern: str) -> ColumnElement[bool]:
        prefix, alone = like_prefix(pattern)
        low, high = long_text.prefix_bounds(prefix)
        around = [self.value >= self._text(low), *self._below(high)] if prefix else []
        if alone and low == prefix:
            return and_(true(), *around)
        return and_(*around, Side.like(self, pattern))

    def _below(self, high: str | None) -> Sequence[ColumnElement[bool]]:
        return [] if high is None else [self.value < self._text(high)]

    def _text(self, text: str) -> ColumnElement[Any]:
        return self.names.bind_one(text, TEXT())


@dataclass(frozen=True, slots=True, kw_only=True)
class Double(Side):
    """A double, whose value is the decimal of its shortest spelling; compared as a double.

    The decimals are in the order of the doubles, so a decimal bound is at a double or between two.
    """

    double: ColumnElement[Any]

    @classmethod
    def of(cls, double: ColumnElement[Any], names: Names) -> "Double":
        """Return the side for a column or expression of doubles."""
        return cls("number", cast(cast(double, TEXT), Numeric), names, double=double)

    def against(self, op: Comparison, constant: Constant) -> ColumnElement[bool]:
        exact = Decimal(str(constant.value))
        nearest = float(exact)
        spelt, bound = Decimal(repr(nearest)), self.names.bind_one(nearest, DOUBLE_PRECISION())
        match op:
            case "=":
                return self.double == bound if spelt == exact else false()
            case "<>":
                return self.double != bound if spelt == exact else self.double.is_not(None)
            case "<" | "<=":
                closed = spelt < exact or (spelt == exact and op == "<=")
                return self.double <= bound if closed else self.double < bound
            case _:
                closed = spelt > exact or (spelt == exact and op == ">=")
                return self.double >= bound if closed else self.double > bound

    def among(self, items: Sequence[Constant]) -> ColumnElement[bool]:
        numbers = [Decimal(str(item.value)) for item in items]
        doubles = [float(number) for number in numbers if Decimal(repr(float(number))) == number]
        is_equal: ColumnElement[bool] = (
            self.double == self.names.bind_many(doubles, DOUBLE_PRECISION()).any_()
        )
        return is_equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Label(Side):
    """A label. It is compared with a name by its integer, which the index has."""

    number: ColumnElement[Any]

    def against(self, op: Comparison, constant: Constant) -> ColumnElement[bool]:
        if op not in {"=", "<>"}:
            return Side.against(self, op, constant)
        number = self.names.bind_one(self.names.label(str(constant.value)), INTEGER())
        return COMPARISONS[op](self.number, number)

    def among(self, items: Sequence[Constant]) -> ColumnElement[bool]:
        numbers = sorted({self.names.label(str(item.value)) for item in items})
        is_equal: ColumnElement[bool] = (
            self.number == self.names.bind_many(numbers, INTEGER()).any_()
        )
        return is_equal


def collate_text(sql: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a text that is no column, in code-point order all the same."""
    return cast(sql, TEXT).collate("C")


def fold_text(how: str, text: ColumnElement[Any]) -> ColumnElement[Any]:
    """Fold by the functions of the schema."""
    fold = func.fold_case if how == "casei" else func.fold_accents
    return fold(text, type_=TEXT()).collate("C")
