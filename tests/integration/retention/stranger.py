"""A stranger who is given copies of what Postgres and the bucket have of certificates, and who
checks them with the verifiers of `examples/` alone."""

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from examples import verify_certificates, verify_entry
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.hash_chain import canonical
from inference_store.erasure.log import ChainHead, SigningKey
from inference_store.erasure.proofs import SIGNED
from inference_store.index.tables import certificate, inference
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.objects.listing import inventory
from inference_store.platform.settings import RetentionSettings

_LEDGER, _LISTS = "ledger/", "certificates/leaves/"


class Stranger:
    """Each look copies everything again into `folder`."""

    def __init__(self, engine: AsyncEngine, settings: RetentionSettings, folder: Path) -> None:
        self._engine = engine
        self._settings = settings
        self._folder = folder
        self._copies = count()

    async def faults(self, *trusted: SigningKey, heads: bool = True) -> list[str]:
        """Return the faults of either copy, and of the versions of the head."""
        messages = []
        for copy in (self.copy_bucket(), await self._copy_postgres()):
            chain = verify_certificates.Chain(copy, {key.id for key in trusted})
            messages += [f"{copy.name}: {fault}" for fault in chain.faults()]
            messages += chain.head_faults() if heads else ()
        return messages

    async def there_again(self, key: SigningKey) -> list[str]:
        """The rows and the objects that are there, and in a list of the bucket."""
        secret = verify_entry.hashing_key(key.pem.encode())
        things = [str(held.key) for held in inventory(self._settings)]
        async with self._engine.connect() as connection:
            things += map(str, (await connection.execute(select(inference.c.uid))).scalars())
        copy = self.copy_bucket()
        lists = b"".join(file.read_bytes() for file in (copy / "lists").iterdir())
        entries = {thing: verify_entry.entries_of(secret, thing) for thing in things}
        return [thing for thing, these in entries.items() if verify_entry.is_in(lists, these)]

    def copy_bucket(self) -> Path:
        """Copy what is signed out of the ledger's entries, and the lists."""
        copy = self._new("bucket")
        with Blobs(self._settings) as blobs:
            signed = []
            for name in self._list(blobs, _LEDGER):
                entry = json.loads(self._read(blobs, name))
                signed += [canonical(entry["body"])] if entry["kind"] in SIGNED else []
            _write(copy, dict(enumerate(signed, 1)))
            self._copy_rest(blobs, copy)
        return copy

    async def _copy_postgres(self) -> Path:
        copy, here = self._new("postgres"), certificate.c
        async with self._engine.connect() as connection:
            rows = await connection.execute(select(here.number, here.signed))
            _write(copy, {row.number: row.signed for row in rows})
        with Blobs(self._settings) as blobs:
            self._copy_rest(blobs, copy)
        return copy

    def _copy_rest(self, blobs: Blobs, copy: Path) -> None:
        for number, version in enumerate(ChainHead(self._settings, lock_days=0).versions()):
            (copy / "heads" / str(number)).write_bytes(version.data)
        for name in self._list(blobs, _LISTS):
            with (copy / "lists" / name.removeprefix(_LISTS)[:64]).open("ab") as file:
                file.write(self._read(blobs, name))

    def _list(self, blobs: Blobs, prefix: str) -> list[str]:
        bucket = self._settings.s3_bucket
        listed = blobs._minio.list_objects(bucket, prefix=prefix, recursive=True)
        return [str(listed_object.object_name) for listed_object in listed]

    def _read(self, blobs: Blobs, name: str) -> bytes:
        return blobs.get(StorageKey(self._settings.s3_bucket, name), limit=2**26)

    def _new(self, name: str) -> Path:
        folder = self._folder / f"{name}-{next(self._copies)}"
        folder.mkdir()
        return folder


def _write(copy: Path, signed: Mapping[int, str]) -> None:
    for name in ("lists", "heads"):
        (copy / name).mkdir()
    for number, text in signed.items():
        (copy / f"{number:010}.json").write_text(text)
