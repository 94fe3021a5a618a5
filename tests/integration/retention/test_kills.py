"""`kill -9` at every place of an erasure; started again it ends what was begun, exactly once."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store.failpoints import FAILPOINTS
from inference_store.store.retention import runs
from inference_store.store.settings import RetentionSettings

from .stored import Storing, ago

PLACES = [name for name in FAILPOINTS if name.startswith("retention.")]
SIGKILLED = -9


@contextmanager
def service(environment: dict[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "inference_store.cli.main", "retention"]
    with (
        log.open("ab") as output,
        subprocess.Popen(command, env=environment, stderr=output) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


async def until_killed(process: "subprocess.Popen[bytes]", log: Path) -> None:
    code = await asyncio.to_thread(process.wait, 30)
    assert code == SIGKILLED, log.read_text()


async def until_done(engine: AsyncEngine, seconds: float = 30) -> list[runs.Run]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        async with engine.connect() as connection:
            found = await runs.listed(connection)
            left = await connection.exec_driver_sql(
                "SELECT count(*) FROM erasure WHERE state <> 'deleted'"
            )
            if found and all(run.state == "done" for run in found) and not left.scalar():
                return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"not done: {found}")


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("place", PLACES)
async def test_a_kill_loses_nothing_and_leaves_nothing(
    storing: Storing,
    engine: AsyncEngine,
    settings: RetentionSettings,
    database: str,
    tmp_path: Path,
    place: str,
    nth: int,
) -> None:
    first, second = await storing.model("first"), await storing.model("second")
    # a partition that goes whole, one that has survivors, and inputs that go alone
    await storing.inferences(first, 12, ago(days=200))
    await storing.inferences(second, 3, ago(days=300))
    await storing.inferences(first, 12, ago(days=100), objects=False)
    kept = await storing.inferences(second, 2, ago(days=100))
    inputs = await storing.inferences(first, 3, ago(days=5))
    await storing.keep(first, input="P1D", inference="P50D")
    await storing.keep(second, inference="P150D")
    environment = {
        **os.environ,
        "INFERENCE_STORE_POSTGRES_DSN": database,
        "INFERENCE_STORE_S3_ENDPOINT": str(settings.s3_endpoint),
        "INFERENCE_STORE_S3_ACCESS_KEY": settings.s3_access_key.get_secret_value(),
        "INFERENCE_STORE_S3_SECRET_KEY": settings.s3_secret_key.get_secret_value(),
        "INFERENCE_STORE_S3_BUCKET": settings.s3_bucket,
        "INFERENCE_STORE_RETENTION_ADMIN_PORT": "0",
        "INFERENCE_STORE_RETENTION_BATCH_INFERENCES": "5",
        "INFERENCE_STORE_RETENTION_POLL_SECONDS": "0.1",
    }
    log = tmp_path / "log"
    with service(environment | {"INFERENCE_STORE_FAILPOINT": f"{place}:{nth}"}, log) as killed:
        await until_killed(killed, log)
    with service(environment, log):
        done = await until_done(engine)
    assert await storing.stored() == {one.uid for one in (*kept, *inputs)}
    assert storing.objects() == {
        *(key.key for one in kept for key in one.objects),
        *(key.key for one in inputs for key in one.objects[1:]),
    }
    assert set((await storing.rows()).values()) == {len(kept) + len(inputs)}
    assert await storing.scalar("SELECT sum(inferences) FROM erasure") == 12 + 3 + 12 + 3
    assert sum(run.inferences_deleted for run in done) == 27
    assert sum(run.inputs_deleted for run in done) == 3
