"""Each kind of our own records has its own retention; what is to be decided or done stays."""

import asyncio
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.audit_chain import unsigned
from inference_store.erasure.housekeeping.record_kinds import RECORD_KINDS
from inference_store.erasure.leader_election import open_election
from inference_store.erasure.select.overdue import Overdue
from inference_store.index.accounting import list_accounts
from inference_store.index.tables import (
    dead_letter,
    erasure,
    reconciliation,
    reconciliation_finding,
    retention_run,
)
from inference_store.objects import Blobs
from inference_store.platform.admin import Heartbeat
from inference_store.platform.metrics import PRUNED
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.leadership_check import LeadershipCheck
from inference_store.retention.worker import RetentionWorker

_DAY = 86400.0
_KEEP = {
    "dead_letter_keep_seconds": 2 * _DAY,
    "run_keep_seconds": 4 * _DAY,
    "audit_keep_seconds": 6 * _DAY,
    "reconcile_keep_seconds": 5 * _DAY,
}
# Each state at an age of one to ten days.
_OLD = "now() - n * interval '1 day' FROM generate_series(1, 10) AS n"
_LETTERS = ("open", "redrive", "parked", "discarded", "stored", "duplicate", "expired")


async def _make(connection: AsyncConnection) -> None:
    await connection.execute(
        text(
            "INSERT INTO kafka_partition (cluster, topic, epoch, partition, first, next, dead)"
            " VALUES ('c', 't', 1, 0, 0, 60, 60)"
        )
    )
    for offset, state in enumerate(_LETTERS):
        values = f"{100 * offset} + n, now(), 'not_json', 'x', '{state}', {_OLD}"
        await connection.execute(
            text(
                'INSERT INTO dead_letter (cluster, topic, epoch, partition, "offset", record_time,'
                f" reason, detail, state, updated_at) SELECT 'c', 't', 1, 0, {values}"
            )
        )
    for state in ("done", "failed", "running"):
        at = "NULL FROM generate_series(1, 10)" if state == "running" else _OLD
        await connection.execute(
            text(
                "INSERT INTO retention_run (id, cause, state, inputs_deleted, finished_at)"
                f" SELECT gen_random_uuid(), 'request', '{state}', 1, {at}"
            )
        )
    for state, at in (("deleted", _OLD), ("failed", "NULL FROM generate_series(1, 10) AS n")):
        await connection.execute(
            text(
                "INSERT INTO erasure (id, model, cause, scope, state, finished_at)"
                f" SELECT gen_random_uuid(), 1, 'request', 'inference', '{state}', {at}"
            )
        )


async def _count_states(engine: AsyncEngine, table: Any) -> dict[str, int]:
    async with engine.connect() as connection:
        rows = await connection.execute(select(table.c.state, func.count()).group_by(table.c.state))
        return {row[0]: row[1] for row in rows}


async def _turn(settings: RetentionSettings, engine: AsyncEngine, blobs: Blobs) -> None:
    due = asyncio.Event()
    due.set()
    async with open_election(engine) as election:
        assert await election.take()
        check = LeadershipCheck(election, Heartbeat(), asyncio.Event())
        await RetentionWorker(settings, engine, blobs, check, due).run_turn()


async def test_prunes_old_settled_records(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings
) -> None:
    async with engine.begin() as connection:
        await _make(connection)
        before = await Overdue(_KEEP).measure_seconds(connection)
    assert 7.9 * _DAY < before < 8.1 * _DAY
    counted = {kind.name: PRUNED.labels(kind.name)._value.get() for kind in RECORD_KINDS}
    await _turn(settings.model_copy(update=_KEEP), engine, blobs)
    settled = dict.fromkeys(("discarded", "stored", "duplicate", "expired"), 1)
    waiting = dict.fromkeys(("open", "redrive", "parked"), 10)
    assert await _count_states(engine, dead_letter) == waiting | settled
    # the marks of the failed ones are gone, so that this turn ended them
    assert await _count_states(engine, erasure) == {"deleted": 13}
    runs = await _count_states(engine, retention_run)
    assert (runs["failed"], runs["running"]) == (3, 10)
    grown = {kind.name: PRUNED.labels(kind.name)._value.get() - counted[kind.name]
             for kind in RECORD_KINDS}  # fmt: skip
    assert grown == {"dead_letters": 36, "runs": 14, "erasures": 7, "audit": 0,
                     "reconciliations": 0}  # fmt: skip
    async with engine.connect() as connection:
        assert await Overdue(_KEEP).measure_seconds(connection) == 0


async def test_a_discarded_letter_stays_discarded_in_the_books(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings
) -> None:
    async with engine.begin() as connection:
        await _make(connection)
        [account] = await list_accounts(connection)
    assert (account.dead_open, account.dead_discarded) == (20, 40)
    await _turn(settings.model_copy(update=_KEEP), engine, blobs)
    async with engine.connect() as connection:
        [account] = await list_accounts(connection)
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
        while pruned := await reports.prune(connection, 5 * _DAY, 100, unsigned):
            gone += pruned
        count = await connection.scalar(select(func.count()).select_from(reconciliation_finding))
    # four of each are young; one is still gone by; of what rebuilt something the counts stay
    assert await _count_states(engine, reconciliation) == {
        "done": 4 + 1 + 10,
        "failed": 4,
        "comparing": 10,
    }
    assert (gone, count) == (5 + 6 + 6, 5 + 4 + 10 + 4)
