"""The first different values of a metadata key, for suggestions while somebody types."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Select, select, union_all
from sqlalchemy.dialects.postgresql import TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.long_text import prefix_bounds
from inference_store.index.tables import SIDE_TABLES
from inference_store.query.deadline import Deadline, fetch
from inference_store.query.driving import DrivingIndex
from inference_store.query.matching import Query
from inference_store.query.operand import bind_one
from inference_store.query.scan_range import (
    ScanRange,
    find_pieces_of,
    span_around,
    split_groups,
    split_unbroken,
)

from .budget import Budget
from .naming import Naming
from .operand import Operand
from .part_collector import Target
from .rows import Rows


async def first_values(
    connection: AsyncConnection,
    targets: Sequence[Target],
    operand: Operand,
    prefix: str,
    *,
    limit: int,
    deadline: Deadline,
    budget: Budget,
) -> Counter[Any]:
    """Return the first `limit` values that begin with the prefix, and one more if there is one.

    Raises TooManyGroups.
    """
    if prefix and operand.kind != "string":
        return Counter()
    counts: Counter[Any] = Counter()
    naming = Naming(connection, [target.query for target in targets], deadline)
    for target in targets:
        query = target.query
        if query.nothing or query.scan_range.empty:
            continue
        parts = await find_pieces_of(connection, query.scan_range, newest_first=True)
        several = split_groups(parts, query.group) if query.conditions else split_unbroken(parts)
        for group in several:
            rows = await fetch(
                connection,
                partial(_first, query, group, operand, prefix, limit + 1),
                deadline,
                large=query.large,
                what="read the first values",
            )
            await naming.learn(operand, [row[0] for row in rows])
            for row in rows:
                value = naming.name_value(operand, row[0])
                if value not in counts:
                    budget.take()
                counts[value] += 1
    return counts


def _first(
    query: Query, group: Sequence[ScanRange], operand: Operand, prefix: str, limit: int
) -> Select[Any]:
    if not query.conditions and not query.marks:
        return _from_value_to_value(span_around(group), operand, prefix, limit)
    parts = [_of_part(query, scan_range, operand, prefix, limit) for scan_range in group]
    together = union_all(*(select(part.subquery()) for part in parts)).subquery()
    return select(together.c[0])


def _of_part(
    query: Query, scan_range: ScanRange, operand: Operand, prefix: str, limit: int
) -> Select[Any]:
    rows = Rows(query, DrivingIndex(scan_range), operand)
    value = rows.measured(operand).c.value
    return rows.grouped([value], []).where(*_begins(value, prefix)).order_by(value).limit(limit)


def _from_value_to_value(
    scan_range: ScanRange, operand: Operand, prefix: str, limit: int
) -> Select[Any]:
    """Select the values one by one: the index finds the next one, however many rows share it."""
    table = SIDE_TABLES[operand.kind].alias()
    value = table.c.value
    here = (
        select(value)
        .where(scan_range.of(table), table.c.key == operand.key, *_begins(value, prefix))
        .order_by(value)
        .limit(1)
    )
    values = select(here.scalar_subquery().label("value")).cte(recursive=True)
    following = here.where(value > values.c.value).correlate(values).scalar_subquery()
    values = values.union_all(select(following).where(values.c.value.is_not(None)))
    return select(values.c.value).where(values.c.value.is_not(None)).limit(limit)


def _begins(value: ColumnElement[Any], prefix: str) -> list[ColumnElement[bool]]:
    """Test by the index whether the value begins with the prefix.

    A prefix is shorter than the part of a text that the index has.
    """
    if not prefix:
        return []
    low, high = prefix_bounds(prefix)
    tests = [value >= bind_one(low, TEXT())]
    return tests if high is None else [*tests, value < bind_one(high, TEXT())]
