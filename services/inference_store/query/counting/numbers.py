"""Counts one model in one partition, by the statements that count for a query."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Select, func, literal, select, true, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import SIDE_TABLES, inference, metadata_key, metadata_presence
from inference_store.query.aggregates.by_index import by_label, without_label
from inference_store.query.driving import DrivingIndex
from inference_store.query.matching import Query
from inference_store.query.scan_range import ScanRange

MOST: Final = 2_000
"""Keys, or labels, of a model in one partition. If there are more, none is stored."""
_TABLES: Final = (*SIDE_TABLES.values(), metadata_presence)
Numbers = dict[str, Any]


async def count_inferences(connection: AsyncConnection, scan_range: ScanRange) -> int:
    """Count the inferences."""
    query = select(func.count()).select_from(inference).where(scan_range.of(inference))
    return int(await connection.scalar(query) or 0)


async def count_labels(connection: AsyncConnection, scan_range: ScanRange) -> Numbers | None:
    """Count the inferences with a prediction of each label; None: there are too many labels."""
    query = by_label(Query(scan_range), DrivingIndex(scan_range)).limit(MOST + 1)
    rows = (await connection.execute(query)).all()
    return {str(row.g0): row.n for row in rows} if len(rows) <= MOST else None


async def count_unlabelled(connection: AsyncConnection, scan_range: ScanRange) -> int:
    """Count the inferences without a labelled prediction."""
    return int(
        (await connection.execute(without_label(Query(scan_range), DrivingIndex(scan_range))))
        .one()
        .n
    )


async def count_keys(connection: AsyncConnection, scan_range: ScanRange) -> Numbers | None:
    """Count the inferences with each key, and with a value of it; None: there are too many keys."""
    numbers_by_key: dict[int, list[Any]] = {}
    for table in _TABLES:
        rows = (await connection.execute(_select_by_key(scan_range, table).limit(MOST + 1))).all()
        for row in rows:
            numbers_by_key.setdefault(row.key, []).append([row.sent, row.valued])
        if len(numbers_by_key) > MOST or len(rows) > MOST:
            return None
    again = {key for key, numbers in numbers_by_key.items() if len(numbers) > 1}
    for key in sorted(again | await _find_repeated(connection, list(numbers_by_key))):
        numbers_by_key[key] = [
            list((await connection.execute(_select_one_key(scan_range, key))).one())
        ]
    return {str(key): numbers[0] for key, numbers in numbers_by_key.items()}


def _select_by_key(scan_range: ScanRange, table: Any) -> Select[Any]:
    """Select the number of rows of each key in one table, where each inference has one row."""
    sent = func.count()
    valued = sent.filter(~table.c.is_null) if "is_null" in table.c else sent
    counted = select(table.c.key, sent.label("sent"), valued.label("valued"))
    return counted.where(scan_range.of(table)).group_by(table.c.key)


async def _find_repeated(connection: AsyncConnection, keys: Sequence[int]) -> set[int]:
    """Return the keys of which an inference may have several rows in one table."""
    here = metadata_key.c
    several = here.several | here.name.contains("[]", autoescape=True)
    query = select(here.key).where(here.key.in_(keys), several)
    return set((await connection.execute(query)).scalars())


def _select_one_key(scan_range: ScanRange, key: int) -> Select[int, int]:
    """Count the inferences with one key, in any table, each once."""
    rows = union_all(
        *(
            select(
                table.c.uid,
                (~table.c.is_null if "is_null" in table.c else true()).label("valued"),
            ).where(scan_range.of(table), table.c.key == literal(key))
            for table in _TABLES
        )
    ).subquery()
    uids = func.count(rows.c.uid.distinct())
    return select(uids, uids.filter(rows.c.valued))
