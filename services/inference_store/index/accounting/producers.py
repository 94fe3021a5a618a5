"""The accounts of producers: how much of what each gave did not arrive, and why."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from pydantic import Field
from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.accounting.offsets import PartitionId
from inference_store.index.tables import former_producers, producer_report, producer_sequence
from inference_store.inference.field_docs import Stored
from inference_store.inference.producer_reports import ProducerReport

# Their names come from producers, and may be many.
_MOST_REASONS: Final = 5
State = Literal["running", "ended", "dead", "unreported"]
STATES: Final[Mapping[State, str]] = {
    "running": "It reports.",
    "ended": "Its last report says that it is the last.",
    "dead": "It stopped reporting without a last word, or another process found its spool.",
    "unreported": "Its events name it; it has never reported.",
}


@dataclass(frozen=True, slots=True)
class StoredReport:
    """The newest report of one reporter."""

    report: ProducerReport
    # It has not reported for long, although everything in the topic had been read.
    silent: bool
    heard_at: datetime


@dataclass(frozen=True, slots=True)
class ProducerTotals:
    """The sums over the reports of one producer, in exchanges."""

    dropped: Mapping[str, int]
    queued: int
    # how many of `queued` outlive the process
    spooled: int
    # queued when a process died, and not in the spool that the next process found
    unsettled: int
    highest_sequence: int
    # whether every report adds up by itself
    add_up: bool


class SequenceGaps(NamedTuple):
    """Sequence numbers that were given and did not arrive, by why."""

    # refused or dropped after they were given: the producer counted them
    dropped: int
    # queued, in a spool, or on their way
    waiting: int
    # of a producer that died: what it had in hand, and nobody knows of
    unknown_tail: int
    # published, says the producer, or it says nothing: still in Kafka, or lost
    unexplained: int


@dataclass(frozen=True, slots=True)
class ProducerAccount:
    """The account of one producer's sequence 1, 2, 3…: a gap is a capture that did not arrive."""

    producer: str
    highest: int
    arrived: int
    # how many arrived of the numbers up to the highest that was reported
    arrived_reported: int = 0
    # its own first, then those of processes that found its spool, in the order of their starts
    reports: Sequence[StoredReport] = ()

    @property
    def totals(self) -> ProducerTotals:
        """The sums over its reports."""
        return sum_reports([stored.report for stored in self.reports])

    @property
    def given(self) -> int:
        """The highest sequence number that is known to have been given."""
        return max(self.highest, self.totals.highest_sequence)

    @property
    def heard_at(self) -> datetime | None:
        """The time at which a report of it was last read."""
        return max((stored.heard_at for stored in self.reports), default=None)

    @property
    def state(self) -> State:
        """Its state, which says whether more is to be expected."""
        if not self.reports:
            return "unreported"
        first, *later = self.reports
        is_own = first.report.reporter == self.producer
        if is_own and first.report.final:
            return "ended"
        # A process that found its spool shows that it is dead before its silence does.
        return "running" if is_own and not first.silent and not later else "dead"

    @property
    def missing(self) -> int:
        """How many sequence numbers were given and have not arrived."""
        return max(0, self.given - self.arrived)

    @property
    def reason(self) -> str | None:
        """Why they have not, and what else its reports say was lost; None: nothing is missing."""
        gaps, totals = self.gaps, self.totals
        frequent = sorted(totals.dropped.items(), key=lambda item: (-item[1], item[0]))
        by_reason = ", ".join(f"{why} {count}" for why, count in frequent[:_MOST_REASONS])
        left = totals.queued if self.state == "dead" else 0
        found = (
            (gaps.dropped, f"dropped or refused, and counted ({by_reason})"),
            (gaps.waiting, "queued, in a spool, or on their way"),
            (gaps.unknown_tail, "lost in memory when the producer died"),
            (gaps.unexplained, "unexplained (still in Kafka while ingesters lag, or lost)"),
            (left - gaps.waiting, "queued when the producer died, and in no spool that was found"),
            (totals.unsettled - gaps.unknown_tail, "queued when a process died, not in its spool"),
        )
        parts = [] if totals.add_up else ["its reports do not add up"]
        parts += [f"{count} {why}" for count, why in found if count > 0]
        return "; ".join(parts) or None

    @property
    def closes(self) -> bool:
        """Check that it accounts for all that it saw: its reports add up, and nothing is missing
        that they do not explain, unless it runs and the rest may be on its way. What a dead one had
        in hand nobody accounts for until its spool is found."""
        totals, gaps, state = self.totals, self.gaps, self.state
        open_counts = {
            "running": 0,
            "ended": gaps.unexplained,
            "unreported": gaps.unexplained,
            "dead": gaps.unexplained + gaps.unknown_tail + totals.queued + totals.unsettled,
        }
        return totals.add_up and not open_counts[state]

    @property
    def gaps(self) -> SequenceGaps:
        """Why sequence numbers that were given did not arrive.

        Reports count and do not name: a gap is explained as long as there are drops to explain it.
        Gaps above the newest report, if that is older than the newest event, are not explained.
        """
        totals, state = self.totals, self.state
        missing = self.missing
        below = min(missing, max(0, totals.highest_sequence - self.arrived_reported))
        above = missing - below
        dropped = min(below, sum(totals.dropped.values()))
        rest = below - dropped
        tail = max(0, totals.highest_sequence - self.highest)
        waiting = unknown = 0
        if state == "running":
            waiting = min(rest, totals.queued + tail) + above
        elif state == "ended":
            waiting = min(rest, totals.queued)
        elif state == "dead":
            waiting = min(rest, totals.spooled)
            in_memory = totals.queued - totals.spooled + totals.unsettled
            unknown = min(rest - waiting, max(tail, in_memory)) + above
        return SequenceGaps(
            dropped=dropped,
            waiting=waiting,
            unknown_tail=unknown,
            unexplained=missing - dropped - waiting - unknown,
        )


