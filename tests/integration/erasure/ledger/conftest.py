"""A ledger on a real database and a real bucket, and databases that are older backups of it."""

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.ledger import Ledger
from inference_store.erasure.ledger_entries import KINDS, Body, Kind
from inference_store.objects import Blobs
from tests.integration.backups import Restore, backup, restore
from tests.integration.retention.conftest import blobs, settings
from tests.transactions import execute, fetch, scalar

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
    await execute(engine, "CREATE TABLE noted (word text PRIMARY KEY)")
    return make_ledger(engine, blobs)


async def list_words(engine: AsyncEngine) -> set[str]:
    return set(await fetch(engine, "SELECT word FROM noted"))


async def read_head(engine: AsyncEngine) -> int:
    number = await scalar(engine, "SELECT number FROM ledger_head")
    return int(number or 0)
