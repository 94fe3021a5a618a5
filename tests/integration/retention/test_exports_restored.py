"""A Postgres that was restored from an older backup finds exports in the bucket again."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic import SecretStr
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.log.keys import new_key
from inference_store.index import partitions, registrations
from inference_store.index.tables import export_job, inference
from inference_store.inference.events.uid import received_at_of
from inference_store.platform.settings import RetentionSettings
from tests.integration.backups import Backup, Restore, backup, restore

from .exported import export_all, plant
from .leading import lead
from .stored import Stored, Storing, ago
from .test_certificates import list_erasures
from .test_exports import read_bucket

__all__ = ["backup", "restore"]


@pytest.fixture
def settings(settings: RetentionSettings) -> RetentionSettings:
    return settings.model_copy(update={"certificate_key": SecretStr(new_key().pem)})


@pytest.mark.long
async def test_an_export_that_postgres_lost_is_found_by_an_erasure(
    storing: Storing, settings: RetentionSettings, backup: Backup, restore: Restore
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 25, ago(days=1))
    dump = backup()
    exported = await export_all(storing.engine, storing.blobs, members)
    before, parts_before = await exported.job(), await exported.parts()
    await exported.download("key:reader")
    older = await restore(dump)
    async with older.connect() as connection:
        assert (await connection.execute(select(export_job))).all() == []
    exported = replace(exported, engine=older)
    await lead(older, storing.blobs, settings)
    job, parts = await exported.job(), await exported.parts()
    assert (job.state, job.members, job.rows, job.lists) == ("done", 25, 25, 3)
    assert (job.bytes, job.expires_at, job.requested_by) == (
        *(before.bytes, before.expires_at),
        "key:exporter",
    )
    same = ("number", "first", "last", "uids", "state", "storage_key", "rows", "bytes", "sha256")
    for name in same:
        assert [getattr(part, name) for part in parts] == [getattr(p, name) for p in parts_before]
    await Storing(older, storing.blobs, storing.bucket).request(members[0])
    await lead(older, storing.blobs, settings)
    assert plant(members[0].uid) not in read_bucket(storing)
    assert members[0].uid.bytes not in read_bucket(storing)
    [certificate] = await list_erasures(older)
    assert certificate["exports"] == [
        {
            **{"export": str(exported.id), "inferences": 1, "parts_deleted": 1},
            **{"downloads": [], "restored": True},
        }
    ]
    unknown = f"export {exported.id}: who downloaded it before Postgres was restored is unknown"
    assert {"where": unknown, "clear_at": None} in certificate["remains"]


async def bring_back(older: AsyncEngine, newer: AsyncEngine, members: Sequence[Stored]) -> int:
    """Register the model, and store its inferences, as the ingester does; return its integer."""
    async with older.begin() as connection:
        model = await registrations.ensure(connection, "model")
    times = [received_at_of(stored.uid) for stored in members]
    await partitions.make_missing(older, times, target=5_000_000)
    async with newer.connect() as connection:
        rows = (await connection.execute(select(inference))).mappings().all()
    async with older.begin() as connection:
        await connection.execute(insert(inference), [{**row, "model": model} for row in rows])
    return model


@pytest.mark.long
@pytest.mark.parametrize("expires_in", [timedelta(days=7), timedelta(seconds=-1)])
async def test_an_export_is_found_whose_model_comes_back_after_the_restore(
    storing: Storing,
    settings: RetentionSettings,
    backup: Backup,
    restore: Restore,
    expires_in: timedelta,
) -> None:
    dump = backup()
    await storing.model("another")
    members = await storing.inferences(await storing.model(), 12, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, members, expires_in=expires_in)
    older = await restore(dump)
    await lead(older, storing.blobs, settings)
    model = await bring_back(older, storing.engine, members)
    await Storing(older, storing.blobs, storing.bucket).request(replace(members[0], model=model))
    await lead(older, storing.blobs, settings)
    assert plant(members[0].uid) not in read_bucket(storing)
    assert members[0].uid.bytes not in read_bucket(storing)
    [certificate] = await list_erasures(older)
    [named] = certificate["exports"]
    assert (named["export"], named["inferences"], named["restored"]) == (str(exported.id), 1, True)
    if expires_in > timedelta():
        assert "part 1" in exported.objects()
        assert (await replace(exported, engine=older).job()).document["keys"] == []


@pytest.mark.long
async def test_what_an_erasure_took_since_the_backup_goes_again(
    storing: Storing, settings: RetentionSettings, backup: Backup, restore: Restore
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 12, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, members)
    dump = backup()
    await storing.request(members[0])
    await lead(storing.engine, storing.blobs, settings)
    assert members[0].uid.bytes not in read_bucket(storing)
    older = await restore(dump)
    exported = replace(exported, engine=older)
    # written again since, under a key that the backup does not have
    assert "part 1" in exported.objects()
    await lead(older, storing.blobs, settings)
    assert exported.objects() == {"export.json", "manifest.json", "part 2"} | {
        f"members/{number:05}" for number in (1, 2)
    }
    await Storing(older, storing.blobs, storing.bucket).request(members[0])
    await lead(older, storing.blobs, settings)
    assert "part 1" in exported.objects()
    assert members[0].uid.bytes not in read_bucket(storing)
    assert (await exported.job()).state == "done"


@pytest.mark.long
async def test_one_that_was_not_done_is_imported_as_failed_with_its_objects(
    storing: Storing, settings: RetentionSettings
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 12, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, members)
    storing.blobs.delete_objects([exported.key(f"exports/{exported.id}/manifest.json")])
    await exported.forget()
    # neither is an export
    for name in ("no-uuid/export.json", f"{members[0].uid}/export.json"):
        storing.blobs.put(exported.key(f"exports/{name}"), b"{}", content_type="application/json")
    await lead(storing.engine, storing.blobs, settings)
    job = await exported.job()
    assert job.state == "failed"
    assert "request it again" in job.error
    assert [part.state for part in await exported.parts()] == ["writing", "writing"]
    await storing.request(members[11])
    await lead(storing.engine, storing.blobs, settings)
    assert "part 1" in exported.objects()
    assert "part 2" not in exported.objects()


async def test_one_that_expired_meanwhile_is_deleted_and_its_lists_stay_known(
    storing: Storing, settings: RetentionSettings
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 3, ago(days=1))
    exported = await export_all(
        storing.engine, storing.blobs, members, expires_in=timedelta(seconds=-1)
    )
    await exported.forget()
    await lead(storing.engine, storing.blobs, settings)
    assert exported.objects() == set()
    assert (await exported.job()).state == "expired"
    [part] = await exported.parts()
    assert (part.state, len(part.uids)) == ("removed", 3 * 16)