def sum_reports(reports: Sequence[ProducerReport]) -> ProducerTotals:
    """Return the sums over the reports of one producer; each continues the one before it."""
    unsettled = queued = spooled = 0
    dropped: Counter[str] = Counter()
    for report in reports:
        # The spool has all but what was only in memory, and what came after the last report.
        unsettled += max(0, queued - report.seen)
        dropped.update(report.dropped)
        queued, spooled = report.queued, min(report.queued, report.spooled)
    return ProducerTotals(
        dropped=dict(dropped),
        queued=queued,
        spooled=spooled,
        unsettled=unsettled,
        highest_sequence=max((report.highest_sequence for report in reports), default=0),
        add_up=all(report.closes for report in reports),
    )


# How many sequence numbers one row covers, and how many one statement adds.
_BLOCK = 10_000
_STATEMENT = 1_000


async def add_sequences(
    connection: AsyncConnection, partition_id: PartitionId, sequences: Mapping[str, Sequence[int]]
) -> None:
    """Add the sequence numbers that arrived through a partition to those of each producer.

    Anyone can send a header: the batch bounds how many there are here, `MOST` how
    many stay.
    """
    arrived = ((producer, number) for producer, numbers in sequences.items() for number in numbers)
    while pairs := list(islice(arrived, _STATEMENT)):
        producers, numbers = (list(column) for column in zip(*pairs, strict=True))
        values = {
            **partition_id.values,
            "producers": producers,
            "numbers": numbers,
            "block": _BLOCK,
        }
        await connection.execute(_COVER, values)


async def list_producers(
    connection: AsyncConnection, *, limit: int = 1000, only: Sequence[str] | None = None
) -> list[ProducerAccount]:
    """Return the accounts of producers over all partitions, those that miss most events first."""
    rows = list(await connection.execute(_PRODUCERS, {"limit": limit, "only": only}))
    reports = await find_reports(connection, [row.producer for row in rows])
    return [
        ProducerAccount(
            producer=row.producer,
            highest=row.highest,
            arrived=row.arrived,
            arrived_reported=row.arrived_reported,
            reports=reports.get(row.producer, ()),
        )
        for row in rows
    ]


