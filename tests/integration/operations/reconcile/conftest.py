import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Who
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log import new_key
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.operations.reconcile import stored_reports
from inference_store.operations.reconcile.reconciler import Reconciler
from inference_store.operations.reconcile.stored_reports import FINAL, Finding, Reconciliation
from inference_store.platform.settings import KafkaSettings, RetentionSettings
from inference_store.retention import orphan_eraser
from inference_store.retention.leader import Leader
from tests.integration.backups import backup, restore
from tests.integration.retention.conftest import blobs, storing
from tests.integration.retention.stored import Storing, make_leader
from tests.servers.fixtures import MakeEnvironment, MakeTopic
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.transactions import transact
from tests.warm.process import run_command

__all__ = ["backup", "blobs", "restore", "storing"]
KEY = new_key()
WHO = Who("auditor", None)
Command = Callable[..., Awaitable[tuple[int, dict[str, Any]]]]
Reconcile = Callable[..., Awaitable[tuple[Reconciliation, list[Finding]]]]


@pytest.fixture
def settings(database: str, minio_server: S3, bucket: str) -> RetentionSettings:
    return RetentionSettings.model_validate(
        {
            "postgres_dsn": database,
            **minio_server.settings,
            "s3_bucket": bucket,
            "reconcile_prefixes": "p",
            "reconcile_grace_seconds": 0,
        }
    )


@pytest.fixture
def kafka(kafka_server: Kafka, topic: MakeTopic) -> KafkaSettings:
    return KafkaSettings.model_validate(
        {
            "kafka_bootstrap_servers": kafka_server.bootstrap_servers,
            "kafka_topic": topic(),
            "kafka_truth_topic": "ground-truth",
        }
    )


@pytest.fixture
def ledger(engine: AsyncEngine, blobs: Blobs) -> Ledger:
    return Ledger(engine, blobs, prefix="ledger/")


@pytest.fixture
def reconcile(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings, kafka: KafkaSettings
) -> Reconcile:
    """Return a function that runs a reconciliation to its end, in many small windows."""

    async def run_to_end(
        *, model_id: str | None = None, repair: stored_reports.Repair = "none", **changed: object
    ) -> tuple[Reconciliation, list[Finding]]:
        changed_settings = settings.model_copy(update=changed)
        patience = timedelta(seconds=1)
        worker = Reconciler(
            changed_settings, engine, blobs, kafka=kafka, window=4, patience=patience
        )
        async with engine.begin() as connection:
            reconciliation = await stored_reports.request_reconciliation(
                connection, model_id=model_id, cause="request", repair=repair
            )
        while reconciliation.state not in FINAL:
            reconciliation = await worker.step(reconciliation)
        return reconciliation, await transact(
            engine, stored_reports.list_findings, reconciliation.id, limit=1000
        )

    return run_to_end


def put(storing: Storing, *keys: str) -> list[str]:
    """Put objects that no inference has; return their storage keys in order."""
    for key in keys:
        storing.blobs.put(StorageKey(storing.bucket, key), b"left over", content_type="text/plain")
    return sorted(f"s3://{storing.bucket}/{key}" for key in keys)


@pytest.fixture
def leader(
    storing: Storing, settings: RetentionSettings, monkeypatch: pytest.MonkeyPatch
) -> Leader:
    """Return a leader that erases orphans two at a time, and certifies that with KEY."""
    monkeypatch.setattr(orphan_eraser, "_BATCH", 2)
    certifier = storing.make_certifier(KEY)
    return make_leader(storing.engine, storing.blobs, settings, certifier=certifier)


@pytest.fixture
def command(service_environment: MakeEnvironment) -> Command:
    """Return a function that runs `inference-store reconcile … --json`: exit code and report."""

    async def run(*arguments: str, **settings: str) -> tuple[int, dict[str, Any]]:
        environment = service_environment(**settings)
        environment["INFERENCE_STORE_FAILPOINT"] = settings.get("FAILPOINT", "")
        called = partial(run_command, "reconcile", "--json", *arguments, environment=environment)
        process = await asyncio.to_thread(called)
        if process.returncode < 0:
            return process.returncode, {}
        assert process.stdout, process.stderr
        return process.returncode, dict(json.loads(process.stdout))

    return run
