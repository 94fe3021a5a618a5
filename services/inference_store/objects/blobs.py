"""The blobs of inferences, in any S3."""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from io import BytesIO
from threading import Lock
from typing import Literal, Self

from minio import Minio
from minio.error import S3Error
from obstore.store import S3Store

from inference_store.inference.errors import (
    AccessDenied,
    BlobForbidden,
    BlobMissing,
    BlobsAway,
    BlobTooLarge,
)
from inference_store.inference.events import Buckets, StorageKey
from inference_store.inference.layout import CLOSED
from inference_store.platform.settings import BlobSettings

from .clients import away, minio_client, obstore_client
from .deletion import Deleted, DeleteFault, Deletion, Listed
from .encryption import minio_encryption
from .keys import is_addressable, is_plain
from .listing import first_after
from .locks import locked_until
from .pages import Found, page
from .reading import Fetched, get_many, get_odd, get_plain, refuse_size
from .streaming import BlobStream, stream_plain, stream_whole
from .writing import put_many, put_plain

_NO_LIMIT = 1 << 62
# A name that nobody gives: asked for to see whether a bucket answers.
_NO_OBJECT = "inference-store-asks-for-what-is-not-there"
# How many of a bucket's objects are remembered: one of them may itself be refused alone.
_REMEMBERED = 4
NOT_ALLOWED = "it is no longer among the allowed buckets (INFERENCE_STORE_S3_ALLOWED_BUCKETS)"


