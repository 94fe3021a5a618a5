"""What producers say of themselves: the newest report of each reporter."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Row, func, literal_column, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import producer_report
from inference_store.inference.producer_reports import ProducerReport

from .place import Place
from .producer_account import KeptReport

_FIELDS = tuple(each.name for each in fields(ProducerReport))


@dataclass(frozen=True, slots=True)
class ReadReport:
    """A report, and where it was read."""

    report: ProducerReport
    place: Place
    offset: int

    @property
    def values(self) -> dict[str, Any]:
        """Its columns. The topic's epoch is not kept: what is read twice changes nothing."""
        place = {name: value for name, value in self.place.values.items() if name != "epoch"}
        said = {name: getattr(self.report, name) for name in _FIELDS}
        return said | place | {"dropped": dict(self.report.dropped), "offset": self.offset}


async def keep(connection: AsyncConnection, read: Iterable[ReadReport]) -> int:
    """Write down what is newer than what is there, of each (producer, reporter); how many rows.

    Totals: the newest stands for all before it, and reading again changes nothing.
    """
    newest: dict[tuple[str, str], ReadReport] = {}
    for each in read:
        report, who = each.report, (each.report.producer, each.report.reporter)
        if who not in newest or newest[who].report.number < report.number:
            newest[who] = each
    if not newest:
        return 0
    # one order in every ingester: they may write the same rows at once
    rows = [newest[who].values for who in sorted(newest)]
    statement = upsert(producer_report).values(rows)
    changes = {name: statement.excluded[name] for name in rows[0]}
    written = await connection.execute(
        statement.on_conflict_do_update(
            index_elements=("producer", "reporter"),
            set_={**changes, "silent": False, "heard_at": func.now()},
            where=producer_report.c.number < statement.excluded.number,
        )
    )
    return written.rowcount


async def read_until(connection: AsyncConnection, *, cluster: str, topic: str) -> dict[int, int]:
    """Where reading goes on in each partition of the topic of reports that was ever read.

    The newest report kept tells; what lies behind it and was older or broken is read again.
    """
    here = producer_report.c
    rows = await connection.execute(
        select(here.partition, func.max(here.offset) + 1)
        .where(here.cluster == cluster, here.topic == topic)
        .group_by(here.partition)
    )
    return {row[0]: row[1] for row in rows}


async def mark_silent(connection: AsyncConnection, *, after: timedelta) -> int:
    """Note of whom nothing was heard for so long and that has not said its last; how many.

    Or for six times what lay between its reports so far, if that is longer, up to a day. Only where
    all reports that there are have been read: else it is we who were away.
    """
    return (await connection.execute(_SILENT, {"after": after})).rowcount


# A row that is locked is being heard of now.
_SILENT = text(
    "UPDATE producer_report SET silent = true WHERE (producer, reporter) IN ("
    "SELECT producer, reporter FROM producer_report WHERE NOT final AND NOT silent"
    " AND heard_at < now() - least(interval '1 day', greatest(CAST(:after AS interval),"
    " 6 * (reported_at - booted_at) / greatest(number, 1)::float8))"
    " FOR UPDATE SKIP LOCKED)"
)


async def reports_of(
    connection: AsyncConnection, producers: Sequence[str]
) -> Mapping[str, Sequence[KeptReport]]:
    """The reports of these producers: its own first, then by when their reporters started."""
    here = producer_report.c
    rows = await connection.execute(
        select(producer_report)
        .where(here.producer == func.any(list(producers)))
        .order_by(here.producer, here.reporter != here.producer, here.booted_at, here.reporter)
    )
    found: dict[str, list[KeptReport]] = {}
    for row in rows:
        found.setdefault(row.producer, []).append(_kept(row))
    return found


def _kept(row: Row[tuple[object, ...]]) -> KeptReport:
    report = ProducerReport(**{name: getattr(row, name) for name in _FIELDS})
    return KeptReport(report, row.silent, row.heard_at)


async def states(connection: AsyncConnection) -> tuple[dict[str, int], int]:
    """How many producers are in which state, and of how many a report does not close.

    The same states as an account's; small whatever was published: a row a reporter.
    """
    here = producer_report.c
    own = here.reporter == here.producer
    found = (
        select(
            func.bool_or(own & here.final).label("ended"),
            (func.bool_and(own & ~here.final & ~here.silent)).label("running"),
            func.bool_or(_does_not_close()).label("open"),
        )
        .group_by(here.producer)
        .subquery()
    )
    ended, running = found.c.ended, found.c.running
    counts = await connection.execute(
        select(
            func.count().filter(running),
            func.count().filter(ended),
            func.count().filter(~running, ~ended),
            func.count().filter(found.c.open),
        )
    )
    running_now, ended_well, dead, opened = counts.one()
    return {"running": running_now, "ended": ended_well, "dead": dead}, opened


def _does_not_close() -> ColumnElement[bool]:
    here = producer_report.c
    dropped: ColumnElement[Decimal] = literal_column(
        "(SELECT coalesce(sum(value::numeric), 0) FROM jsonb_each_text(dropped))"
    )
    return here.seen != here.sampled_out + dropped + here.queued + here.published
