"""Inferences of which some expire: their policies, and what must be gone and there in the end."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import policies
from inference_store.erasure.policies import RetentionPolicy
from inference_store.index import registrations
from inference_store.index.accounting import Outcome
from inference_store.index.registrations import Details
from inference_store.index.tables import erasing, erasure, inference
from tests.e2e.faults.books_close import (
    check_nothing_waits,
    check_partitions,
    check_rows,
    counted,
    keys_of,
    uid_of,
)
from tests.polling import until
from tests.producer import START, Capture, capture
from tests.servers.minio import S3

DAYS = 5
# (keep_input, keep_inference) in days; what is not named is kept for ever.
POLICIES = {"expires": ("P2DT12H", "P2DT12H"), "loses-inputs": ("P1DT12H", "P10000D")}
MODELS = (*POLICIES, "kept")


def received(numbers: range) -> list[Capture]:
    """Captures of all models, each from 0 to 4 days old."""
    return [
        capture(
            number,
            model_id=MODELS[number % len(MODELS)],
            received_at=START
            - timedelta(days=number // len(MODELS) % DAYS)
            + timedelta(milliseconds=number),
        )
        for number in numbers
    ]


def age_days(one: Capture) -> int:
    return one.number // len(MODELS) % DAYS


def survives(one: Capture) -> bool:
    return one.model_id != "expires" or age_days(one) <= 2


def input_is_gone(one: Capture) -> bool:
    return one.model_id == "loses-inputs" and age_days(one) >= 2


async def set_policies(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        for model_id, (keep_input, keep_inference) in POLICIES.items():
            made, _ = await registrations.put(connection, model_id, Details())
            rule = {"keep_input": keep_input, "keep_inference": keep_inference}
            policy = RetentionPolicy.model_validate({"rules": [rule]})
            await policies.put(connection, made.model, policy)


def objects_of(captures: Collection[Capture]) -> set[str]:
    """The objects that must be there in the end; all others must be gone."""
    kept = [one for one in captures if survives(one)]
    return keys_of(kept) - {one.key("data") for one in kept if input_is_gone(one)}


async def unfinished(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        marks = await connection.scalar(select(func.count()).select_from(erasing))
        query = select(func.count()).where(erasure.c.finished_at.is_(None))
        return int(marks or 0) + int(await connection.scalar(query) or 0)


def listed(minio_server: S3, bucket: str) -> set[str]:
    """Every object but the ledger's."""
    found = minio_server.client().list_objects(bucket, recursive=True)
    names = {one.object_name or "" for one in found}
    return {name for name in names if not name.startswith("ledger/")}


async def check(engine: AsyncEngine, captures: Sequence[Capture], bucket: str) -> None:
    """What had to go is gone, all else is there, whole and once."""
    inputs_gone = {uid_of(one, bucket) for one in captures if input_is_gone(one)}
    found = await counted(engine)
    assert (found[Outcome.DEAD], found[Outcome.PARKED], found[Outcome.LOST]) == (0, 0, 0)
    async with engine.connect() as connection:
        await check_nothing_waits(connection)
        await check_partitions(connection)
        survivors = {uid_of(one, bucket) for one in captures if survives(one)}
        await check_rows(connection, survivors, without_input=inputs_gone)
        query = select(inference.c.uid).where(inference.c.data_deleted_at.is_not(None))
        assert set((await connection.execute(query)).scalars()) == inputs_gone


def quick_retention(environment: dict[str, str], bucket: str) -> dict[str, str]:
    """Small batches of erasure, run after run, over the objects of this bucket."""
    changes = {
        "S3_BUCKET": bucket,
        "RETENTION_INTERVAL_SECONDS": "1",
        "RETENTION_POLL_SECONDS": "0.2",
        "RETENTION_BATCH_INFERENCES": "7",
    }
    return environment | {f"INFERENCE_STORE_{name}": value for name, value in changes.items()}


async def check_in_the_end(
    engine: AsyncEngine, captures: Sequence[Capture], minio_server: S3, bucket: str
) -> None:
    """Wait until retention has done its work; then what it left is exactly what had to stay."""
    await until(
        lambda: asyncio.to_thread(listed, minio_server, bucket),
        lambda found: found == objects_of(captures),
        seconds=120,
    )
    await until(lambda: unfinished(engine), lambda left: left == 0, seconds=180)
    await check(engine, captures, bucket)
