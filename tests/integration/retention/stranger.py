"""A stranger who is given copies of what Postgres and the bucket have of certificates, and who
checks them with the verifiers of `examples/` alone."""

from itertools import count
from pathlib import Path

from examples import verify_certificates, verify_entry
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.log import CERTIFICATES_HEAD as HEAD
from inference_store.erasure.log import NotSigned, SigningKey, read_document
from inference_store.index.tables import certificate, erased_leaves, inference
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.objects.bucket import LockedObject
from inference_store.objects.listing import inventory
from inference_store.platform.settings import RetentionSettings

_PREFIX = "certificates/"


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
            messages += chain.head_faults(self._heads()) if heads else ()
        return messages

    async def there_again(self, key: SigningKey) -> list[str]:
        """The rows and the objects that are there, and in a list of the bucket."""
        secret = verify_entry.hashing_key(key.pem.encode())
        things = [str(held.key) for held in inventory(self._settings)]
        async with self._engine.connect() as connection:
            things += map(str, (await connection.execute(select(inference.c.uid))).scalars())
        copy = self.copy_bucket()
        roots = [folder.name for folder in (copy / "leaves").glob("*")]
        lists = b"".join(verify_certificates.list_of(copy, root) for root in roots)
        entries = {thing: verify_entry.entries_of(secret, thing) for thing in things}
        return [thing for thing, these in entries.items() if verify_entry.is_in(lists, these)]

    def copy_bucket(self) -> Path:
        """Copy a prefix as a client of S3 does."""
        copy, bucket = self._new("bucket"), self._settings.s3_bucket
        with Blobs(self._settings) as blobs:
            listed = blobs._minio.list_objects(bucket, prefix=_PREFIX, recursive=True)
            for name in [str(listed_object.object_name) for listed_object in listed]:
                path = copy / name.removeprefix(_PREFIX)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(blobs.get(StorageKey(bucket, name), limit=2**26))
        return copy

    async def _copy_postgres(self) -> Path:
        copy, here = self._new("postgres"), certificate.c
        async with self._engine.connect() as connection:
            for number, signed in await connection.execute(select(here.number, here.signed)):
                (copy / f"{number:010}.json").write_text(signed)
                query = select(erased_leaves.c.leaves).order_by(erased_leaves.c.id)
                leaves = await connection.execute(
                    query.where(erased_leaves.c.certificate == number)
                )
                _write_list(copy, signed, b"".join(map(bytes, leaves.scalars())))
        return copy

    def _heads(self) -> Path:
        folder = self._new("heads")
        head = LockedObject(self._settings, StorageKey(self._settings.s3_bucket, HEAD))
        for number, text in enumerate(head.versions(limit=2**20)):
            (folder / str(number)).write_bytes(text)
        return folder

    def _new(self, name: str) -> Path:
        folder = self._folder / f"{name}-{next(self._copies)}"
        folder.mkdir()
        return folder


def _write_list(copy: Path, signed: str, leaves: bytes) -> None:
    """Write the list under the root that the certificate names, if it names one."""
    try:
        root = read_document(signed).document.get("leaves", {}).get("root")
    except NotSigned:
        return
    if root is not None:
        folder = copy / "leaves" / root
        folder.mkdir(parents=True)
        (folder / "000001").write_bytes(leaves)
