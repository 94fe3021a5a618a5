"""Erasing rows: by the retention service and its policy, and by plain DELETEs, nothing else."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from sqlalchemy import any_, literal, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.ingest.measure import CpuClock
from inference_store.store.retention import policies, runs
from inference_store.store.retention.policies import RetentionPolicy
from inference_store.store.tables import PARTITIONED, inference

BATCH = 1000
_PATIENCE_SECONDS = 900.0
Pids = Mapping[str, Callable[[], Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Erased:
    """One run: inferences a second, and microseconds of CPU an inference by process."""

    rate: float
    cpu: Mapping[str, float]
    partitions: int = 0


class Erase(Protocol):
    """One way to erase all of a model, which has so many inferences."""

    async def __call__(
        self, engine: AsyncEngine, model: int, pids: Pids, *, count: int
    ) -> Erased: ...


async def keep_one_day(engine: AsyncEngine, model: int) -> None:
    """From now on all of the model that is older than a day is to be erased."""
    rule = {"keep_input": "P1D", "keep_inference": "P1D"}
    async with engine.begin() as connection:
        await policies.put(connection, model, RetentionPolicy.model_validate({"rules": [rule]}))


async def by_policy(engine: AsyncEngine, model: int, pids: Pids, *, count: int) -> Erased:
    """Ask for a run, and wait until it is done; its own clock counts."""
    clock = CpuClock(pids)
    async with engine.begin() as connection:
        asked = await runs.request(connection, model)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        async with engine.connect() as connection:
            run = await runs.find(connection, asked.id)
        if run is not None and run.started_at and run.finished_at:
            break
        if time.monotonic() > deadline:
            raise TimeoutError("the retention run did not end")
        clock.look()
        await asyncio.sleep(0.1)
    if run.error is not None or run.inferences_deleted != count:
        raise RuntimeError(f"erased {run.inferences_deleted} of {count}: {run.error}")
    seconds = (run.finished_at - run.started_at).total_seconds()
    return Erased(count / seconds, _each(clock, count), run.partitions_dropped)


async def by_delete(engine: AsyncEngine, model: int, pids: Pids, *, count: int) -> Erased:
    """The floor: DELETE of the same rows by their keys, 1,000 inferences a transaction."""
    async with engine.connect() as connection:
        query = select(inference.c.uid).where(inference.c.model == model)
        uids = sorted((await connection.execute(query)).scalars())
    if len(uids) != count:
        raise RuntimeError(f"{len(uids)} are stored, not {count}")
    clock = CpuClock(pids)
    started = time.perf_counter()
    for at in range(0, count, BATCH):
        await _delete(engine, model, uids[at : at + BATCH])
    seconds = time.perf_counter() - started
    return Erased(count / seconds, _each(clock, count))


async def _delete(engine: AsyncEngine, model: int, uids: Sequence[UUID]) -> None:
    listed = any_(literal(list(uids), ARRAY(UUID_TYPE(as_uuid=True))))
    async with engine.begin() as connection:
        for table in reversed(PARTITIONED):
            here = (table.c.model == model, table.c.uid >= uids[0], table.c.uid <= uids[-1])
            await connection.execute(table.delete().where(*here, table.c.uid == listed))


def _each(clock: CpuClock, count: int) -> dict[str, float]:
    return {name: 1e6 * spent / count for name, spent in clock.used().items()}