_COVER = text(
    "INSERT INTO producer_sequence AS seen"
    " (producer, cluster, topic, epoch, partition, block, covered)"
    " SELECT producer, :cluster, :topic, :epoch, :partition, n / :block,"
    " range_agg(int8range(n, n + 1))"
    " FROM unnest(CAST(:producers AS text[]), CAST(:numbers AS bigint[])) AS came (producer, n)"
    " GROUP BY producer, n / :block"
    " ON CONFLICT (producer, cluster, topic, epoch, partition, block) DO UPDATE"
    " SET covered = seen.covered + excluded.covered, updated_at = now()"
)
_CHOSEN = "(CAST(:only AS text[]) IS NULL OR producer = ANY(CAST(:only AS text[])))"
_PRODUCERS = text(
    "WITH came AS (SELECT producer, range_agg(covered) AS covered FROM producer_sequence"
    " WHERE " + _CHOSEN + " GROUP BY producer),"
    " told AS (SELECT producer, max(highest_sequence) AS reported FROM producer_report"
    " WHERE " + _CHOSEN + " GROUP BY producer)"
    " SELECT producer, coalesce(highest, 0) AS highest, coalesce(arrived, 0) AS arrived,"
    " coalesce(below, 0) AS arrived_reported FROM told FULL JOIN came USING (producer)"
    " CROSS JOIN LATERAL (SELECT max(upper(r) - 1) AS highest,"
    # numbers begin with 1, and the highest reported may be the highest that there is
    " sum(upper(r) - greatest(lower(r), 1))::bigint AS arrived,"
    " sum(greatest(0, least(upper(r) - 1, coalesce(reported, 0)) - greatest(lower(r), 1) + 1))"
    "::bigint AS below FROM unnest(covered) AS r) AS counted"
    " ORDER BY greatest(coalesce(highest, 0), coalesce(reported, 0)) - coalesce(arrived, 0) DESC,"
    " producer LIMIT :limit"
)


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
        cluster, topic, _, partition = self.partition_id
        place = {"cluster": cluster, "topic": topic, "partition": partition, "offset": self.offset}
        report = {name: getattr(self.report, name) for name in _FIELDS}
        return report | place | {"dropped": dict(self.report.dropped)}


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
        report = ProducerReport(**{name: row._mapping[name] for name in _FIELDS})
        stored = StoredReport(report, row.silent, row.heard_at)
        reports.setdefault(row.producer, []).append(stored)
    return reports


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


class Captured(Stored):
    """What became of the calls of all models, as the reports of producers say: proxies of the last
    90 days, each since its start. `seen` is the sum of the others."""

    since: datetime
    """When the first of them started."""
    seen: int
    sampled_out: int
    """Left out, because the configuration says so."""
    captured: int
    """Acknowledged by Kafka."""
    waiting: int
    """Of producers that run: not published yet."""
    missed: dict[str, int] = Field(examples=[{"no_budget": 3}])
    """By reason; `unsettled`: queued when its process ended, and in no spool that was found yet."""


async def read_captured(connection: AsyncConnection) -> Captured | None:
    """Return the sums over the reports; None: there are none."""
    row = (await connection.execute(_CAPTURED)).one()
    return None if row.since is None else Captured.model_validate(row)


