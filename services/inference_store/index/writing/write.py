"""Writes a batch: parents through a temporary table, children only of new ones.

A redelivery never changes a stored inference, whose metadata may have been edited since. It all
happens in the caller's transaction.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from uuid import UUID

from opentelemetry.trace import SpanKind
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.database import driver_of
from inference_store.platform import traces
from inference_store.platform.failpoints import failpoint

from .rows import CHILD_COLUMNS, PARENT_COLUMNS, Row, Rows

_COLUMNS = ", ".join(PARENT_COLUMNS)
_STAGE = text(
    "CREATE TEMPORARY TABLE IF NOT EXISTS staged (LIKE inference INCLUDING DEFAULTS)"
    " ON COMMIT DELETE ROWS"
)
# The new ones are listed only if some existed before: listing all costs 5 µs an event.
_INSERT = text(
    f"WITH added AS (INSERT INTO inference ({_COLUMNS})"
    f" SELECT {_COLUMNS} FROM staged ORDER BY model, uid"
    " ON CONFLICT DO NOTHING RETURNING model, uid)"
    " SELECT count(*), CASE WHEN count(*) < :whole THEN array_agg(model) END,"
    " CASE WHEN count(*) < :whole THEN array_agg(uid) END FROM added"
)
_DELTA_COLUMNS = (
    "model",
    "key",
    "type",
    "flag",
    "count",
    "first_seen",
    "last_seen",
    "examples",
)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The new inferences of the batch; the others existed before."""

    new: frozenset[tuple[int, UUID]]


async def write(connection: AsyncConnection, batch: Sequence[Rows]) -> WriteResult:
    """Write parents and children; `batch` holds an inference at most once."""
    if not batch:
        return WriteResult(frozenset())
    driver = await driver_of(connection)
    new = await _write_parents(connection, driver, batch)
    failpoint("ingester.write.inferences")
    whole = len(new) == len(batch)
    fresh = batch if whole else [rows for rows in batch if (rows.model, rows.uid) in new]
    await _write_children(driver, fresh)
    failpoint("ingester.write.children")
    return WriteResult(new)


async def _write_parents(
    connection: AsyncConnection, driver: Any, batch: Sequence[Rows]
) -> frozenset[tuple[int, UUID]]:
    await connection.execute(_STAGE)
    # An inference may be staged already by an earlier call of the same transaction.
    await connection.execute(text("TRUNCATE staged"))
    await _copy(driver, "staged", PARENT_COLUMNS, [rows.parent for rows in batch])
    inserted = (await connection.execute(_INSERT, {"whole": len(batch)})).one()
    if inserted[0] == len(batch):
        return frozenset((rows.model, rows.uid) for rows in batch)
    return frozenset(zip(inserted[1] or (), inserted[2] or (), strict=True))


async def _write_children(driver: Any, batch: Iterable[Rows]) -> None:
    for table, rows in _by_table(batch).items():
        await _copy(driver, table, CHILD_COLUMNS[table], rows)


def _by_table(batch: Iterable[Rows]) -> Mapping[str, list[Row]]:
    rows_by_table: dict[str, list[list[Row]]] = {}
    for rows in batch:
        for table, children in rows.children.items():
            rows_by_table.setdefault(table, []).append(children)
    return {
        table: list(chain.from_iterable(lists)) for table, lists in sorted(rows_by_table.items())
    }


async def write_deltas(connection: AsyncConnection, deltas: Sequence[Row]) -> None:
    """Append a batch's counts to the key registry."""
    if deltas:
        driver = await driver_of(connection)
        await _copy(driver, "metadata_key_delta", _DELTA_COLUMNS, deltas)


async def _copy(driver: Any, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    with traces.span(f"COPY {table}", SpanKind.CLIENT, _copying(table, len(rows))):
        await driver.copy_records_to_table(table, columns=columns, records=_pass_on(rows))


def _pass_on(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows when Postgres waits for them."""
    failpoint("ingester.write.copy")
    yield from rows


def _copying(table: str, rows: int) -> traces.Attributes:
    return {
        "db.system.name": "postgresql",
        "db.operation.name": "COPY",
        "db.collection.name": table,
        "db.operation.batch.size": rows,
    }
