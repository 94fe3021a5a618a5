"""One service after the other does the work, and waits for servers that are away or refuse."""

import time
from pathlib import Path

import pytest
from sqlalchemy import text

from inference_store.erasure import runs
from tests.polling import until
from tests.servers.minio import MinioServer
from tests.service_process import Service

from .stored import Storing, ago


async def test_two_replicas_share_the_work_one_after_the_other(
    storing: Storing, environment: dict[str, str], tmp_path: Path
) -> None:
    model = await storing.model()
    await storing.keep(model, inference="P1D")
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    first = Service("retention", environment, folders[0]).wait_ready()
    await storing.until_done()
    with Service("retention", environment, folders[1]).wait_ready() as second:
        await storing.inferences(model, 12, ago(days=2))
        await storing.transact(runs.request_run)
        first.kill()
        await storing.until_done()
        assert await storing.rows() == {}
        assert storing.objects() == set()
        # the first may have done all of it before it was killed
        await until(lambda: _read_log(second), lambda log_text: "retention leads" in log_text)
    assert "retention stopped" in second.text
    assert await storing.scalar("SELECT sum(inferences) FROM erasure") == 12


@pytest.mark.real_minio
async def test_an_object_store_that_is_away_is_waited_for(
    storing: Storing, environment: dict[str, str], tmp_path: Path, own_minio: MinioServer
) -> None:
    # the objects lie elsewhere: this store is unavailable, and then it is back without them
    own_minio.create_bucket(storing.bucket)
    environment |= {
        "INFERENCE_STORE_S3_ENDPOINT": own_minio.endpoint,
        "INFERENCE_STORE_S3_ACCESS_KEY": own_minio.access_key,
        "INFERENCE_STORE_S3_SECRET_KEY": own_minio.secret_key,
        "INFERENCE_STORE_S3_TIMEOUT_SECONDS": "1",
    }
    model, inferences = await storing.begin(3, ago(days=2))
    await storing.keep(model, inference="P1D")
    own_minio.stop()
    began = time.time()
    with Service("retention", environment, tmp_path) as service:
        await until(lambda: _read_log(service), lambda log_text: '"waiting"' in log_text)
        # No run has ended: late counts from the start.
        assert service.metrics("retention_last_run_timestamp_seconds") >= began
        health = service.health()
        assert not health["ready"]
        assert health["parts"]["postgres"] == "ready"
        assert health["parts"]["ledger"] == "not compared with the bucket yet"
        # nothing is begun before the ledger in the bucket was looked at
        assert await storing.stored() == {inference.uid for inference in inferences}
        assert await storing.scalar("SELECT count(*) FROM erasing") == 0
        own_minio.start()
        await storing.until_done()
        service.wait_ready()
    assert await storing.rows() == {}


async def _read_log(service: Service) -> str:
    return service.text


async def test_a_postgres_that_answers_and_is_not_written_to_is_not_ready(
    storing: Storing, environment: dict[str, str], tmp_path: Path
) -> None:
    await set_read_only(storing, "on")
    with Service("retention", environment, tmp_path) as service:
        await until(lambda: _read_log(service), lambda log_text: '"waiting"' in log_text)
        health = service.health()
        assert not health["ready"]
        assert "read-only" in health["parts"]["postgres"]
        assert health["parts"]["object store"] == "ready"
        await set_read_only(storing, "off")
        service.wait_ready()


async def set_read_only(storing: Storing, value: str) -> None:
    """Set the whole database for whoever connects from now on: other connections are cut off."""
    async with storing.engine.begin() as connection:
        name = await connection.scalar(text("SELECT current_database()"))
        await connection.execute(text("SET TRANSACTION READ WRITE"))
        await connection.execute(
            text(f"ALTER DATABASE \"{name}\" SET default_transaction_read_only = '{value}'")
        )
    await storing.execute(
        text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    )
