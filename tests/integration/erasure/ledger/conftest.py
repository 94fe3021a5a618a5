"""A ledger on a real database and a real bucket, and databases that are older backups of it."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.ledger import Body, Kind, Ledger
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from tests.integration.backups import Restore, backup, restore
from tests.servers.minio import S3

__all__ = ["Restore", "backup", "restore"]

PREFIX = "ledger/"


async def note_down(connection: AsyncConnection, body: Body, _: datetime, actor: str) -> str:
    """A kind of our own: its effect is a row, written once however often it is applied."""
    statement = text("INSERT INTO noted VALUES (:word) ON CONFLICT DO NOTHING")
    await connection.execute(statement, {"word": body["word"]})
    return f"{actor} said {body['word']}"


KINDS = (
    Kind("word", "A word was said.", note_down),
    Kind("unrehearsed", "A word was said, untried.", note_down, rehearsed=False),
)


@pytest.fixture
def settings(database: str, minio_server: S3, bucket: str) -> RetentionSettings:
    return RetentionSettings.model_validate(
        {
            "postgres_dsn": database,
            "s3_endpoint": minio_server.endpoint,
            "s3_access_key": minio_server.access_key,
            "s3_secret_key": minio_server.secret_key,
            "s3_bucket": bucket,
        }
    )


@pytest.fixture
def blobs(settings: RetentionSettings) -> Iterator[Blobs]:
    with Blobs(settings) as opened:
        yield opened


def make_ledger(engine: AsyncEngine, blobs: Blobs, **more: Any) -> Ledger:
    from inference_store.erasure.ledger import KINDS as ALL  # noqa: PLC0415  (the name is ours here)

    return Ledger(engine, blobs, prefix=PREFIX, kinds=(*ALL, *KINDS), **more)


@pytest.fixture
async def ledger(engine: AsyncEngine, blobs: Blobs) -> Ledger:
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE noted (word text PRIMARY KEY)"))
    return make_ledger(engine, blobs)


async def list_words(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set((await connection.execute(text("SELECT word FROM noted"))).scalars())


async def read_head(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        number = await connection.scalar(text("SELECT number FROM ledger_head"))
    return int(number or 0)
