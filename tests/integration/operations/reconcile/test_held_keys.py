"""The fence checks by an index whether a hold keeps an object, however many there are."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.operations.reconcile import judgement
from inference_store.query.explain import Explain
from inference_store.query.plan import summarize_plan

ROWS = 20_000
KINDS = ("data", "response", "metadata", "sidecar")
KEYS = ", ".join(f"{kind}_storage_key" for kind in KINDS)
VALUES = ", ".join(f"'s3://b/{kind}/' || n" for kind in KINDS)


async def test_finds_held_keys_by_index(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        statement = (
            f"INSERT INTO erasure_held (erasure, model, uid, scope, hold, hold_revision, {KEYS})"
            " SELECT gen_random_uuid(), 1, gen_random_uuid(), 'inference', gen_random_uuid(), 1,"
            f" {VALUES} FROM generate_series(1, {ROWS}) AS n"
        )
        await connection.execute(text(statement))
        await connection.execute(text("ANALYZE erasure_held"))
    held_keys = {f"s3://b/{kind}/{number}" for kind in KINDS for number in (7, ROWS)}
    query = judgement.select_held({*held_keys, "s3://b/data/0"})
    async with engine.connect() as connection:
        plan = summarize_plan((await connection.execute(Explain(query))).scalar_one())
        rows = set((await connection.execute(query)).scalars())
    assert rows == held_keys
    assert "Seq Scan" not in plan.scans
    assert "erasure_held" in plan.scans
