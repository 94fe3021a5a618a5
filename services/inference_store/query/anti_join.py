"""Anti-joins: inferences without a key, which no index has, are all inferences minus those with it.

For a count, two long lists are each read once; testing every inference would take many times as
long. For a page it is used if such inferences are too rare for a scan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Integer, Select, func, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference

from .conditions import OfKey
from .conditions.condition import exists
from .deadline import Deadline, fetch
from .matching import Query, test_each
from .scan_range import ScanRange, test_unmarked
from .stored_counts import read_numbers

WORKERS: Final = 2
"""Parallel processes of Postgres for a statement whose rows have no order."""
MOST: Final = 4
"""Keys whose lists are subtracted from all inferences; further missing keys are tested."""
# For each partition, one hash of the inferences that have a key.
JOINING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "enable_nestloop": "off",
        "enable_mergejoin": "off",
        "enable_parallel_hash": "off",
        "hash_mem_multiplier": "1",
        "work_mem": "32MB",
    }
)


def find_anti_joins(query: Query) -> list[OfKey]:
    """Return the conditions that a key is missing, if no index drives the query."""
    if query.is_driven:
        return []
    return [
        condition
        for condition in query.conditions
        if isinstance(condition, OfKey) and not condition.when
    ][:MOST]


def count_without(query: Query, key: OfKey, scan_range: ScanRange) -> list[Select[Any]]:
    """Select numbers whose sum is how many inferences are without the key: all, minus those with
    it."""
    everyone = select(inference.c.uid).where(scan_range.of(inference))
    with_key = [
        _count_rows(query, scan_range, uids, -sign) for sign, uids in key.counted(scan_range)
    ]
    return [_count_rows(query, scan_range, everyone, 1), *with_key]


def _count_rows(query: Query, scan_range: ScanRange, uids: Any, sign: int) -> Select[Any]:
    rows = uids.subquery()
    marks = [test_unmarked(scan_range, rows.c.uid)] if query.marks else []
    number = (func.count() * sign).label("matches")
    return select(number).select_from(rows).where(*marks)


async def keep_pieces_with_matches(
    connection: AsyncConnection,
    query: Query,
    group: Sequence[ScanRange],
    deadline: Deadline,
    share: float,
) -> Sequence[ScanRange]:
    """Return the pieces that have inferences without each of the keys. Raises OutOfTime."""
    for key in find_anti_joins(query):
        if group:
            group = await _keep_of_key(connection, query, key, group, deadline, share)
    return group


async def _keep_of_key(  # noqa: PLR0917
    connection: AsyncConnection,
    query: Query,
    key: OfKey,
    group: Sequence[ScanRange],
    deadline: Deadline,
    share: float,
) -> Sequence[ScanRange]:
    alone = replace(query, conditions=(key,))
    stored_numbers = await read_numbers(connection, [alone], group, deadline)
    parts = [
        counts.add_columns(literal(index, Integer).label("part"))
        for index, scan_range in enumerate(group)
        if scan_range not in stored_numbers
        for counts in count_without(query, key, scan_range)
    ]
    some = {scan_range for scan_range, number in stored_numbers.items() if number > 0}
    if parts:
        numbers = union_all(*parts).subquery()
        statement = (
            select(numbers.c.part).group_by(numbers.c.part).having(func.sum(numbers.c.matches) > 0)
        )
        what = "see where a key is lacking"
        rows = await fetch(
            connection,
            statement,
            deadline,
            share=share,
            what=what,
            workers=WORKERS,
            settings=JOINING,
        )
        some |= {group[row.part] for row in rows}
    return [scan_range for scan_range in group if scan_range in some]


def build_anti_join(query: Query, scan_range: ScanRange) -> Select[Any]:
    """Select the matches of a piece: all inferences without those that have such a key, then
    tested."""
    keys = find_anti_joins(query)
    have = union_all(*(rows for key in keys for rows in key.rows(scan_range))).subquery()
    lacked = select(inference.c.uid).where(
        scan_range.of(inference), ~exists([have], have.c.uid == inference.c.uid)
    )
    # OFFSET: only the remaining inferences are tested, not all
    rows = lacked.offset(0).subquery()
    others = [condition for condition in query.conditions if condition not in keys]
    return select(rows.c.uid).where(*test_each(query, others, scan_range, rows.c.uid))
