"""The gauges of holds: how many are in force, and what erasures left because of one."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.housekeeping.record_kinds import RECORD_KINDS
from inference_store.erasure.select.overdue import Overdue
from inference_store.operations import figures

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
