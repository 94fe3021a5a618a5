import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.objects import Blobs
from inference_store.operations.reconcile import reconciliations
from inference_store.operations.reconcile.reconciler import Reconciler
from inference_store.operations.reconcile.reconciliations import FINAL, Finding, Reconciliation
from inference_store.platform.settings import KafkaSettings, RetentionSettings
from tests.integration.retention.stored import Storing
from tests.servers.fixtures import MakeEnvironment
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.warm.process import run_command

Command = Callable[..., Awaitable[tuple[int, dict[str, Any]]]]
Reconcile = Callable[..., Awaitable[tuple[Reconciliation, list[Finding]]]]


@pytest.fixture
def settings(database: str, minio_server: S3, bucket: str) -> RetentionSettings:
    return RetentionSettings.model_validate(
        {
            "postgres_dsn": database,
            "s3_endpoint": minio_server.endpoint,
            "s3_access_key": minio_server.access_key,
            "s3_secret_key": minio_server.secret_key,
            "s3_bucket": bucket,
            "reconcile_prefixes": "p",
            "reconcile_grace_seconds": 0,
        }
    )


@pytest.fixture
def kafka(kafka_server: Kafka, topic: Callable[..., str]) -> KafkaSettings:
    return KafkaSettings.model_validate(
        {"kafka_bootstrap_servers": kafka_server.bootstrap_servers, "kafka_topic": topic()}
    )


@pytest.fixture
def blobs(settings: RetentionSettings) -> Iterator[Blobs]:
    with Blobs(settings) as made:
        yield made


@pytest.fixture
def storing(engine: AsyncEngine, blobs: Blobs, bucket: str) -> Storing:
    return Storing(engine, blobs, bucket)


@pytest.fixture
def reconcile(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings, kafka: KafkaSettings
) -> Reconcile:
    """One reconciliation to its end, by windows so small that each place has many."""

    async def carry_out(
        *, model_id: str | None = None, repair: reconciliations.Repair = "none", **changed: object
    ) -> tuple[Reconciliation, list[Finding]]:
        asked = settings.model_copy(update=changed)
        patience = timedelta(seconds=1)
        worker = Reconciler(asked, engine, blobs, kafka=kafka, window=4, patience=patience)
        async with engine.begin() as connection:
            one = await reconciliations.request(
                connection, model_id=model_id, cause="request", repair=repair
            )
        while one.state not in FINAL:
            one = await worker.step(one)
        async with engine.connect() as connection:
            return one, await reconciliations.list_findings(connection, one.id, limit=1000)

    return carry_out


@pytest.fixture
def command(service_environment: MakeEnvironment) -> Command:
    """`inference-store reconcile … --json` as a process: its code and its report."""

    async def run(*arguments: str, **settings: str) -> tuple[int, dict[str, Any]]:
        environment = service_environment(**settings)
        environment["INFERENCE_STORE_FAILPOINT"] = settings.get("FAILPOINT", "")
        called = partial(run_command, "reconcile", "--json", *arguments, environment=environment)
        ended = await asyncio.to_thread(called)
        if ended.returncode < 0:
            return ended.returncode, {}
        assert ended.stdout, ended.stderr
        return ended.returncode, dict(json.loads(ended.stdout))

    return run
