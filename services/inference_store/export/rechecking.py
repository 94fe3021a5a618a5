"""Reads what exports list, and which deleted parts are in the bucket: certificates are checked
against that."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final
from uuid import UUID

from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.parts import MEMBERS, PARTS, unpack_uids
from inference_store.index.tables import export_erased, export_part
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import EXPORTS
from inference_store.objects import Blobs
from inference_store.objects.listing import Held

_LIST_BYTES: Final = 64 * 1024 * 1024
_KEYS: Final = 1000


class ExportRecheck:
    """Checks once. The objects of exports are collected while all objects of the buckets pass."""

    def __init__(self, engine: AsyncEngine, blobs: Blobs) -> None:
        self._engine = engine
        self._blobs = blobs
        self._lists: list[StorageKey] = []
        self._parts: list[StorageKey] = []

    def pass_objects(self, objects: Iterable[Held]) -> Iterator[Held]:
        """Yield the objects, and collect those of exports."""
        for held in objects:
            if held.key.bucket == self._blobs.buckets.default:
                _, _, name = held.key.key.removeprefix(EXPORTS).partition("/")
                if held.key.key.startswith(EXPORTS) and name.startswith((MEMBERS, PARTS)):
                    (self._lists if name.startswith(MEMBERS) else self._parts).append(held.key)
            yield held

    async def list_members(self) -> AsyncIterator[tuple[UUID, str]]:
        """Yield what is listed, in Postgres and then in the bucket, and a text that says where."""
        here, after = export_part.c, (UUID(int=0), -1)
        order = (here.export, here.number)
        query = select(*order, here.uids).order_by(*order).limit(1)
        async with self._engine.connect() as connection:
            while (
                row := (
                    await connection.execute(query.where(tuple_(*order) > tuple_(*after)))
                ).first()
            ) is not None:
                for uid in unpack_uids(bytes(row.uids)):
                    yield uid, f"{uid} is in list {row.number} of export {row.export} in Postgres"
                after = row.export, row.number
        for key in dict.fromkeys(self._lists):
            for uid in await asyncio.to_thread(self._read_list, key):
                yield uid, f"{uid} is in {key}"

    async def find_undeleted(self) -> AsyncIterator[str]:
        """Yield parts in the bucket that an erasure has deleted."""
        here = export_erased.c
        keys = [str(key) for key in dict.fromkeys(self._parts)]
        async with self._engine.connect() as connection:
            for at in range(0, len(keys), _KEYS):
                query = (
                    select(here.storage_key)
                    .distinct()
                    .where(
                        here.storage_key.in_(keys[at : at + _KEYS]), here.deleted_at.is_not(None)
                    )
                )
                for name in (await connection.execute(query)).scalars():
                    yield f"{name} is in the bucket, and an erasure deleted it"

    def _read_list(self, key: StorageKey) -> list[UUID]:
        """Read a list of the bucket; nothing if only older versions are there. Blocks."""
        try:
            return unpack_uids(self._blobs.get(key, limit=_LIST_BYTES))
        except BlobMissing:
            return []
