"""The gauges of holds: how many are in force, and what erasures left because of one."""

from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import holds
from inference_store.erasure.audit_chain import unsigned
from inference_store.erasure.housekeeping.record_kinds import RECORD_KINDS
from inference_store.erasure.mark.batches import mark_batch
from inference_store.erasure.progress.erasure import find_erasure
from inference_store.erasure.select.overdue import Overdue
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.tables import reconciliation
from inference_store.operations import figures
from inference_store.operations.reconcile.counts import count_against_accounting
from inference_store.platform.metrics import LAST_RECONCILIATION, RECONCILED
from inference_store.platform.settings import RetentionSettings
from inference_store.query.cql2 import parse_text
from inference_store.retention.eraser import Eraser
from inference_store.retention.watch import set_gauges
from tests.polling import until

from .conftest import Retain
from .stored import Storing, ago

_HOLDS = (
    ("NULL", "NULL"),
    ("now() + interval '1 day'", "NULL"),
    ("now() - interval '1 day'", "NULL"),
    ("NULL", "now()"),
)


async def test_counts_holds_in_force_and_held_inferences(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        for until, released in _HOLDS:
            await connection.execute(
                text(
                    "INSERT INTO hold (id, name, reason, filter, placed_by, placed_at, in_force_at,"
                    " until, released_at) SELECT gen_random_uuid(), 'n', 'r', '{}', 'x', now(),"
                    f" now(), {until}, {released}"
                )
            )
        erasure = "'00000000-0000-0000-0000-000000000001'::uuid"
        await connection.execute(
            text(
                "INSERT INTO erasure (id, model, cause, scope, state, requested_at) SELECT"
                f" {erasure}, 1, 'request', 'inference', 'partly_held', now() - interval '9 days'"
            )
        )
        for _ in range(3):
            await connection.execute(
                text(
                    "INSERT INTO erasure_held (erasure, model, uid, scope, hold, hold_revision)"
                    f" SELECT {erasure}, 1, gen_random_uuid(), 'inference', gen_random_uuid(), 1"
                )
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
    async with engine.begin() as connection:
        await connection.execute(reconciliation.insert().values(**columns))


async def test_a_leader_shows_what_another_found(
    engine: AsyncEngine, settings: RetentionSettings
) -> None:
    async with engine.connect() as connection:
        assert await figures.read_reconciliation(connection) is None
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


_DAY = 86400.0
# Ages count from when the tests were read, which may be a while ago: see `NOW`.
_HOUR = 3600.0


def _make_overdue(settings: RetentionSettings) -> Overdue:
    return Overdue({kind.setting: getattr(settings, kind.setting) for kind in RECORD_KINDS})


async def _find_overdue_seconds(engine: AsyncEngine, looking: Overdue) -> float:
    async with engine.connect() as connection:
        return await looking.measure_seconds(connection)


async def _backdate(engine: AsyncEngine, interval: str) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            text(f"UPDATE policy_version SET effective_at = now() - interval '{interval}'")
        )


async def test_expired_inferences_are_late_until_a_run_takes_them(
    storing: Storing, settings: RetentionSettings, retain: Retain
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
    await retain()
    assert await _find_overdue_seconds(storing.engine, looking) == 0


async def test_inputs_go_before_inferences(
    storing: Storing, settings: RetentionSettings, retain: Retain
) -> None:
    model = await storing.model()
    await storing.inferences(model, 3, ago(days=5))
    await storing.keep(model, input="P1D", inference="P10D")
    await _backdate(storing.engine, "30 days")
    looking = _make_overdue(settings)
    assert 4 * _DAY - 60 < await _find_overdue_seconds(storing.engine, looking) < 4 * _DAY + _HOUR
    await retain()
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
        hold_filter = await holds.build_filter(
            connection, model, holds.HoldCriteria(filter=parse_text("ok"))
        )
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
        await open_partition(connection, PartitionId("c", "t", 0, 0), first=0, began="earliest")
        await connection.execute(text("UPDATE kafka_partition SET next = 5, stored = 5"))
        assert await mark_batch(connection, batch, ago(hours=1), "a") == 3
    assert await _find_difference(storing.engine) == 0
    await _finish_erasure(storing.engine, storing.eraser, number)
    assert await _find_difference(storing.engine) == 0
    (ended,) = [kind for kind in RECORD_KINDS if kind.name == "erasures"]
    assert await storing.transact(ended.prune, -60.0, 10, unsigned) == 1
    assert await _find_difference(storing.engine) == 0


async def _finish_erasure(engine: AsyncEngine, eraser: Eraser, number: UUID) -> None:
    async with engine.connect() as connection:
        erasure = await find_erasure(connection, number)
    assert erasure is not None
    assert await eraser.finish(erasure) == "deleted"


async def _find_difference(engine: AsyncEngine) -> int:
    counts = await count_against_accounting(engine)
    async with engine.connect() as connection:
        rows = await connection.scalar(text("SELECT count(*) FROM inference"))
    assert counts["indexed"] == rows
    return counts["difference"]
