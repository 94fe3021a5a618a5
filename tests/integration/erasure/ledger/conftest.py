"""A ledger on a real database and a real bucket, and databases that are older backups of it."""

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.ledger import KINDS, Body, Kind, Ledger
from inference_store.objects import Blobs
from tests.integration.backups import Restore, backup, restore
from tests.integration.retention.conftest import blobs, settings

__all__ = ["Restore", "backup", "blobs", "restore", "settings"]

PREFIX = "ledger/"


async def note_down(connection: AsyncConnection, body: Body, _: datetime, actor: str) -> str:
    """A kind of our own: its effect is a row, written once however often it is applied."""
    statement = text("INSERT INTO noted VALUES (:word) ON CONFLICT DO NOTHING")
    await connection.execute(statement, {"word": body["word"]})
    return f"{actor} said {body['word']}"


OWN_KINDS = (
    Kind("word", "A word was said.", note_down),
    Kind("unrehearsed", "A word was said, untried.", note_down, rehearsed=False),
)


def make_ledger(engine: AsyncEngine, blobs: Blobs, **more: Any) -> Ledger:
    return Ledger(engine, blobs, prefix=PREFIX, kinds=(*KINDS, *OWN_KINDS), **more)


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
