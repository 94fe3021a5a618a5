"""The blobs of inferences in any S3 server."""

import asyncio
import hmac
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial, wraps
from hashlib import sha256
from io import BytesIO
from mmap import ACCESS_READ, mmap
from os import SEEK_END
from threading import Lock
from typing import BinaryIO, Concatenate, Final, Literal, ParamSpec, Self, TypeVar
from urllib.parse import quote, urlsplit

from minio import Minio
from minio.error import S3Error
from minio.helpers import MIN_PART_SIZE
from obstore.store import S3Store

from inference_store.inference.errors import (
    AccessDenied,
    BlobForbidden,
    BlobMissing,
    BlobTooLarge,
    ObjectStoreUnavailable,
)
from inference_store.inference.events import Buckets, StorageKey
from inference_store.inference.layout import CLOSED, member_of
from inference_store.inference.tar import Entry
from inference_store.platform.failpoints import failpoint
from inference_store.platform.settings import BlobSettings

from .clients import minio_client, minio_encryption, obstore_client, translate_errors
from .deletion import Deleted, DeleteFault, Deletion, Listed
from .links import RouteLinks
from .listing import Found, is_addressable, is_plain, page, survivors
from .rewriting import Overwritten, Rewrite, finish_segment, put_segment, read_segment
from .segments import (
    Contents,
    MemberKey,
    check_there,
    get_member,
    get_members,
    group_near,
    list_members,
    read_contents,
    stream_member,
)
from .transfers import (
    NOT_THERE,
    OVER_BUDGET,
    BlobStream,
    Fetched,
    RangesOdd,
    get_many,
    get_plain,
    get_range,
    iterate_plain,
    put_plain,
    refuse_size,
    stream_plain,
    stream_whole,
    stride,
)

_REFUSED_SECONDS: Final = 1.0
_SIGNED = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={}&X-Amz-Date={}&X-Amz-Expires={}"
P = ParamSpec("P")
T = TypeVar("T")


class Silence:
    """Whether S3 has just kept a request waiting until it timed out.

    A frozen server holds as many requests as there are threads, one time-out long. All others,
    which wait for a thread or for a lock, would wait for one time-out each: for a second after it
    they are refused without asking.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Ask, and note a silence. Raises ObjectStoreUnavailable during one."""
        began = time.monotonic()
        if began < self._until:
            raise ObjectStoreUnavailable(
                f"the object store did not answer within {self._seconds:g} s"
            )
        try:
            yield
        except ObjectStoreUnavailable:
            now = time.monotonic()
            if now - began >= self._seconds:
                self._until = now + _REFUSED_SECONDS
            raise


def asked(method: Callable[Concatenate["Blobs", P], T]) -> Callable[Concatenate["Blobs", P], T]:
    """Wrap a method that calls S3."""

    @wraps(method)
    def ask(self: "Blobs", /, *arguments: P.args, **named: P.kwargs) -> T:
        with self.silence.limited():
            return method(self, *arguments, **named)

    return ask


_NO_LIMIT = 1 << 62
# A name that no object has: requested to see whether a bucket answers.
_NO_OBJECT = "inference-store-asks-for-what-is-not-there"
# How many of a bucket's objects are remembered: one of them may itself be refused.
_REMEMBERED = 4
NOT_ALLOWED = "it is no longer among the allowed buckets (INFERENCE_STORE_S3_ALLOWED_BUCKETS)"


