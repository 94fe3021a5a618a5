"""What erasing is held against: plain DELETEs of the same rows, and S3's own bulk deletes."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from os.path import commonprefix
from uuid import UUID

import obstore
from minio import Minio
from minio.deleteobjects import DeleteObject
from obstore.store import S3Store
from sqlalchemy import any_, literal, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.events import StoredObject
from inference_store.index import registrations
from inference_store.index.tables import PARTITIONED, inference
from inference_store.objects.deletion import THREADS

_BATCH = 1000
_PAGE = 1000  # what one request of S3 takes


Delete = Callable[[Sequence[StoredObject]], None]


async def measure_plain_deletes(engine: AsyncEngine, model_id: str, count: int) -> float:
    """Inferences a second: DELETEs by their keys, 1,000 a transaction, and nothing else."""
    async with engine.connect() as connection:
        model = (await registrations.get(connection, model_id)).model
        query = select(inference.c.uid).where(inference.c.model == model)
        uids = sorted((await connection.execute(query)).scalars())
    if len(uids) != count:
        raise RuntimeError(f"{len(uids)} are stored, not {count}")
    started = time.perf_counter()
    for at in range(0, count, _BATCH):
        await _delete(engine, model, uids[at : at + _BATCH])
    return count / (time.perf_counter() - started)


async def _delete(engine: AsyncEngine, model: int, uids: Sequence[UUID]) -> None:
    listed = any_(literal(list(uids), ARRAY(UUID_TYPE(as_uuid=True))))
    async with engine.begin() as connection:
        for table in reversed(PARTITIONED):
            here = (table.c.model == model, table.c.uid >= uids[0], table.c.uid <= uids[-1])
            await connection.execute(table.delete().where(*here, table.c.uid == listed))


def measure_bulk_deletes(delete: Delete, objects: Sequence[StoredObject]) -> float:
    """Objects a second: 1,000 a request, as many in flight as an erasure has."""
    pages = [objects[start : start + _PAGE] for start in range(0, len(objects), _PAGE)]
    with ThreadPoolExecutor(THREADS) as threads:
        started = time.perf_counter()
        list(threads.map(delete, pages))
        return len(objects) / (time.perf_counter() - started)


def measure_lists(client: Minio, bucket: str, objects: Sequence[StoredObject]) -> float:
    """Objects a second: every version under their common prefix, page after page.

    Who deletes versions must list them first, since S3 deletes none without its id.
    """
    # S3's prefixes consist of characters, not of path segments
    prefix = commonprefix([stored.key for stored in objects])  # noqa: RUF071
    started = time.perf_counter()
    listed = client.list_objects(bucket, prefix, recursive=True, include_version=True)
    versions = {StoredObject(str(each.object_name), each.version_id) for each in listed}
    seconds = time.perf_counter() - started
    if missing := {*objects} - versions:
        raise RuntimeError(f"{len(missing)} of {len(objects)} versions are not listed")
    return len(objects) / seconds


def make_delete(store: S3Store, client: Minio, bucket: str, *, versioned: bool) -> Delete:
    """Return the bare client that deletes: obstore is faster, and cannot name a version."""
    if versioned:
        return partial(_delete_by_minio, client, bucket)
    return lambda page: obstore.delete(store, [stored.key for stored in page])


def _delete_by_minio(client: Minio, bucket: str, page: Sequence[StoredObject]) -> None:
    objects = [DeleteObject(stored.key, stored.version) for stored in page]
    if faults := list(client.remove_objects(bucket, objects)):
        raise RuntimeError(str(faults[0]))
