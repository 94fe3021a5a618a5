"""Those that lack a key, which are in no index: all inferences, without those that have it.

So they are counted: two long lists, each read once, where to test every inference takes many
times as long. And so they are found, where they are too few to be met on a walk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Integer, Select, func, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference

from .bounded import Deadline, fetch
from .conditions import OfKey
from .conditions.condition import exists
from .matching import Query, test_each
from .scan_range import ScanRange, unmarked
from .stored import numbers

WORKERS: Final = 2
"""Processes of Postgres that may help with a statement in which no order is kept."""
MOST: Final = 4
"""Keys whose lists are taken from all; that further ones are lacking is tested."""
# One hash a partition, of those that have a key.
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
    """The conditions that a key is lacking, where no index leads to the matches."""
    if query.is_driven:
        return []
    return [each for each in query.conditions if isinstance(each, OfKey) and not each.when][:MOST]


def count_without(query: Query, key: OfKey, scan_range: ScanRange) -> list[Select[Any]]:
    """Numbers whose sum is how many inferences lack the key: all, less those that have it."""
    everyone = select(inference.c.uid).where(scan_range.of(inference))
    there = [_count_rows(query, scan_range, each, -sign) for sign, each in key.counted(scan_range)]
    return [_count_rows(query, scan_range, everyone, 1), *there]


def _count_rows(query: Query, scan_range: ScanRange, uids: Any, sign: int) -> Select[Any]:
    rows = uids.subquery()
    marks = [unmarked(scan_range, rows.c.uid)] if query.marks else []
    number = (func.count() * sign).label("matches")
    return select(number).select_from(rows).where(*marks)


async def keep_pieces_with_matches(
    connection: AsyncConnection,
    query: Query,
    group: Sequence[ScanRange],
    deadline: Deadline,
    share: float,
) -> Sequence[ScanRange]:
    """The pieces in which of each key that is to be lacking some inference is. Raises OutOfTime."""
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
    known = await numbers(connection, [alone], group, deadline)
    parts = [
        each.add_columns(literal(index, Integer).label("part"))
        for index, scan_range in enumerate(group)
        if scan_range not in known
        for each in count_without(query, key, scan_range)
    ]
    some = {scan_range for scan_range, number in known.items() if number > 0}
    if parts:
        found = union_all(*parts).subquery()
        statement = (
            select(found.c.part).group_by(found.c.part).having(func.sum(found.c.matches) > 0)
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
    """The matches of a piece: all inferences without those that have such a key, then tested."""
    keys = find_anti_joins(query)
    have = union_all(*(rows for key in keys for rows in key.rows(scan_range))).subquery()
    lacked = select(inference.c.uid).where(
        scan_range.of(inference), ~exists([have], have.c.uid == inference.c.uid)
    )
    # OFFSET: the tests are made of what is left, not of all
    rows = lacked.offset(0).subquery()
    others = [each for each in query.conditions if each not in keys]
    return select(rows.c.uid).where(*test_each(query, others, scan_range, rows.c.uid))
