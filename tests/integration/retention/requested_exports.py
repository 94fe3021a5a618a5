"""Exports as the api requests them, and a retention process that is killed while it writes one."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

from inference_store.export.blob_choices import BlobChoice
from inference_store.export.jobs.job import ExportJob, State, find_job
from inference_store.export.jobs.question import Included, describe_question
from inference_store.export.jobs.state_changes import request_export
from inference_store.platform.settings import RetentionSettings
from tests.kill_chain import KillChain
from tests.polling import until
from tests.servers.minio_user import MinioUser
from tests.service_process import Service

from .stored import NOW, Storing


async def request_all(
    storing: Storing,
    model: int,
    format: str = "jsonl",
    *,
    include: Sequence[Included] = ("metadata", "predictions"),
    blobs: BlobChoice = "none",
) -> UUID:
    """Request an export of all inferences of a model."""
    id = uuid4()
    async with storing.engine.begin() as connection:
        document = await describe_question(
            connection, model, None, text=None, since=None, until=NOW, include=include, blobs=blobs
        )
        await request_export(
            connection,
            id,
            model=model,
            format=format,
            document=document,
            requested_by="test",
            expires_at=NOW + timedelta(days=1),
        )
    return id


async def read_job(storing: Storing, id: UUID) -> ExportJob:
    """Return the export as it is now."""
    job = await storing.transact(find_job, id)
    assert job is not None
    return job


async def wait_for(storing: Storing, id: UUID, state: State) -> ExportJob:
    """Wait until the export is in a state, and return it."""

    async def ask() -> ExportJob:
        return await read_job(storing, id)

    return await until(ask, lambda job: job.state == state)


def find_objects(storing: Storing, prefix: str) -> list[str]:
    """Return the keys under a prefix."""
    return [
        item.place.key for item in storing.blobs.page(storing.bucket, prefix, after="", limit=99)
    ]


def sign_in_as(user: MinioUser, settings: RetentionSettings) -> RetentionSettings:
    """Return settings with the key of a user of the object store."""
    keys = {"s3_access_key": user.access_key, "s3_secret_key": user.secret_key}
    return RetentionSettings.model_validate(settings.model_dump() | keys)


async def run_until_killed(
    kills: KillChain, kill: str, environment: Mapping[str, str], folder: Path
) -> Service:
    """Run a retention process until a failpoint kills it, and return what it was."""
    failing = Service("retention", {**environment, "INFERENCE_STORE_FAILPOINT": kill}, folder)
    await kills.wait_until_killed(failing)
    return failing


@asynccontextmanager
async def run_service(environment: Mapping[str, str], folder: Path) -> AsyncIterator[Service]:
    """Run a retention process."""
    service = Service("retention", dict(environment), folder)
    try:
        yield service
    finally:
        await asyncio.to_thread(service.stop)
