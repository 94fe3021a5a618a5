"""Reads many small objects at once, in threads: that takes a third of the CPU of asyncio."""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from mmap import mmap
from threading import Lock
from typing import Final, Literal, TypeAlias, TypeVar

import obstore
from obstore import get, get_async
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError
from obstore.store import S3Store

from inference_store.inference.errors import (
    AccessDenied,
    BlobForbidden,
    BlobMissing,
    BlobTooLarge,
    BlobUnreadable,
    ObjectStoreUnavailable,
)
from inference_store.inference.events import StorageKey

from .clients import without_secrets


class OverBudget:
    """Stands for a blob that was not fetched, because earlier ones used up the budget."""


OVER_BUDGET: Final = OverBudget()
Fetched: TypeAlias = bytes | BlobMissing | BlobForbidden | BlobTooLarge | OverBudget | None
Get = Callable[[StorageKey], bytes]
T = TypeVar("T")
R = TypeVar("R")

_PIECE_BYTES = 256 * 1024
_LARGE_PIECE_BYTES = 1024 * 1024
_CODE = re.compile(r"<Code>(\w+)</Code>")
# The useful part of the debugging output after obstore's sentence.
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_NOT_PARTIAL = "non-partial response"
# A permanent error of this one object: waiting for the store would not help.
NOT_THERE = {"InvalidRange", "NoSuchKey", "NoSuchVersion"}
_UNREADABLE = {
    "InvalidObjectName",
    "InvalidObjectState",
    "InvalidRequest",
    "InvalidURI",
    "KeyTooLongError",
    "XMinioInvalidObjectName",
}


def get_plain(store: S3Store, key: StorageKey, limit: int) -> bytes:
    """Return one object's bytes. Raises BlobMissing, BlobTooLarge, ObjectStoreUnavailable,
    AccessDenied."""
    try:
        result = get(store, key.key)
        # get_range would be cheaper, but answers 416 for an empty object
        refuse_size(key, result.meta["size"], limit)
        return bytes(result.bytes())
    except (FileNotFoundError, ValueError, BaseError) as exc:
        raise translate_error(key, exc) from exc


def iterate_plain(store: S3Store, key: StorageKey) -> Iterator[bytes]:
    """Yield an object in pieces. Raises as `get_plain`."""
    try:
        for piece in get(store, key.key).stream(min_chunk_size=_LARGE_PIECE_BYTES):
            yield bytes(piece)
    except (FileNotFoundError, ValueError, BaseError) as exc:
        raise translate_error(key, exc) from exc


def refuse_size(key: StorageKey, size: int | None, limit: int) -> None:
    """Raise BlobTooLarge if an object has more than `limit` bytes."""
    if size is not None and size > limit:
        raise BlobTooLarge(f"{key} has {size} bytes; at most {limit} are read")


class RangesOdd(ObjectStoreUnavailable):
    """The server answers a request for a range with 200, which obstore refuses (rclone)."""


def get_range(store: S3Store, key: StorageKey, start: int, end: int) -> tuple[memoryview, int]:
    """Return the bytes from `start` to before `end`, or as many as there are, and the object's
    size. Raises BlobMissing, also if it ends before `start`; RangesOdd; as `get_plain`."""
    try:
        result = get(store, key.key, options={"range": (start, end)})
        return memoryview(result.bytes()), result.meta["size"]
    except (FileNotFoundError, ValueError, BaseError) as exc:
        raise translate_error(key, exc) from exc


def translate_error(key: StorageKey, error: Exception) -> Exception:
    """Translate obstore's error. Only the code distinguishes a missing bucket from a missing
    object."""
    text = str(error)
    code = _CODE.search(text)
    if code is not None and code[1] == "NoSuchBucket":
        return ObjectStoreUnavailable(f"the bucket {key.bucket} is not there")
    if code is not None and code[1] in _UNREADABLE:
        return BlobUnreadable(f"{key}: {code[1]}")
    if code is not None and code[1] in NOT_THERE:
        return BlobMissing(f"{key}: {code[1]}")
    if isinstance(error, FileNotFoundError | ValueError):
        return BlobMissing(f"{key} is not there")
    kind = AccessDenied if isinstance(error, PermissionDeniedError) else ObjectStoreUnavailable
    if _NOT_PARTIAL in text:
        kind = RangesOdd
    reason = without_secrets(text.partition("\n\nDebug source")[0])[:300]
    if code is not None:
        reason = f"{code[1]}: {reason}"
    certificate = _CERTIFICATE.search(text)
    if certificate is not None:
        reason += f": its certificate is not trusted ({certificate[1]})"
    return kind(f"the object store does not give {key}: {reason}")