# What a spool's finder reports was seen before by the process that died.
_CAPTURED = text(
    "WITH told AS (SELECT producer, min(booted_at) AS since,"
    " sum(seen) FILTER (WHERE reporter = producer) AS own, max(seen) AS found,"
    " sum(sampled_out) AS sampled_out, sum(published) AS captured,"
    " sum((SELECT sum(n::bigint) FROM jsonb_each_text(dropped) AS d (why, n))) AS dropped,"
    " bool_and(reporter = producer AND NOT final AND NOT silent) AS runs"
    " FROM producer_report GROUP BY producer),"
    " summed AS (SELECT *, greatest(coalesce(own, found),"
    " sampled_out + captured + coalesce(dropped, 0)) AS seen FROM told),"
    " left_over AS (SELECT *, seen - sampled_out - captured - coalesce(dropped, 0) AS remaining"
    " FROM summed),"
    " reasons AS (SELECT why, sum(n::bigint) AS n FROM producer_report,"
    " jsonb_each_text(dropped) AS d (why, n) GROUP BY why HAVING sum(n::bigint) > 0"
    " UNION ALL SELECT 'unsettled', sum(remaining) FROM left_over WHERE NOT runs"
    " HAVING sum(remaining) > 0)"
    " SELECT min(since) AS since, sum(seen) AS seen, sum(sampled_out) AS sampled_out,"
    " sum(captured) AS captured, coalesce(sum(remaining) FILTER (WHERE runs), 0) AS waiting,"
    " (SELECT coalesce(jsonb_object_agg(why, n), '{}') FROM reasons) AS missed FROM left_over"
)


# A proxy is a new producer at every boot, so the rows would grow without end. Producers that have
# not reported for long are summed, not only deleted: what was lost stays in the accounts.

# A producer's rows stay this long after its last report. Older reports are not read again, so none
# is counted twice.
FORMER_AFTER: Final = timedelta(days=90)
# Of more producers than this those that reported longest ago are folded earlier: anyone can send a
# header.
MOST: Final = 10_000
# How many one step folds.
_FOLDED: Final = 500
_LARGEST = 2**63 - 1
_ID = 1


class FormerProducers(Stored):
    """Sums over producers that were heard too long ago to be listed."""

    heard_until: datetime
    producers: int
    given: int
    """Sequence numbers, of all of them together."""
    arrived: int
    dropped: int
    """Of those that did not arrive: dropped or refused, and counted. The rest was lost."""


async def find_former_producers(connection: AsyncConnection) -> FormerProducers | None:
    """Return the sums; None if no producer was ever folded."""
    row = (await connection.execute(select(former_producers))).first()
    return None if row is None else FormerProducers.model_validate(row)


async def fold_producers(
    connection: AsyncConnection, *, limit: int = _FOLDED, most: int = MOST
) -> int:
    """Fold producers that have not reported for long, or are too many; return how many.

    It is one transaction, and only the leader of retention runs it: a crash changes nothing.
    """
    rows = list(
        await connection.execute(_OLD, {"kept": FORMER_AFTER, "most": most, "limit": limit})
    )
    if not rows:
        return 0
    names = [row.producer for row in rows]
    accounts = await list_producers(connection, only=names, limit=len(names))
    added = {
        "producers": len(names),
        "given": sum(account.given for account in accounts),
        "arrived": sum(account.arrived for account in accounts),
        "dropped": sum(account.gaps.dropped for account in accounts),
    }
    former = await find_former_producers(connection)
    before = {} if former is None else former.model_dump()
    heard_until = max(row.heard_at for row in rows)
    values: dict[str, Any] = {
        name: min(before.get(name, 0) + count, _LARGEST) for name, count in added.items()
    }
    values["heard_until"] = max(heard_until, before.get("heard_until", heard_until))
    await connection.execute(
        upsert(former_producers)
        .values(id=_ID, **values)
        .on_conflict_do_update(index_elements=("id",), set_=values)
    )
    for table in (producer_report, producer_sequence):
        await connection.execute(delete(table).where(table.c.producer.in_(names)))
    return len(names)


_OLD = text(
    "SELECT producer, heard_at FROM (SELECT producer, max(heard_at) AS heard_at,"
    " row_number() OVER (ORDER BY max(heard_at) DESC, producer) AS nth"
    " FROM (SELECT producer, heard_at FROM producer_report"
    " UNION ALL SELECT producer, updated_at FROM producer_sequence) AS each_heard"
    " GROUP BY producer) AS heard"
    " WHERE heard_at < now() - CAST(:kept AS interval) OR nth > :most"
    " ORDER BY heard_at LIMIT :limit"
)
