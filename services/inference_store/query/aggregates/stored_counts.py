"""Stored counts and groups by label, as the rows of statements that then need not run."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import partition_count
from inference_store.query.deadline import Deadline
from inference_store.query.matching import Query
from inference_store.query.scan_range import ScanRange
from inference_store.query.stored_counts import read_numbers, read_stored


class Row(NamedTuple):
    """A group and its inferences."""

    g0: int | None
    n: int


async def labels(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], deadline: Deadline
) -> Mapping[ScanRange, Sequence[Row]]:
    """Return the inferences of each label, as by_index.by_label counts them. Raises OutOfTime."""
    stored_rows = await read_stored(
        connection, [query], parts, [partition_count.c.labels], deadline
    )
    return {
        part: [Row(int(label), number) for label, number in row.labels.items()]
        for part, row in stored_rows.items()
        if row.labels is not None
    }


async def unlabelled(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], deadline: Deadline
) -> Mapping[ScanRange, Sequence[Row]]:
    """Return the inferences without a labelled prediction. Raises OutOfTime."""
    stored_rows = await read_stored(
        connection, [query], parts, [partition_count.c.unlabelled], deadline
    )
    return {part: [Row(None, row.unlabelled)] for part, row in stored_rows.items()}


async def matching(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], deadline: Deadline
) -> Mapping[ScanRange, Sequence[Row]]:
    """Return the number of matches in the parts for which it is stored. Raises OutOfTime."""
    numbers = await read_numbers(connection, [query], parts, deadline)
    return {part: [Row(None, number)] for part, number in numbers.items()}
