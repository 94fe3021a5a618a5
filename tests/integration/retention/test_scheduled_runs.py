"""Each kind of our own records has its own retention; what is to be decided or done stays."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure import audit_chain, holds
from inference_store.erasure.batches import mark_batch
from inference_store.erasure.housekeeping import RECORD_KINDS
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.progress import find_erasure
from inference_store.index import accounting
from inference_store.index.accounting import PartitionId, list_accounts, open_partition
from inference_store.index.audit import note
from inference_store.index.tables import (
    audit,
    audit_head,
    erasure,
    outdated_count,
    partition_count,
    reconciliation,
    reconciliation_finding,
    retention_run,
    unsettled_event,
)
from inference_store.objects import Blobs
from inference_store.operations import figures
from inference_store.operations.reconcile import stored_reports
from inference_store.operations.reconcile.reconciler import count_against_accounting
from inference_store.platform.metrics import AUDIT_UNLINKED, LAST_RECONCILIATION, PRUNED, RECONCILED
from inference_store.platform.settings import RetentionSettings
from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.search import count
from inference_store.retention.housekeeping import Overdue, delete_records, link
from inference_store.retention.run import set_gauges
from tests.integration.query.counting.test_counts import count_usable_partitions
from tests.polling import until
from tests.servers.marks import stored_counts
from tests.transactions import execute, scalar, transact

from .stored import Eraser, Storing, ago, make_leader

_DAY = 86400.0
_KEEP = {
    "dead_letter_keep_seconds": 2 * _DAY,
    "audit_keep_seconds": 4 * _DAY,
}
# Each state at an age of one to ten days.
_OLD = "now() - n * interval '1 day' FROM generate_series(1, 10) AS n"
_LETTERS = ("open", "redrive", "parked", "discarded", "stored", "duplicate", "expired")


async def _make(connection: AsyncConnection) -> None:
    await connection.exec_driver_sql(
        "INSERT INTO kafka_partition (cluster, topic, epoch, partition, first, next, dead)"
        " VALUES ('c', 't', 1, 0, 0, 60, 60)"
    )
    for offset, state in enumerate(_LETTERS):
        values = f"{100 * offset} + n, now(), 'not_json', 'x', '{state}', {_OLD}"
        await connection.exec_driver_sql(
            'INSERT INTO unsettled_event (cluster, topic, epoch, partition, "offset", record_time,'
            f" reason, detail, state, updated_at) SELECT 'c', 't', 1, 0, {values}"
        )
    for state in ("done", "failed", "running"):
        at = "NULL FROM generate_series(1, 10)" if state == "running" else _OLD
        await connection.exec_driver_sql(
            "INSERT INTO retention_run (id, cause, state, inputs_deleted, finished_at)"
            f" SELECT gen_random_uuid(), 'request', '{state}', 1, {at}"
        )
    for state, at in (("deleted", _OLD), ("failed", "NULL FROM generate_series(1, 10) AS n")):
        await connection.exec_driver_sql(
            "INSERT INTO erasure (id, model, cause, scope, state, finished_at)"
            f" SELECT gen_random_uuid(), 1, 'request', 'inference', '{state}', {at}"
        )


async def _count_states(engine: AsyncEngine, table: Any) -> dict[str, int]:
    async with engine.connect() as connection:
        rows = await connection.execute(select(table.c.state, func.count()).group_by(table.c.state))
        return {row[0]: row[1] for row in rows}


async def test_prunes_old_settled_records(storing: Storing, settings: RetentionSettings) -> None:
    async with storing.engine.begin() as connection:
        await _make(connection)
        before = await Overdue(_KEEP).measure_seconds(connection)
        [account] = await list_accounts(connection)
    assert (account.dead_open, account.dead_discarded) == (20, 40)
    assert 7.9 * _DAY < before < 8.1 * _DAY
    counted = {kind.name: PRUNED.labels(kind.name)._value.get() for kind in RECORD_KINDS}
    await storing.lead(settings.model_copy(update=_KEEP), turns=1, resume=False)
    settled = dict.fromkeys(("discarded", "stored", "duplicate", "expired"), 1)
    waiting = dict.fromkeys(("open", "redrive", "parked"), 10)
    assert await _count_states(storing.engine, unsettled_event) == waiting | settled
    # the marks of the failed ones are gone, so that this turn ended them
    assert await _count_states(storing.engine, erasure) == {"deleted": 13}
    runs = await _count_states(storing.engine, retention_run)
    assert (runs["failed"], runs["running"]) == (3, 10)
    grown = {kind.name: PRUNED.labels(kind.name)._value.get() - counted[kind.name]
             for kind in RECORD_KINDS}  # fmt: skip
    assert grown == {"dead_letters": 36, "runs": 14, "erasures": 7, "audit": 0,
                     "reconciliations": 0}  # fmt: skip
    assert await storing.transact(Overdue(_KEEP).measure_seconds) == 0
    [account] = await storing.transact(list_accounts)
    # a discarded letter stays discarded in the books
    assert (account.dead_open, account.dead_discarded) == (20, 40)


async def test_reports_of_reconciliations_go_but_what_is_gone_by_stays(engine: AsyncEngine) -> None:
    (reports,) = [kind for kind in RECORD_KINDS if kind.name == "reconciliations"]
    kinds = (("done", "{}"), ("failed", "{}"), ("comparing", "{}"), ("done", '{"rebuilt": 3}'))
    async with engine.begin() as connection:
        for number, (state, counts) in enumerate(kinds):
            at = "NULL FROM generate_series(1, 10) AS n" if state == "comparing" else _OLD
            id = f"format('00000000-0000-0000-000{number}-%s', lpad(n::text, 12, '0'))::uuid"
            query = f"SELECT {id}, 'request', 'none', '{state}', '{counts}', {at}"
            await connection.exec_driver_sql(
                "INSERT INTO reconciliation (id, cause, repair, state, counts, finished_at) "
                + query
            )
        await connection.exec_driver_sql(
            "INSERT INTO reconciliation_finding (reconciliation, kind, storage_key)"
            " SELECT id, 'orphan', 'k' FROM reconciliation"
        )
        await connection.exec_driver_sql(
            "INSERT INTO erasure (id, cause, scope, state, asked) VALUES (gen_random_uuid(),"
            " 'orphans', 'object', 'partly_held',"
            ' \'{"report": "00000000-0000-0000-0000-000000000010"}\')'
        )
    gone = 0
    async with engine.begin() as connection:
        while pruned := await reports.prune(connection, 5 * _DAY, 100):
            gone += pruned
        count = await connection.scalar(select(func.count()).select_from(reconciliation_finding))
    # four of each are young; one is still gone by; of what rebuilt something the counts stay
    assert await _count_states(engine, reconciliation) == {
        "done": 4 + 1 + 10,
        "failed": 4,
        "comparing": 10,
    }
    assert (gone, count) == (5 + 6 + 6, 5 + 4 + 10 + 4)


async def test_a_scheduled_run_prunes_the_audit(
    storing: Storing, engine: AsyncEngine, settings: RetentionSettings
) -> None:
    await execute(
        engine,
        "INSERT INTO audit (at, actor, action)"
        " SELECT now() - n * interval '1 minute', 'x', 'y'"
        " FROM generate_series(25000, 1, -1) AS n",
    )
    keep = settings.model_copy(update={"audit_keep_seconds": 60_000.0})
    await storing.lead(keep, turns=1)
    count = await scalar(engine, select(func.count()).select_from(audit))
    assert count is not None
    assert 900 <= count <= 1000


class _Overtaken(Ledger):
    """Something happens before it has its turn."""

    def __init__(self, *args: Any, first: Callable[[], Awaitable[None]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._first = first

    async def write(self, kind: str, body: Any, **more: Any) -> Any:
        await self._first()
        return await super().write(kind, body, **more)


async def test_only_one_of_two_services_notes_a_due_checkpoint(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings
) -> None:
    async def write() -> None:
        async with engine.begin() as connection:
            for _ in range(3):
                await note(connection, Who("key:ada", None), Action.LINKS_MADE)

    async def other() -> None:
        await write()
        await delete_records(make_leader(engine, blobs, settings))

    await write()
    late = make_leader(engine, blobs, settings)
    late.ledger = _Overtaken(engine, blobs, prefix=settings.ledger_prefix, first=other)
    await delete_records(late)
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        checkpoint = await connection.scalar(select(audit_head.c.checkpoint))
        verdict = await audit_chain.verify(connection)
    assert checkpoint is not None
    assert checkpoint["number"] == 6
    assert (await late.ledger.compare()).number == 1
    assert verdict.failures == []


_PARTITION = PartitionId("default", "events", 0, 0)


async def test_a_scheduled_run_folds_to_the_last(storing: Storing, engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await accounting.open_partition(connection, _PARTITION, first=0)
        for hundred in range(12):
            some = {f"{hundred:02}-{n:02}": [2] for n in range(100)}
            await accounting.add_sequences(connection, _PARTITION, some)
        old = "UPDATE producer_sequence SET updated_at = now() - interval '91 days'"
        await connection.execute(text(f"{old} WHERE producer < '11'"))
    await storing.lead(turns=1)
    assert len(await transact(engine, accounting.list_producers)) == 100
    former_producers = await transact(engine, accounting.find_former_producers)
    assert former_producers is not None
    former = former_producers
    assert (former.producers, former.given, former.arrived) == (1100, 2200, 1100)


@stored_counts
@pytest.mark.long
async def test_counts_are_made_and_outdated(storing: Storing) -> None:
    model = await storing.model()
    await storing.inferences(model, 5, ago(days=4))
    await storing.inferences(model, 25, ago(days=3))
    # in a partition that does not end while the test runs
    await storing.inferences(model, 1, ago(days=-1))
    await storing.lead(turns=1)
    assert await count_usable_partitions(storing.engine, model) == 2
    async with storing.engine.connect() as connection:
        counts = await connection.execute(select(partition_count.c.inferences))
        assert sorted(counts.scalars()) == [5, 25]
    await storing.keep(model, inference="P3DT12H")
    assert (await storing.retain()).inferences_deleted == 5
    assert await count_usable_partitions(storing.engine, model) == 1
    await storing.keep(model, inference="P1D")
    assert (await storing.retain()).inferences_deleted == 25
    assert await count_usable_partitions(storing.engine, model) == 0
    query = (await storing.transact(prepare, model, QueryRequest())).query
    assert await storing.transact(count, query, deadline=Deadline.after(60)) == 1


@stored_counts
async def test_rows_that_go_one_by_one_outdate(storing: Storing) -> None:
    """Rows go one by one if another model keeps the partition."""
    first, second = await storing.model("first"), await storing.model("second")
    for model in (first, second):
        await storing.inferences(model, 12, ago(days=3))
    await storing.lead(turns=1)
    await storing.keep(first, inference="P1D")
    assert (await storing.retain()).inferences_deleted == 12
    assert (
        await count_usable_partitions(storing.engine, first),
        await count_usable_partitions(storing.engine, second),
    ) == (0, 1)
    assert len(await storing.fetch(select(outdated_count))) == 1


_HOLDS = (
    ("NULL", "NULL"),
    ("now() + interval '1 day'", "NULL"),
    ("now() - interval '1 day'", "NULL"),
    ("NULL", "now()"),
)


async def test_counts_holds_in_force_and_held_inferences(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        for until, released in _HOLDS:
            await connection.exec_driver_sql(
                "INSERT INTO hold (id, name, reason, filter, placed_by, placed_at, in_force_at,"
                " until, released_at) SELECT gen_random_uuid(), 'n', 'r', '{}', 'x', now(),"
                f" now(), {until}, {released}"
            )
        erasure = "'00000000-0000-0000-0000-000000000001'::uuid"
        await connection.exec_driver_sql(
            "INSERT INTO erasure (id, model, cause, scope, state, requested_at) SELECT"
            f" {erasure}, 1, 'request', 'inference', 'partly_held', now() - interval '9 days'"
        )
        for _ in range(3):
            await connection.exec_driver_sql(
                "INSERT INTO erasure_held (erasure, model, uid, scope, hold, hold_revision)"
                f" SELECT {erasure}, 1, gen_random_uuid(), 'inference', gen_random_uuid(), 1"
            )
        held_figures = await figures.read_retention(connection)
        assert (held_figures.holds, held_figures.held, held_figures.oldest_seconds) == (2, 3, 0)
        # what a hold keeps is not overdue
        keep = dict.fromkeys((kind.setting for kind in RECORD_KINDS), 1e9)
        assert await Overdue(keep).measure_seconds(connection) == 0


def _read_figures() -> dict[str, float]:
    return {
        sample.labels["what"]: sample.value
        for family in RECONCILED.collect()
        for sample in family.samples
    }


async def _insert_comparison(engine: AsyncEngine, hours: float, **values: Any) -> None:
    columns = {"id": uuid4(), "cause": "command", "repair": "none", "state": "done"}
    columns |= {"finished_at": ago(hours=hours), **values}
    await execute(engine, reconciliation.insert().values(**columns))


async def test_a_leader_shows_what_another_found(
    engine: AsyncEngine, settings: RetentionSettings
) -> None:
    assert await transact(engine, stored_reports.find_newest) is None
    await _insert_comparison(
        engine, 9, counts={"orphans": 7, "missing": 2}, books={"difference": 3}
    )
    await _insert_comparison(engine, 5, counts={"orphans": 4, "young": 1}, books={"difference": -1})
    await _insert_comparison(engine, 2, counts={"orphans": 99}, model_id="one alone")
    await _insert_comparison(engine, 1, counts={"orphans": 98}, state="failed")

    async def read_figures() -> dict[str, float]:
        return _read_figures()

    async with set_gauges(engine, settings):
        samples = await until(read_figures, lambda samples: samples.get("orphans") is not None)
        apart = {name: count for name, count in samples.items() if count}
        assert apart == {"orphans": 4, "young": 1, "difference": -1}
        assert LAST_RECONCILIATION._value.get() == ago(hours=5).timestamp()
    # who leads no more shows nothing that it would have to take back
    assert _read_figures() == {}


# Ages count from when the tests were read, which may be a while ago: see `NOW`.
_HOUR = 3600.0


def _make_overdue(settings: RetentionSettings) -> Overdue:
    return Overdue({kind.setting: getattr(settings, kind.setting) for kind in RECORD_KINDS})


async def _find_overdue_seconds(engine: AsyncEngine, looking: Overdue) -> float:
    return await transact(engine, looking.measure_seconds)


async def _backdate(engine: AsyncEngine, interval: str) -> None:
    await execute(engine, f"UPDATE policy_version SET effective_at = now() - interval '{interval}'")


async def test_expired_inferences_are_late_until_a_run_takes_them(
    storing: Storing, settings: RetentionSettings
) -> None:
    model, other = await storing.model(), await storing.model("other")
    await storing.inferences(model, 3, ago(days=5))
    await storing.inferences(other, 3, ago(days=50))
    looking = _make_overdue(settings)
    assert await _find_overdue_seconds(storing.engine, looking) == 0
    await storing.keep(model, inference="P2D")
    # nothing was late before the policy began
    assert await _find_overdue_seconds(storing.engine, looking) < _HOUR - 1
    await _backdate(storing.engine, "1 hour")
    assert _HOUR - 1 < await _find_overdue_seconds(storing.engine, looking) < 2 * _HOUR
    await _backdate(storing.engine, "30 days")
    assert 3 * _DAY - 60 < await _find_overdue_seconds(storing.engine, looking) < 3 * _DAY + _HOUR
    await storing.retain()
    assert await _find_overdue_seconds(storing.engine, looking) == 0


async def test_inputs_go_before_inferences(storing: Storing, settings: RetentionSettings) -> None:
    model = await storing.model()
    await storing.inferences(model, 3, ago(days=5))
    await storing.keep(model, input="P1D", inference="P10D")
    await _backdate(storing.engine, "30 days")
    looking = _make_overdue(settings)
    assert 4 * _DAY - 60 < await _find_overdue_seconds(storing.engine, looking) < 4 * _DAY + _HOUR
    await storing.retain()
    assert await _find_overdue_seconds(storing.engine, looking) == 0


async def test_held_inferences_are_not_late(storing: Storing, settings: RetentionSettings) -> None:
    model = await storing.model()
    await storing.inferences(model, 3, ago(days=5))
    await storing.keep(model, inference="P2D")
    await _backdate(storing.engine, "30 days")
    looking = _make_overdue(settings)
    assert await _find_overdue_seconds(storing.engine, looking) > _DAY
    async with storing.engine.begin() as connection:
        # what it says of these is not known: NULL protects
        hold_filter = await holds.build_filter(connection, model, parse_text("ok"))
        await connection.execute(
            text(
                "INSERT INTO hold (id, name, reason, filter, placed_by, placed_at, in_force_at)"
                " SELECT gen_random_uuid(), 'n', 'r', :saved, 'x', now(), now()"
            ),
            {"saved": hold_filter.text},
        )
    assert await _find_overdue_seconds(storing.engine, looking) == 0


async def test_counts_erased_inferences_once_and_for_all(storing: Storing) -> None:
    await storing.inferences(await storing.model("m"), 3, ago(days=2))
    other = await storing.model("n")
    doomed = [inference.uid for inference in await storing.inferences(other, 2, ago(days=1))]
    # marked by a replay, and never stored here
    absent = storing.uid(ago(days=1))
    number = uuid4()
    about = {"erasure": str(number), "cause": "request", "scope": "inference", "run": None}
    rows = [[str(uid), None, None, None, None] for uid in (*doomed, absent)]
    batch = about | {"requested_by": "a", "model_id": "n", "marks": rows}
    async with storing.engine.begin() as connection:
        await open_partition(connection, PartitionId("c", "t", 0, 0), first=0)
        await connection.execute(text("UPDATE kafka_partition SET next = 5, stored = 5"))
        assert await mark_batch(connection, batch, ago(hours=1), "a") == 3
    assert await _find_difference(storing.engine) == 0
    await _finish_erasure(storing.engine, storing.eraser, number)
    assert await _find_difference(storing.engine) == 0
    (ended,) = [kind for kind in RECORD_KINDS if kind.name == "erasures"]
    assert await storing.transact(ended.prune, -60.0, 10) == 1
    assert await _find_difference(storing.engine) == 0


async def _finish_erasure(engine: AsyncEngine, eraser: Eraser, number: UUID) -> None:
    erasure = await transact(engine, find_erasure, number)
    assert erasure is not None
    assert await eraser.finish(erasure) == "deleted"


async def _find_difference(engine: AsyncEngine) -> int:
    counts = await count_against_accounting(engine, "")
    rows = await scalar(engine, "SELECT count(*) FROM inference")
    assert counts["indexed"] == rows
    return counts["difference"]


async def _write(connection: AsyncConnection) -> None:
    await note(connection, Who("key:ada", None), Action.LINKS_MADE)


async def test_an_entry_that_commits_late_gets_a_later_place(engine: AsyncEngine) -> None:
    async with engine.connect() as late:
        await _write(late)
        async with engine.begin() as connection:
            await _write(connection)
            assert await audit_chain.link_entries(connection, limit=10) == 1
        await late.commit()
    async with engine.begin() as connection:
        assert await audit_chain.link_entries(connection, limit=10) == 1
        places = await connection.execute(text("SELECT number FROM audit ORDER BY id"))
        assert list(places.scalars()) == [2, 1]
    assert (await transact(engine, audit_chain.verify)).failures == []


async def test_shows_a_stalled_chain(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings
) -> None:
    await transact(engine, _write)

    async def read_gauge() -> float:
        return float(AUDIT_UNLINKED._value.get())

    async with engine.begin() as holding:
        await holding.execute(text("SELECT FROM audit_head FOR UPDATE"))
        outbox = Ledger(engine, blobs, prefix="ledger/")
        async with link(engine, outbox), set_gauges(engine, settings):
            await until(read_gauge, lambda seconds: seconds > 0, seconds=180)
            await holding.rollback()
            await until(read_gauge, lambda seconds: seconds == 0, seconds=180)