def get_many(
    executor: ThreadPoolExecutor,
    get_one: Get,
    keys: Sequence[StorageKey | None],
    *,
    threads: int,
    budget: int,
) -> list[Fetched]:
    """Return one result per key, in their order.

    Raises ObjectStoreUnavailable if one could not be requested.
    """
    left, lock = budget, Lock()

    def fetch(key: StorageKey | None) -> Fetched:
        nonlocal left
        if key is None:
            return None
        if left <= 0:
            return OVER_BUDGET
        try:
            data = get_one(key)
        except (BlobMissing, BlobForbidden, BlobTooLarge) as exc:
            return exc
        with lock:
            left -= len(data)
        return data

    return stride(executor, fetch, keys, threads=threads)


def stride(
    executor: ThreadPoolExecutor, work: Callable[[T], R], items: Sequence[T], *, threads: int
) -> list[R]:
    """Return what the work makes of each item, in threads; once one raises ObjectStoreUnavailable
    the others do no more, and it is raised when every thread has ended."""
    step = max(1, min(threads, len(items)))
    results: dict[int, R] = {}
    errors: list[ObjectStoreUnavailable] = []

    def run(first: int) -> None:
        for index in range(first, len(items), step):
            if errors:
                return
            try:
                results[index] = work(items[index])
            except ObjectStoreUnavailable as exc:
                errors.append(exc)

    for done in [executor.submit(run, first) for first in range(step)]:
        done.result()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(items))]


def put_plain(
    store: S3Store,
    key: StorageKey,
    data: bytes | mmap,
    *,
    content_type: str,
    only_new: bool = False,
) -> bool:
    """Write an object by one request: a process that is killed amid an upload in pieces leaves them
    in the bucket, where no list of objects shows them and no deletion finds them. Return False if
    it is `only_new` and one exists. Raises ObjectStoreUnavailable."""
    mode: Literal["create", "overwrite"] = "create" if only_new else "overwrite"
    try:
        obstore.put(
            store,
            key.key,
            data,
            attributes={"Content-Type": content_type},
            mode=mode,
            use_multipart=False,
        )
    except AlreadyExistsError:
        return False
    except (FileNotFoundError, BaseError) as exc:
        translated_error = translate_error(key, exc)
        raise (
            translated_error
            if isinstance(translated_error, ObjectStoreUnavailable)
            else ObjectStoreUnavailable(str(translated_error))
        ) from exc
    return True


@dataclass(frozen=True, slots=True)
class BlobStream:
    """An object, or some of it, that has begun to arrive: how many bytes, its content type, its
    pieces."""

    size: int
    content_type: str | None
    pieces: AsyncIterator[bytes]


async def stream_plain(
    store: S3Store, key: StorageKey, span: tuple[int, int] | None = None
) -> BlobStream:
    """Return a stream of an object, or of a span of it.

    Raises BlobMissing and ObjectStoreUnavailable before the first piece; its pieces raise
    ObjectStoreUnavailable.
    """
    try:
        result = await get_async(store, key.key, options={"range": span} if span else None)
    except (FileNotFoundError, ValueError, BaseError) as exc:
        raise translate_error(key, exc) from exc

    async def pieces() -> AsyncIterator[bytes]:
        try:
            async for piece in result.stream(min_chunk_size=_PIECE_BYTES):
                yield bytes(piece)
        except BaseError as exc:
            raise translate_error(key, exc) from exc

    content_type = result.attributes.get("Content-Type")
    begin, end = result.range
    return BlobStream(end - begin, content_type, pieces())


def stream_whole(data: bytes, content_type: str | None) -> BlobStream:
    """Return a stream of an object that is already in memory."""

    async def pieces() -> AsyncIterator[bytes]:
        yield data

    return BlobStream(len(data), content_type, pieces())