class Blobs:
    """Reads, writes and deletes blobs; may be shared between threads, is closed once.

    All but `stream` block: from a coroutine, `await asyncio.to_thread(blobs.get, key, …)`.
    """

    def __init__(self, settings: BlobSettings, *, threads: int = 16) -> None:
        self._settings = settings
        self._stores: dict[str, S3Store] = {}
        # by bucket, the objects that were given last
        self._given: dict[str, tuple[StorageKey, ...]] = {}
        self._lock = Lock()
        self._minio: Minio = minio_client(settings, settings.s3_endpoint)
        self._public = minio_client(settings, settings.s3_public_endpoint or settings.s3_endpoint)
        self._encryption = minio_encryption(settings)
        self._deletion = Deletion(self._minio)
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="blobs-get")
        closed = (settings.ledger_prefix, *CLOSED)
        self.buckets = Buckets(settings.s3_bucket, settings.buckets, closed)

    def parse(self, text: str) -> StorageKey:
        """The place that an event's storage key names.

        Raises ValueError, naming the remedy, for a bucket that is not allowed and for a key
        that S3 cannot hold.
        """
        return self.buckets.resolve(text)

    def get(self, key: StorageKey, *, limit: int) -> bytes:
        """An object of at most `limit` bytes. Raises BlobMissing, BlobTooLarge, BlobsAway."""
        if is_plain(key.key):
            return get_plain(self._store(key.bucket), key, limit)
        return self._get_odd(key, limit)[0]

    def get_many(
        self,
        keys: Sequence[StorageKey | None],
        *,
        limit: int,
        threads: int | None = None,
        budget: int | None = None,
    ) -> list[Fetched]:
        """One result a key, in order: bytes, None for no key, or what is wrong with the object:
        BlobMissing, BlobForbidden, BlobTooLarge.

        `limit`: bytes of one object. `budget`: bytes of all; what is asked for after it is
        full is OVER_BUDGET, the first key never. Raises BlobsAway when S3 cannot be asked.
        """
        return get_many(
            self._executor,
            partial(self._get_or_forbidden, limit=limit),
            keys,
            threads=min(threads or self._threads, self._threads),
            budget=_NO_LIMIT if budget is None else budget,
        )

    async def stream(self, key: StorageKey) -> BlobStream:
        """An object piece by piece. Raises BlobMissing and BlobsAway before the first piece."""
        if is_plain(key.key):
            return await stream_plain(self._store(key.bucket), key)
        return stream_whole(*await asyncio.to_thread(self._get_odd, key, _NO_LIMIT))

    def head(self, key: StorageKey) -> int:
        """An object's size in bytes. Raises BlobMissing, BlobsAway."""
        self._refuse_unaddressable(key)
        self._refuse_strange(key.bucket)
        with away():
            try:
                return self._minio.stat_object(key.bucket, key.key).size or 0
            except S3Error as exc:
                # 400: a key that this server cannot hold. The answer to a HEAD has no body,
                # so the bucket has to be asked for.
                if exc.response.status in {400, 404} and self._minio.bucket_exists(key.bucket):
                    raise BlobMissing(f"{key} is not there") from exc
                raise

    def put(self, key: StorageKey, data: bytes, *, content_type: str) -> None:
        """Write an object, over whatever is there. Raises BlobsAway, AccessDenied for a 403."""
        if not is_plain(key.key):
            self._refuse_strange(key.bucket)
            with away():
                self._minio.put_object(
                    key.bucket,
                    key.key,
                    BytesIO(data),
                    len(data),
                    content_type,
                    sse=self._encryption,
                )
            return
        put_plain(self._store(key.bucket), key, data, content_type=content_type)

    def put_new(self, key: StorageKey, data: bytes, *, content_type: str) -> bool:
        """Write an object where none is; False: one is there. Raises BlobsAway.

        A store that does not know conditional writes (RFC 9110's If-None-Match) writes over it.
        """
        store = self._store(key.bucket)
        return put_plain(store, key, data, content_type=content_type, only_new=True)

    def first_after(self, bucket: str, prefix: str, after: str) -> str | None:
        """The first name under a prefix that is greater than `after`. Raises BlobsAway."""
        self._refuse_strange(bucket)
        with away():
            return first_after(self._minio, bucket, prefix, after)

    def put_many(self, objects: Sequence[tuple[StorageKey, bytes]], *, content_type: str) -> None:
        """Write objects, by threads; when it returns or raises none is on its way any more.

        Raises BlobsAway; some of them may be there then.
        """
        one = partial(self.put, content_type=content_type)
        put_many(self._executor, one, objects, threads=self._threads)

    def replace(self, key: StorageKey, data: bytes, *, content_type: str) -> list[DeleteFault]:
        """Write an object and delete what it was before, in every version. Raises BlobsAway."""
        self.put(key, data, content_type=content_type)
        return self._deletion.delete_older(key)

    def delete_hidden(self, key: StorageKey) -> list[DeleteFault]:
        """As `Deletion.delete_hidden`. Raises BlobsAway."""
        self._refuse_strange(key.bucket)
        return self._deletion.delete_hidden(key)

    def presign(self, key: StorageKey, seconds: int) -> str:
        """A link that reads the object for so many seconds, from where clients are.

        Raises BlobMissing for what no link can read: a strange bucket, `.` and `..`; BlobsAway.
        """
        self._refuse_unaddressable(key)
        if key.bucket not in self.buckets.allowed:
            raise BlobMissing(f"bucket {key.bucket}: {NOT_ALLOWED}")
        with away():
            return self._public.presigned_get_object(
                key.bucket, key.key, timedelta(seconds=seconds)
            )

    def list_versions(self, keys: Iterable[StorageKey]) -> Listed:
        """As `Deletion.list_versions`, of buckets that may be touched. Raises BlobsAway."""
        return self._deletion.list_versions(self._sorted_out(keys)[0])

    def delete_objects(self, keys: Iterable[StorageKey], listed: Listed | None = None) -> Deleted:
        """As `Deletion.delete`; missing objects are no fault. Raises BlobsAway."""
        ours, strange = self._sorted_out(keys)
        deleted = self._deletion.delete(ours, listed)
        deleted[:0] = [DeleteFault(key, "BucketNotAllowed", NOT_ALLOWED) for key in strange]
        return deleted

    def still_there(self, keys: Iterable[StorageKey]) -> list[StorageKey]:
        """Those of `keys` that are listed still, in any version. Raises BlobsAway."""
        ours, strange = self._sorted_out(keys)
        return strange + self._deletion.still_there(ours)

    def page(self, bucket: str, prefix: str, *, after: str, limit: int) -> list[Found]:
        """The first objects under a prefix behind the key `after`, in the order of their keys.

        Fewer than `limit`: there are no more. Raises BlobsAway.
        """
        self._refuse_strange(bucket)
        with away():
            return page(self._minio, bucket, prefix, after, limit)

    def locked_until(self, key: StorageKey) -> datetime | None:
        """As `locks.locked_until`."""
        return None if key.bucket not in self.buckets.allowed else locked_until(self._minio, key)

    def check(self) -> None:
        """Raise BlobsAway, saying why, unless the default bucket answers."""
        bucket = self._settings.s3_bucket
        with away():
            if not self._minio.bucket_exists(bucket):
                raise BlobsAway(f"the bucket {bucket} is not there")

    def close(self) -> None:
        """End the threads; nothing may be asked afterwards."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._deletion.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _store(self, bucket: str) -> S3Store:
        self._refuse_strange(bucket)
        with self._lock:
            if bucket not in self._stores:
                self._stores[bucket] = obstore_client(self._settings, bucket)
            return self._stores[bucket]

    def _sorted_out(self, keys: Iterable[StorageKey]) -> tuple[list[StorageKey], list[StorageKey]]:
        """The keys in buckets that may be touched, and the others."""
        found = list(keys)
        strange = [key for key in found if key.bucket not in self.buckets.allowed]
        return [key for key in found if key.bucket in self.buckets.allowed], strange

    def _get_or_forbidden(self, key: StorageKey, *, limit: int) -> bytes:
        """As `get`; and BlobForbidden for an object that alone is refused."""
        try:
            found = self.get(key, limit=limit)
        except AccessDenied as exc:
            if self._gives_others(key.bucket):
                raise BlobForbidden(f"{key} alone is refused: {exc}") from exc
            raise
        given = self._given.get(key.bucket, ())
        if key not in given:
            self._given[key.bucket] = (key, *given[: _REMEMBERED - 1])
        return found

    def _gives_others(self, bucket: str) -> bool:
        """Whether the bucket gives another object now.

        Asked after each refusal: wrong credentials, a policy over the whole bucket and a key of
        SSE-KMS that is disabled refuse what was given before, too. What is not there tells less,
        since no key is needed to say so: asked for only where nothing that was given is left.
        """
        refused = False
        for other in self._given.get(bucket, ()):
            match self._answer(other):
                case "given":
                    return True
                case "refused":
                    refused = True
        return not refused and self._answer(StorageKey(bucket, _NO_OBJECT)) != "refused"

    def _answer(self, key: StorageKey) -> Literal["given", "missing", "refused"]:
        """What S3 says to a GET. Raises BlobsAway."""
        try:
            self.get(key, limit=0)
        except AccessDenied:
            return "refused"
        except BlobMissing:
            return "missing"
        except BlobTooLarge:
            pass
        return "given"

    def _get_odd(self, key: StorageKey, limit: int) -> tuple[bytes, str | None]:
        """The same by the other client, for keys that obstore would turn into others."""
        refuse_size(key, self.head(key), limit)
        return get_odd(self._minio, key)

    def _refuse_strange(self, bucket: str) -> None:
        if bucket not in self.buckets.allowed:
            raise BlobsAway(f"bucket {bucket}: {NOT_ALLOWED}")

    def _refuse_unaddressable(self, key: StorageKey) -> None:
        if not is_addressable(key.key):
            raise BlobMissing(f"{key}: no client can address `.` and `..`")
