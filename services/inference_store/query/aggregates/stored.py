"""Counts and groups by label that are stored, as rows of statements that need not run."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import partition_count
from inference_store.query.bounded import Deadline
from inference_store.query.matching import Query
from inference_store.query.scan_range import ScanRange
from inference_store.query.stored import read_numbers, read_stored


class Row(NamedTuple):
    """A group and its inferences."""

    g0: int | None
    n: int


async def labels(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], deadline: Deadline
) -> Mapping[ScanRange, Sequence[Row]]:
    """Each label's inferences, as by_index.by_label counts them. Raises OutOfTime."""
    found = await read_stored(connection, [query], parts, [partition_count.c.labels], deadline)
    return {
        part: [Row(int(label), number) for label, number in row.labels.items()]
        for part, row in found.items()
        if row.labels is not None
    }


async def unlabelled(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], deadline: Deadline
) -> Mapping[ScanRange, Sequence[Row]]:
    """Those of which no prediction has a label. Raises OutOfTime."""
    found = await read_stored(connection, [query], parts, [partition_count.c.unlabelled], deadline)
    return {part: [Row(None, row.unlabelled)] for part, row in found.items()}


async def matching(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], deadline: Deadline
) -> Mapping[ScanRange, Sequence[Row]]:
    """All that match, where that is stored. Raises OutOfTime."""
    found = await read_numbers(connection, [query], parts, deadline)
    return {part: [Row(None, number)] for part, number in found.items()}
