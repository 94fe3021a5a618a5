"""What a batch erased leaves the lists that name it: those uids, and no others."""

import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.export.erased import record_batch
from inference_store.export.jobs import pack_uids, unpack_uids
from inference_store.index.tables import export_erased, export_job, export_part
from tests.integration.statements import record_statements

MODELS = (1, 2)


def make_uids(chance: random.Random) -> list[UUID]:
    """Neighbours, so that lists and batches overlap."""
    return [UUID(int=number) for number in sorted(chance.sample(range(1, 200), 80))]


async def add_exports(
    connection: AsyncConnection, chance: random.Random
) -> dict[tuple[UUID, int], tuple[int, list[UUID]]]:
    """Add exports of lists of every size; return the lists, with their models."""
    lists = {}
    for _ in range(6):
        export, model = uuid4(), chance.choice(MODELS)
        job = {"id": export, "model": model, "format": "csv", "document": {}, "state": "done"}
        more = {"requested_by": "test", "expires_at": datetime.now(UTC), "members": 80}
        await connection.execute(insert(export_job).values({**job, **more}))
        uids, number = make_uids(chance), 0
        while uids:
            number += 1
            size = chance.randint(1, 30)
            part, uids = uids[:size], uids[size:]
            values: dict[str, Any] = {
                "export": export,
                "number": number,
                "model": model,
                "uids": pack_uids(part),
            }
            has_object = chance.random() < 0.5
            values |= {"first": part[0], "last": part[-1], "state": "listed"}
            if has_object:
                # an erasure has marked some, so that they were not written
                missing = chance.randint(0, 1)
                values |= {"state": "written", "storage_key": "s3://b/k", "gone": missing}
                values |= {"rows": len(part) - missing}
            await connection.execute(insert(export_part).values(values))
            lists[export, number] = model, part
    return lists


@pytest.mark.parametrize("seed", range(8))
async def test_exactly_what_was_erased_leaves_the_lists(engine: AsyncEngine, seed: int) -> None:
    chance = random.Random(seed)
    async with engine.begin() as connection:
        lists = await add_exports(connection, chance)
        before = {
            (part.export, part.number): part
            for part in await connection.execute(select(export_part))
        }
        taken = Counter[tuple[UUID, int]]()
        touched: set[tuple[UUID, int]] = set()
        for _ in range(5):
            scope = chance.choice(("inference", "inference", "input"))
            some = make_uids(chance)[: chance.randint(0, 40)]
            batch = [(chance.choice(MODELS), uid) for uid in some]
            await record_batch(connection, uuid4(), scope, batch)
            for part_key, (model, uids) in lists.items():
                gone = [uid for uid in uids if (model, uid) in batch]
                taken[part_key] += len(gone)
                touched |= {part_key} if gone else set()
                if scope == "inference":
                    lists[part_key] = model, [uid for uid in uids if uid not in gone]
        for part in await connection.execute(select(export_part)):
            part_key = part.export, part.number
            uids = lists[part_key][1]
            assert unpack_uids(part.uids) == uids
            if uids:
                assert (part.first, part.last) == (uids[0], uids[-1])
            is_stale = part_key in touched and part.storage_key is not None
            assert (part.state == "stale") == is_stale
        stale = {
            part.export
            for part in await connection.execute(select(export_part))
            if part.state == "stale"
        }
        recorded = Counter[tuple[UUID, int]]()
        for row in await connection.execute(select(export_erased)):
            recorded[row.export, row.part] += row.inferences
            assert len(row.uids) == 16 * row.inferences
        assert +recorded == +taken
        for job in await connection.execute(select(export_job)):
            assert job.state == ("stale" if job.id in stale else "done")
            parts = {key: part for key, part in before.items() if key[0] == job.id}
            if touched.isdisjoint(parts):
                continue
            deleted = [part for key, part in parts.items() if key in touched and part.storage_key]
            assert job.parts_deleted == len(deleted)
            assert job.inferences_deleted == sum(part.rows for part in deleted)
            # of the others, what left a list before its part was written
            unwritten = sum(
                len(part.uids) // 16 - len(lists[key][1])
                for key, part in parts.items()
                if part.state == "listed"
            )
            assert job.gone == unwritten + sum(part.gone for part in parts.values())


async def test_a_model_without_exports_costs_one_query(engine: AsyncEngine) -> None:
    batch = [(1, UUID(int=number)) for number in range(1000)]
    with record_statements(engine) as sent:
        async with engine.begin() as connection:
            await record_batch(connection, uuid4(), "inference", batch)
    assert len({statement.text for statement in sent if "export_" in statement.text}) == 1
    assert not [statement for statement in sent if "UPDATE" in statement.text]
