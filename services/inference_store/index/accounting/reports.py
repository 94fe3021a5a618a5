"""The reports of producers: the newest one of each reporter."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, func, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import producer_report
from inference_store.inference.producer_reports import ProducerReport

from .partition_id import PartitionId
from .producer_account import StoredReport

_FIELDS = tuple(field.name for field in fields(ProducerReport))


@dataclass(frozen=True, slots=True)
class ReceivedReport:
    """A report, with the partition and offset at which it was read."""

    report: ProducerReport
    partition_id: PartitionId
    offset: int

    @property
    def values(self) -> dict[str, Any]:
        """The values of its columns, without the epoch: a report read twice changes nothing."""
        partition_id = {
            name: value for name, value in self.partition_id.values.items() if name != "epoch"
        }
        report = {name: getattr(self.report, name) for name in _FIELDS}
        dropped = dict(self.report.dropped)
        return report | partition_id | {"dropped": dropped, "offset": self.offset}


async def store_reports(connection: AsyncConnection, received: Iterable[ReceivedReport]) -> int:
    """Store each report that is newer than the stored one of its reporter; return how many.

    Reports are totals: the newest includes all before it, and reading again changes nothing.
    """
    newest: dict[tuple[str, str], ReceivedReport] = {}
    for item in received:
        report, reporter = item.report, (item.report.producer, item.report.reporter)
        if reporter not in newest or newest[reporter].report.number < report.number:
            newest[reporter] = item
    if not newest:
        return 0
    # One order in every ingester: several may write the same rows at once.
    rows = [newest[reporter].values for reporter in sorted(newest)]
    statement = upsert(producer_report).values(rows)
    changes = {name: statement.excluded[name] for name in rows[0]}
    result = await connection.execute(
        statement.on_conflict_do_update(
            index_elements=("producer", "reporter"),
            set_={**changes, "silent": False, "heard_at": func.now()},
            where=producer_report.c.number < statement.excluded.number,
        )
    )
    return result.rowcount


async def find_report_positions(
    connection: AsyncConnection, *, cluster: str, topic: str
) -> dict[int, int]:
    """Return the next offset of each partition of the topic of reports that was ever read.

    It is the one after the newest stored report; older or broken reports after it are read again.
    """
    columns = producer_report.c
    rows = await connection.execute(
        select(columns.partition, func.max(columns.offset) + 1)
        .where(columns.cluster == cluster, columns.topic == topic)
        .group_by(columns.partition)
    )
    return {row[0]: row[1] for row in rows}


async def mark_silent(connection: AsyncConnection, *, after: timedelta) -> int:
    """Mark reporters that have sent no report for `after`, and no last one; return how many.

    If six times the mean interval of its reports is longer, up to a day, that counts. Call it only
    when all reports have been read: otherwise it is the ingester that was absent.
    """
    return (await connection.execute(_SILENT, {"after": after})).rowcount


# A row that is locked is being updated by a report now.
_SILENT = text(
    "UPDATE producer_report SET silent = true WHERE (producer, reporter) IN ("
    "SELECT producer, reporter FROM producer_report WHERE NOT final AND NOT silent"
    " AND heard_at < now() - least(interval '1 day', greatest(CAST(:after AS interval),"
    " 6 * (reported_at - booted_at) / greatest(number, 1)::float8))"
    " FOR UPDATE SKIP LOCKED)"
)


async def find_reports(
    connection: AsyncConnection, producers: Sequence[str]
) -> Mapping[str, Sequence[StoredReport]]:
    """Return the reports of each producer: its own first, then by the start of their reporters."""
    columns = producer_report.c
    is_other = columns.reporter != columns.producer
    rows = await connection.execute(
        select(producer_report)
        .where(columns.producer == func.any(list(producers)))
        .order_by(columns.producer, is_other, columns.booted_at, columns.reporter)
    )
    reports: dict[str, list[StoredReport]] = {}
    for row in rows:
        reports.setdefault(row.producer, []).append(_build_report(row))
    return reports


def _build_report(row: Row[tuple[object, ...]]) -> StoredReport:
    report = ProducerReport(**{name: getattr(row, name) for name in _FIELDS})
    return StoredReport(report, row.silent, row.heard_at)


async def count_producer_states(connection: AsyncConnection) -> dict[str, int]:
    """Return the number of producers in each state.

    The states are those of an account. The table is small: one row for each reporter.
    """
    columns = producer_report.c
    own = columns.reporter == columns.producer
    states = (
        select(
            func.bool_or(own & columns.final).label("ended"),
            (func.bool_and(own & ~columns.final & ~columns.silent)).label("running"),
        )
        .group_by(columns.producer)
        .subquery()
    )
    ended, running = states.c.ended, states.c.running
    counts = await connection.execute(
        select(
            func.count().filter(running),
            func.count().filter(ended),
            func.count().filter(~running, ~ended),
        )
    )
    running_now, ended_well, dead = counts.one()
    return {"running": running_now, "ended": ended_well, "dead": dead}
