"""Certificates name the exports that erasures reached, and `certificates verify` looks at them."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certify import chain
from inference_store.erasure.log.keys import new_key
from inference_store.erasure.log.signed_document import read_document
from inference_store.erasure.mark.held_deletions import resume_released
from inference_store.index.tables import export_part
from inference_store.objects import Blobs
from inference_store.retention.certifier import Certifier
from inference_store.retention.eraser import Eraser
from tests.warm.process import run_command

from .conftest import NoPace
from .exported import export_all
from .holding import place_hold, release_hold
from .stored import Storing, ago
from .stranger import Stranger
from .test_erasures import request

KEY = new_key()
Documents = Callable[[], Awaitable[list[Mapping[str, Any]]]]


@pytest.fixture
def eraser(engine: AsyncEngine, blobs: Blobs) -> Eraser:
    certifier = Certifier(engine, blobs, [KEY], events_seconds=3600)
    return Eraser(engine, blobs, NoPace(), batch=10, certifier=certifier)


@pytest.fixture
def documents(engine: AsyncEngine) -> Documents:
    """The certificates of erasures, in order."""

    async def read() -> list[Mapping[str, Any]]:
        async with engine.connect() as connection:
            signed = [read_document(row.signed) async for row in chain.stream_rows(connection)]
        return [document.document for document in signed if document.kind == chain.CERTIFICATE]

    return read


async def test_the_exports_are_named_and_who_downloaded_them_before(
    storing: Storing,
    engine: AsyncEngine,
    blobs: Blobs,
    eraser: Eraser,
    documents: Documents,
    stranger: Stranger,
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 25, ago(days=1))
    untouched = await storing.inferences(model, 3, ago(days=2))
    exported = await export_all(engine, blobs, members)
    alone = await export_all(engine, blobs, untouched)
    await exported.download("key:reader")
    await alone.download("key:other")
    assert await eraser.finish(await request(engine, members[0], members[20])) == "certified"
    await exported.download("key:late")
    assert await eraser.finish(await request(engine, untouched[0])) == "certified"
    first, second = await documents()
    [named] = first["exports"]
    [download] = named.pop("downloads")
    assert named == {"export": str(exported.id), "inferences": 2, "parts_deleted": 2}
    assert download["by"] == "key:reader"
    [copy] = [place for place in first["remains"] if "downloaded" in place["where"]]
    where = f"export {exported.id}, downloaded by key:reader at {download['first_at']}"
    assert copy == {"where": where, "clear_at": None}
    assert [export["export"] for export in second["exports"]] == [str(alone.id)]
    assert await stranger.faults(KEY, heads=False) == []


async def test_each_certificate_of_an_erasure_names_what_no_earlier_one_does(
    storing: Storing, engine: AsyncEngine, blobs: Blobs, eraser: Eraser, documents: Documents
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 12, ago(days=1))
    exported = await export_all(engine, blobs, members)
    hold = await place_hold(engine, model, None, members[11].uid)
    erasure = await request(engine, members[0], members[11])
    assert await eraser.finish(erasure) == "partly_held"
    parts = await exported.parts()
    assert [part.state for part in parts] == ["listed", "written"]
    await release_hold(engine, hold)
    async with engine.begin() as connection:
        assert await resume_released(connection, limit=10) == 1
    assert await eraser.finish(erasure) == "certified"
    numbers = [
        [(export["inferences"], export["parts_deleted"]) for export in document["exports"]]
        for document in await documents()
    ]
    assert numbers == [[(1, 1)], [(1, 1)]]


async def test_verify_finds_what_exports_still_have(
    storing: Storing,
    engine: AsyncEngine,
    blobs: Blobs,
    eraser: Eraser,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    model = await storing.model()
    first, second, stays = await storing.inferences(model, 3, ago(days=1))
    exported = await export_all(engine, blobs, [first, second, stays])
    [before] = await exported.parts()
    await eraser.finish(await request(engine, first, second))
    with_key = environment | {"INFERENCE_STORE_CERTIFICATE_KEY": KEY.pem}

    def verify() -> tuple[int, list[str]]:
        arguments = ("verify", "--objects")
        done = run_command("certificates", *arguments, environment=with_key, folder=tmp_path)
        return done.returncode, sorted(done.stdout.splitlines())

    assert verify() == (0, [])
    in_bucket = exported.key(f"exports/{exported.id}/members/00001")
    part = exported.key(before.storage_key.partition(f"{storing.bucket}/")[2])
    for key, content in ((in_bucket, first.uid.bytes), (part, b"again")):
        blobs.put(key, content, content_type="application/octet-stream")
    async with engine.begin() as connection:
        await connection.execute(export_part.update().values(uids=second.uid.bytes))
    assert verify() == (
        1,
        sorted(
            [
                f"certificate 2: {first.uid} is in {in_bucket}",
                f"certificate 2: {second.uid} is in list 1 of export {exported.id} in Postgres",
                f"{part} is in the bucket, and an erasure deleted it",
            ]
        ),
    )