class Blobs:
    """Reads, writes and deletes blobs; may be shared between threads, is closed once.

    All but `stream` block: from a coroutine, `await asyncio.to_thread(blobs.get, key, …)`. Every
    method that calls S3 raises ObjectStoreUnavailable if S3 is unavailable.
    """

    def __init__(self, settings: BlobSettings, *, threads: int = 16) -> None:
        self._settings = settings
        self._stores: dict[str, S3Store] = {}
        # by bucket, the objects read last
        self._read_last: dict[str, tuple[StorageKey, ...]] = {}
        self._lock = Lock()
        self.silence = Silence(settings.s3_timeout_seconds)
        self._minio: Minio = minio_client(settings, settings.s3_endpoint)
        self._public = minio_client(settings, settings.s3_public_endpoint or settings.s3_endpoint)
        self.route_links = RouteLinks(settings)
        # by bucket: the origin of its links, and the path before a key
        self._places: dict[str, tuple[str, str]] = {}
        self._encryption = minio_encryption(settings)
        self._deletion = Deletion(self._minio)
        self._threads = threads
        self._has_odd_ranges = False
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="blobs-get")
        closed = (settings.ledger_prefix, *CLOSED)
        self.buckets = Buckets(settings.s3_bucket, settings.buckets, closed)

    def parse(self, text: str) -> StorageKey:
        """Return the storage key that an event's text names.

        Raises ValueError, naming the remedy, for a bucket that is not allowed and for a key
        that S3 cannot hold.
        """
        return self.buckets.resolve(text)

    @asked
    def get(self, key: StorageKey, *, limit: int) -> bytes:
        """Return an object of at most `limit` bytes. Raises BlobMissing, BlobTooLarge."""
        if (member := member_of(key.key)) is not None:
            return get_member(self._read_range, key, member, limit)
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
        """Return one result per key, in order: bytes, None for no key, or the object's error:
        BlobMissing, BlobForbidden, BlobTooLarge. Near members of a segment are read together.

        `limit`: the most bytes of one object. `budget`: the most bytes of all objects, and of all
        members; a key that is requested after it is used up gets OVER_BUDGET, but never the first.
        """
        threads = min(threads or self._threads, self._threads)
        budget = _NO_LIMIT if budget is None else budget
        members = list_members(keys)
        objects = list(keys)
        for asked_for in members:
            objects[asked_for.place] = None
        get_one = partial(self._get_or_forbidden, limit=limit)
        results = get_many(self._executor, get_one, objects, threads=threads, budget=budget)
        chosen: list[MemberKey] = []
        for asked_for in members:
            try:
                refuse_size(asked_for.key, asked_for.member.length, limit)
            except BlobTooLarge as too_large:
                results[asked_for.place] = too_large
                continue
            if budget > 0:
                chosen.append(asked_for)
            else:
                results[asked_for.place] = OVER_BUDGET
            budget -= asked_for.member.length
        groups = group_near(chosen)
        found = stride(self._executor, self._get_group, groups, threads=threads)
        for group, blobs in zip(groups, found, strict=True):
            for asked_for, blob in zip(group, blobs, strict=True):
                results[asked_for.place] = blob
        return results

    @asked
    def read_segment(self, key: StorageKey, wants: Callable[[Entry], bool]) -> Contents:
        """Read a segment by one request, and keep the data of the entries that are wanted. Raises
        BlobMissing; ValueError if it is none."""
        if not is_plain(key.key):
            raise ValueError("no segment of ours has such a key")
        return read_contents(iterate_plain(self._store(key.bucket), key), wants)

    async def stream(self, key: StorageKey, span: tuple[int, int] | None = None) -> BlobStream:
        """Stream an object, or the bytes from the first position of `span` to before the second.

        Raises BlobMissing, ObjectStoreUnavailable before the first piece.
        """
        if (member := member_of(key.key)) is not None:
            return await stream_member(self.stream, key, member, span)
        if is_plain(key.key) and not (span and self._has_odd_ranges):
            try:
                with self.silence.limited():
                    return await stream_plain(self._store(key.bucket), key, span)
            except RangesOdd:
                self._has_odd_ranges = True
        if is_plain(key.key) and span is not None:
            read, _ = await asyncio.to_thread(self._read_range, key, *span)
            return stream_whole(bytes(read), None)
        data, content_type = await asyncio.to_thread(self._get_odd, key, _NO_LIMIT)
        return stream_whole(data if span is None else data[slice(*span)], content_type)

    @asked
    def head(self, key: StorageKey) -> int:
        """Return an object's size in bytes. Raises BlobMissing."""
        if (member := member_of(key.key)) is not None:
            check_there(self._read_range, key, member)
            return member.length
        self._refuse_unaddressable(key)
        self._refuse_unallowed(key.bucket)
        with translate_errors():
            try:
                return self._minio.stat_object(key.bucket, key.key).size or 0
            except S3Error as exc:
                # 400: a key that this server cannot store. The answer to a HEAD has no body, so the
                # bucket has to be checked.
                if exc.response.status in {400, 404} and self._minio.bucket_exists(key.bucket):
                    raise BlobMissing(f"{key} is not there") from exc
                raise

    def exists(self, key: StorageKey) -> bool:
        """Return whether there is an object."""
        try:
            self.head(key)
        except BlobMissing:
            return False
        return True

    @asked
    def put(self, key: StorageKey, data: bytes, *, content_type: str) -> None:
        """Write an object, replacing any that exists. Raises AccessDenied for a 403."""
        _refuse_member(key)
        if is_plain(key.key):
            put_plain(self._store(key.bucket), key, data, content_type=content_type)
            return
        self._refuse_unallowed(key.bucket)
        size = len(data)
        with translate_errors():
            self._minio.put_object(
                key.bucket,
                key.key,
                BytesIO(data),
                size,
                content_type,
                sse=self._encryption,
                part_size=max(size, MIN_PART_SIZE),  # by one request too
            )

    @asked
    def put_new(self, key: StorageKey, data: bytes, *, content_type: str) -> bool:
        """Write an object if none exists; return False if one does.

        A store without conditional writes (RFC 9110's If-None-Match) replaces it.
        """
        _refuse_member(key)
        store = self._store(key.bucket)
        return put_plain(store, key, data, content_type=content_type, only_new=True)

    def put_many(self, objects: Sequence[tuple[StorageKey, bytes]], *, content_type: str) -> None:
        """Write objects, in threads; when it returns or raises, no write is in progress.

        If it raises, some of them may have been written.
        """
        put = partial(self.put, content_type=content_type)
        stride(self._executor, lambda each: put(*each), objects, threads=self._threads)

    def put_file(self, key: StorageKey, file: BinaryIO, *, content_type: str) -> None:
        """Write an object from a whole file on the disk, mapped and not read: the system may take
        its pages from memory at any time."""
        self._refuse_unallowed(key.bucket)
        size = file.seek(0, SEEK_END)
        store = obstore_client(self._settings, key.bucket, bytes=size)
        # what is empty cannot be mapped
        data = mmap(file.fileno(), 0, access=ACCESS_READ) if size else b""
        put_plain(store, key, data, content_type=content_type)

    def replace(self, key: StorageKey, data: bytes, *, content_type: str) -> list[DeleteFault]:
        """Write an object and delete its earlier versions."""
        self.put(key, data, content_type=content_type)
        return self._deletion.delete_older(key)

    def delete_hidden(self, key: StorageKey) -> list[DeleteFault]:
        """Call `Deletion.delete_hidden`."""
        self._refuse_unallowed(key.bucket)
        return self._deletion.delete_hidden(key)

    def read_segments(self, rewrites: Sequence[Rewrite]) -> list[Overwritten]:
        """Read segments, and overwrite in memory what is to be erased of them, in threads."""

        def read(rewrite: Rewrite) -> Overwritten:
            if (place := rewrite.place).bucket not in self.buckets.allowed:
                fault = DeleteFault(place, "BucketNotAllowed", NOT_ALLOWED)
                return Overwritten(rewrite, fault=fault)
            if not is_plain(place.key):  # obstore would read another object
                return Overwritten(rewrite, is_gone=True)
            return read_segment(self._store(place.bucket), rewrite, self._deletion)

        return stride(self._executor, read, rewrites, threads=self._threads)

    def write_segments(self, segments: Sequence[Overwritten]) -> None:
        """Write these segments in place, in threads, and verify that; what fails is their fault."""

        def put(segment: Overwritten) -> None:
            put_segment(self._store(segment.rewrite.place.bucket), segment)

        def finish(segment: Overwritten) -> None:
            finish_segment(self._store(segment.rewrite.place.bucket), segment, self._deletion)

        stride(self._executor, put, segments, threads=self._threads)
        failpoint("retention.rewrite.put")
        self._deletion.ask_again()
        written = [segment for segment in segments if segment.fault is None]
        stride(self._executor, finish, written, threads=self._threads)

    def presign(self, key: StorageKey, seconds: int, *, at: datetime | None = None) -> str:
        """Return a link by which clients can read the object for `seconds`, from now or `at` on.

        Raises BlobMissing in a bucket that is not allowed, and for `.` and `..`.
        """
        _refuse_member(key)
        self._refuse_unaddressable(key)
        if key.bucket not in self.buckets.allowed:
            raise BlobMissing(f"bucket {key.bucket}: {NOT_ALLOWED}")
        with translate_errors():
            return self._sign(key, seconds, at)

    def link(
        self, key: StorageKey, path: str, seconds: int, *, at: datetime | None = None
    ) -> str | None:
        """Return a link by which anyone can read a blob for `seconds`, from now or `at` on; None if
        there can be none. To a member it is the `path` of the api, signed."""
        if member_of(key.key) is not None:
            is_allowed = key.bucket in self.buckets.allowed
            return self.route_links.sign(path, seconds, at=at) if is_allowed else None
        try:
            return self.presign(key, seconds, at=at)
        except BlobMissing:  # no client can address the key, or its bucket is no longer allowed
            return None

    def _sign(self, key: StorageKey, seconds: int, at: datetime | None) -> str:
        """Sign as minio does, at a tenth of the cost: what links share is computed once."""
        of_minio = self._public.presigned_get_object
        id = self._settings.s3_access_key.get_secret_value()
        if not id:  # it finds credentials, which end
            return of_minio(key.bucket, key.key, timedelta(seconds=seconds), request_date=at)
        if key.bucket not in self._places:
            link = urlsplit(of_minio(key.bucket, "x"))
            self._places[key.bucket] = f"{link.scheme}://{link.netloc}", link.path[:-1]
        origin, folder = self._places[key.bucket]
        path, host = folder + quote(key.key), origin.partition("://")[2]
        stamp = (at or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{stamp[:8]}/{self._settings.s3_region}/s3/aws4_request"
        quoted, secret = _derive(id, self._settings.s3_secret_key.get_secret_value(), scope)
        query = f"{_SIGNED.format(quoted, stamp, seconds)}&X-Amz-SignedHeaders=host"
        request = f"GET\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
        hash = sha256(request.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hash}"
        signature = hmac.digest(secret, text.encode(), "sha256").hex()
        return f"{origin}{path}?{query}&X-Amz-Signature={signature}"

    def list_versions(self, keys: Iterable[StorageKey]) -> Listed:
        """Call `Deletion.list_versions` for the keys in allowed buckets."""
        return self._deletion.list_versions(self._split_allowed(keys)[0])

    def delete_objects(self, keys: Iterable[StorageKey], listed: Listed | None = None) -> Deleted:
        """Call `Deletion.delete` for keys in allowed buckets; each other key is a fault."""
        ours, strange = self._split_allowed(keys)
        deleted = self._deletion.delete(ours, listed)
        deleted[:0] = [DeleteFault(key, "BucketNotAllowed", NOT_ALLOWED) for key in strange]
        return deleted

    def still_there(self, keys: Iterable[StorageKey]) -> list[StorageKey]:
        """Return the keys that are still listed, in any version."""
        ours, strange = self._split_allowed(keys)
        return strange + self._deletion.still_there(ours)

    @asked
    def page(self, bucket: str, prefix: str, *, after: str, limit: int) -> list[Found]:
        """Return the first objects under a prefix after the key `after`, in key order.

        If there are fewer than `limit`, there are no more.
        """
        self._refuse_unallowed(bucket)
        with translate_errors():
            return page(self._minio, bucket, prefix, after, limit)

    def locked_until(self, key: StorageKey) -> datetime | None:
        """Return when the last lock on any version of an object ends; None if it is unknown.

        A legal hold of S3 has no end, and without the right to read locks it is unknown, as it is
        in a bucket that is not allowed.
        """
        if key.bucket not in self.buckets.allowed:
            return None
        with translate_errors():
            versions = survivors(self._minio, key.bucket, [key.key], versions=True)
            ids = [version.id for version in versions if not version.marker]
            ends = [_find_end(self._minio, key, id) for id in ids]
        later = [end for end in ends if end is not None and end > datetime.now(UTC)]
        return max(later, default=None)

    @asked
    def check(self) -> None:
        """Raise ObjectStoreUnavailable with the reason, unless the default bucket answers."""
        bucket = self._settings.s3_bucket
        with translate_errors():
            if not self._minio.bucket_exists(bucket):
                raise ObjectStoreUnavailable(f"the bucket {bucket} is not there")

    def close(self) -> None:
        """End the threads; no method may be called afterwards."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._deletion.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _store(self, bucket: str) -> S3Store:
        self._refuse_unallowed(bucket)
        with self._lock:
            if bucket not in self._stores:
                self._stores[bucket] = obstore_client(self._settings, bucket)
            return self._stores[bucket]

    def _split_allowed(
        self, keys: Iterable[StorageKey]
    ) -> tuple[list[StorageKey], list[StorageKey]]:
        all_keys = list(keys)
        strange = [key for key in all_keys if key.bucket not in self.buckets.allowed]
        return [key for key in all_keys if key.bucket in self.buckets.allowed], strange

    def _get_or_forbidden(self, key: StorageKey, *, limit: int) -> bytes:
        """Return an object as `get` does; raise BlobForbidden if only this object is refused."""
        with self._forbidden_alone(key):
            return self.get(key, limit=limit)

    def _get_group(self, group: Sequence[MemberKey]) -> Sequence[Fetched]:
        """Return members of one segment that lie near each other."""
        key = group[0].segment
        try:
            with self._forbidden_alone(key), self.silence.limited():
                return get_members(self._read_range, group)
        except (BlobMissing, BlobForbidden) as exc:
            return [exc] * len(group)

    @contextmanager
    def _forbidden_alone(self, key: StorageKey) -> Iterator[None]:
        """Read an object, and remember it. Raises BlobForbidden if only this object is refused."""
        try:
            yield
        except AccessDenied as exc:
            if self._allows_others(key.bucket):
                raise BlobForbidden(f"{key} alone is refused: {exc}") from exc
            raise
        last = self._read_last.get(key.bucket, ())
        if key not in last:
            self._read_last[key.bucket] = (key, *last[: _REMEMBERED - 1])

    def _allows_others(self, bucket: str) -> bool:
        """Return whether another object of the bucket can be read now.

        Called after each refusal: wrong credentials, a policy for the whole bucket and a disabled
        key of SSE-KMS refuse objects that were readable before, too. A missing object shows less,
        because no key is needed to report it: it is requested only if no earlier object is left.
        """
        refused = False
        for other in self._read_last.get(bucket, ()):
            match self._probe(other):
                case "given":
                    return True
                case "refused":
                    refused = True
        return not refused and self._probe(StorageKey(bucket, _NO_OBJECT)) != "refused"

    def _probe(self, key: StorageKey) -> Literal["given", "missing", "refused"]:
        try:
            self.get(key, limit=0)
        except AccessDenied:
            return "refused"
        except BlobMissing:
            return "missing"
        except BlobTooLarge:
            pass
        return "given"

    def _read_range(self, key: StorageKey, start: int, end: int) -> tuple[memoryview, int]:
        """Return a range of an object, and its size, with whichever client can."""
        if not is_plain(key.key):  # an event may name anything
            raise BlobMissing(f"{key}: no segment of ours has such a key")
        if not self._has_odd_ranges:
            try:
                return get_range(self._store(key.bucket), key, start, end)
            except RangesOdd:
                self._has_odd_ranges = True
        self._refuse_unallowed(key.bucket)
        with translate_errors():
            try:
                answer = self._minio.get_object(key.bucket, key.key, start, end - start)
            except S3Error as exc:
                if exc.code in NOT_THERE:
                    raise BlobMissing(f"{key}: {exc.code}") from exc
                raise
            try:
                read = memoryview(answer.read(decode_content=False))
                if (given := answer.headers.get("Content-Range")) is None:  # all of it
                    return read[start:end], len(read)
                return read, int(given.rpartition("/")[2])
            finally:
                answer.close()
                answer.release_conn()

    def _get_odd(self, key: StorageKey, limit: int) -> tuple[bytes, str | None]:
        """Return an object and its content type with minio, for keys that obstore changes."""
        refuse_size(key, self.head(key), limit)
        with translate_errors():
            answer = self._minio.get_object(key.bucket, key.key)
            try:
                # as it is stored: decoding a Content-Encoding could produce gigabytes
                return answer.read(decode_content=False), answer.headers.get("Content-Type")
            finally:
                answer.close()
                answer.release_conn()

    def _refuse_unallowed(self, bucket: str) -> None:
        if bucket not in self.buckets.allowed:
            raise ObjectStoreUnavailable(f"bucket {bucket}: {NOT_ALLOWED}")

    def _refuse_unaddressable(self, key: StorageKey) -> None:
        if not is_addressable(key.key):
            raise BlobMissing(f"{key}: no client can address `.` and `..`")


def _refuse_member(key: StorageKey) -> None:
    """Refuse to write one member, or to give a link that would open its neighbours too."""
    if member_of(key.key) is not None:
        raise ValueError(f"{key} is a part of an object")


@lru_cache(4)
def _derive(id: str, secret: str, scope: str) -> tuple[str, bytes]:
    """Return the quoted id and the key that sign what has a day, region and service in common."""
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return quote(f"{id}/{scope}", safe=""), key


def _find_end(client: Minio, key: StorageKey, version: str | None) -> datetime | None:
    try:
        retention = client.get_object_retention(key.bucket, key.key, version_id=version)
    except S3Error as exc:
        if exc.response.status >= 500:
            raise
        return None
    return None if retention is None else retention.retain_until_date
