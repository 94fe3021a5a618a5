"""Whether a hold keeps an object is asked in the gate: by an index, however many holds keep."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.operations.reconcile import judgement
from inference_store.query.explain import Explain
from inference_store.query.plan import summarize_plan

ROWS = 20_000
KINDS = ("data", "response", "metadata", "sidecar")
KEYS = ", ".join(f"{kind}_storage_key" for kind in KINDS)
VALUES = ", ".join(f"'s3://b/{kind}/' || n" for kind in KINDS)


async def test_what_holds_keep_is_not_read_whole(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        made = (
            f"INSERT INTO erasure_held (erasure, model, uid, scope, hold, hold_revision, {KEYS})"
            " SELECT gen_random_uuid(), 1, gen_random_uuid(), 'inference', gen_random_uuid(), 1,"
            f" {VALUES} FROM generate_series(1, {ROWS}) AS n"
        )
        await connection.execute(text(made))
        await connection.execute(text("ANALYZE erasure_held"))
    kept = {f"s3://b/{kind}/{number}" for kind in KINDS for number in (7, ROWS)}
    asked = judgement.select_held({*kept, "s3://b/data/0"})
    async with engine.connect() as connection:
        plan = summarize_plan((await connection.execute(Explain(asked))).scalar_one())
        found = set((await connection.execute(asked)).scalars())
    assert found == kept
    assert "Seq Scan" not in plan.scans
    assert "erasure_held" in plan.scans
