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


def make_captures(numbers: range) -> list[Capture]:
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


def find_age_days(item: Capture) -> int:
    return item.number // len(MODELS) % DAYS


def survives(item: Capture) -> bool:
    return item.model_id != "expires" or find_age_days(item) <= 2


def is_input_gone(item: Capture) -> bool:
    return item.model_id == "loses-inputs" and find_age_days(item) >= 2


async def set_policies(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        for model_id, (keep_input, keep_inference) in POLICIES.items():
            registered, _ = await registrations.put(connection, model_id, Details())
            rule = {"keep_input": keep_input, "keep_inference": keep_inference}
            policy = RetentionPolicy.model_validate({"rules": [rule]})
            await policies.set_policy(connection, registered.model, policy)


def list_expected_objects(captures: Collection[Capture]) -> set[str]:
    """The objects that must be there in the end; all others must be gone."""
    survivors = [item for item in captures if survives(item)]
    return keys_of(survivors) - {item.key("data") for item in survivors if is_input_gone(item)}


async def count_unfinished(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        marks = await connection.scalar(select(func.count()).select_from(erasing))
        query = select(func.count()).where(erasure.c.finished_at.is_(None))
        return int(marks or 0) + int(await connection.scalar(query) or 0)


def list_objects(minio_server: S3, bucket: str) -> set[str]:
    """Every object but the ledger's."""
    result = minio_server.client().list_objects(bucket, recursive=True)
    names = {item.object_name or "" for item in result}
    return {name for name in names if not name.startswith("ledger/")}


async def check(engine: AsyncEngine, captures: Sequence[Capture], bucket: str) -> None:
    """Check that everything due is gone and all else is there, whole and once."""
    inputs_gone = {uid_of(item, bucket) for item in captures if is_input_gone(item)}
    result = await counted(engine)
    assert (result[Outcome.DEAD], result[Outcome.PARKED], result[Outcome.LOST]) == (0, 0, 0)
    async with engine.connect() as connection:
        await check_nothing_waits(connection)
        await check_partitions(connection)
        survivors = {uid_of(item, bucket) for item in captures if survives(item)}
        await check_rows(connection, survivors, without_input=inputs_gone)
        query = select(inference.c.uid).where(inference.c.data_deleted_at.is_not(None))
        assert set((await connection.execute(query)).scalars()) == inputs_gone


def make_quick_environment(environment: dict[str, str], bucket: str) -> dict[str, str]:
    """Return settings for small batches of erasure, run after run, over this bucket."""
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
        lambda: asyncio.to_thread(list_objects, minio_server, bucket),
        lambda result: result == list_expected_objects(captures),
        seconds=300,
    )
    await until(lambda: count_unfinished(engine), lambda count: count == 0, seconds=180)
    await check(engine, captures, bucket)
