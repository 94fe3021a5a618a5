"""What is true beside what was predicted, as rows that the aggregate builder adds up."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    Select,
    Table,
    and_,
    case,
    cast,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
)

from inference_store.index.tables import inference, prediction, truth, truth_set
from inference_store.query.aggregates.operands import Operand
from inference_store.query.deadline import ScanRange, bind_one
from inference_store.query.filters.typed import Kind
from inference_store.query.properties import Stored

Rows: TypeAlias = Callable[[ScanRange], Select[Any]]


def column(rows: Rows, name: str, kind: Kind, stored: Stored = "other") -> Operand:
    """Return a column of such rows as an operand; a label is a text that is stored `whole`."""
    return Operand("rows", name, kind, stored=stored, rows=rows)


@dataclass(frozen=True, slots=True)
class Sets:
    """The sets that count: one of each inference. `several`: there are sets of several sources, of
    which the one that was written last counts; `share`: of the inferences, by a hash of the uid."""

    source: str | None = None
    several: bool = True
    share: float = 1.0

    def __call__(self, here: ScanRange) -> Select[Any]:
        row = truth_set.alias()
        sets = select(row).where(here.of(row))
        if self.share < 1:
            hashed = func.uuid_hash_extended(row.c.uid, bind_one(0, BigInteger()))
            least = int((2 * self.share - 1) * 2**63)
            sets = sets.where(hashed < bind_one(least, BigInteger()))
        if self.source is not None:
            return sets.where(row.c.source == bind_one(self.source, row.c.source.type))
        if not self.several:
            return sets
        # joined in the order of the index, where DISTINCT ON would sort: two thirds of the time
        other = truth_set.alias()
        is_newer = or_(
            other.c.at > row.c.at, and_(other.c.at == row.c.at, other.c.source < row.c.source)
        )
        newer = select(other.c.uid).where(here.of(other), other.c.uid == row.c.uid, is_newer)
        return sets.where(~newer.exists())

    def join_items(self, here: ScanRange, item: FromClause) -> FromClause:
        """Return the sets with what is true by them."""
        sets = self(here).subquery()
        of_set = and_(here.of(item), item.c.uid == sets.c.uid, item.c.source == sets.c.source)
        return sets.join(item, of_set)


def select_kinds(sets: Sets, here: ScanRange) -> Select[Any]:
    """Select what is true, by the task that it is of."""
    item = truth.alias()
    box, number = item.c.xmin.is_not(None), item.c.value.is_not(None)
    kind: ColumnElement[Any] = case(
        (box, literal_column("'boxes'")),
        (number, literal_column("'numbers'")),
        else_=literal_column("'labels'"),
    )
    here_true = sets.join_items(here, item)
    return select(item.c.model, item.c.uid, kind.label("kind")).select_from(here_true)


def select_labels(sets: Sets, here: ScanRange) -> Select[Any]:
    """Select inferences whose set has a label, and what the model said: its `top_label`, or
    nothing."""
    true, said = sets(here).subquery(), inference.alias()
    right = func.coalesce(true.c.label == said.c.top_label, false())
    columns = true.c.label.label("truth"), said.c.top_label.label("predicted")
    return (
        select(true.c.model, true.c.uid, *columns, said.c.top_score, right.label("right"))
        .join_from(true, said, and_(here.of(said), said.c.uid == true.c.uid))
        .where(true.c.label.is_not(None))
    )


def select_numbers(sets: Sets, here: ScanRange) -> Select[Any]:
    """Select values that are true, each beside the predicted one of the same place in its
    inference."""
    item, said = truth.alias(), prediction.alias()
    same = and_(here.of(said), said.c.uid == item.c.uid, said.c.ordinal == item.c.ordinal)
    error = said.c.value - item.c.value
    columns = item.c.value, error.label("error"), func.abs(error).label("distance")
    both = sets.join_items(here, item).join(said, same)
    rows = select(item.c.model, item.c.uid, *columns).select_from(both)
    return rows.where(error.is_not(None))


def select_images(sets: Sets, here: ScanRange) -> Select[Any]:
    """Select inferences with truth; how many boxes each has to match, and its uid and whether its
    truth is complete, as bytes."""
    true, said = sets(here).subquery(), inference.alias()
    boxes = true.c.item_count + func.coalesce(said.c.prediction_count, 0)
    image = _join(func.uuid_send(true.c.uid), func.boolsend(true.c.complete))
    rows = select(true.c.model, true.c.uid, boxes.label("boxes"), image.label("image"))
    return rows.join_from(true, said, and_(here.of(said), said.c.uid == true.c.uid))


def select_boxes(sets: Sets, of: Table, label: int | None, here: ScanRange) -> Select[Any]:
    """Select boxes of `truth` or of `prediction` as bytes; NULL: the area is unknown. `label`: only
    those of it."""
    item = of.alias()
    there = sets(here).subquery()
    rows: FromClause = there.join(item, and_(here.of(item), item.c.uid == there.c.uid))
    rows = sets.join_items(here, item) if of is truth else rows
    nothing: Any = literal(0.0, Double())
    score = nothing if of is truth else func.coalesce(item.c.score, nothing)
    numbers = (item.c.xmin, item.c.ymin, item.c.xmax, item.c.ymax, score)
    box = _join(
        func.uuid_send(item.c.uid),
        func.int4send(item.c.ordinal),
        func.int4send(func.coalesce(item.c.label, 0)),
        *(func.float8send(cast(one, Double())) for one in numbers),
    )
    placed = case((item.c.area.is_not(None), box))
    some = select(item.c.model, item.c.uid, placed.label("box")).select_from(rows)
    return some if label is None else some.where(item.c.label == label)


def _join(*parts: ColumnElement[Any]) -> ColumnElement[Any]:
    return reduce(lambda joined, part: joined.op("||")(part), parts)
