"""Reads many small objects at once, in threads: that takes a third of the CPU of asyncio."""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, TypeAlias

from minio import Minio
from obstore import get
from obstore.exceptions import BaseError, PermissionDeniedError
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

from .clients import translate_errors, without_secrets


class OverBudget:
    """Stands for a blob that was not fetched, because earlier ones used up the budget."""


OVER_BUDGET: Final = OverBudget()
Fetched: TypeAlias = bytes | BlobMissing | BlobForbidden | BlobTooLarge | OverBudget | None
Get = Callable[[StorageKey], bytes]

_CODE = re.compile(r"<Code>(\w+)</Code>")
# The useful part of the debugging output after obstore's sentence.
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
# A permanent error of this one object: waiting for the store would not help.
_NOT_THERE = {"NoSuchKey", "NoSuchVersion"}
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


def get_odd(client: Minio, key: StorageKey) -> tuple[bytes, str | None]:
    """Return an object's bytes and content type, with the client that does not change keys.

    Raises ObjectStoreUnavailable.
    """
    with translate_errors():
        answer = client.get_object(key.bucket, key.key)
        try:
            # as it is stored: decoding a Content-Encoding could produce gigabytes
            return answer.read(decode_content=False), answer.headers.get("Content-Type")
        finally:
            answer.close()
            answer.release_conn()


def refuse_size(key: StorageKey, size: int | None, limit: int) -> None:
    """Raise BlobTooLarge if an object has more than `limit` bytes."""
    if size is not None and size > limit:
        raise BlobTooLarge(f"{key} has {size} bytes; at most {limit} are read")


def translate_error(key: StorageKey, error: Exception) -> Exception:
    """Translate obstore's error. Only the code distinguishes a missing bucket from a missing
    object."""
    text = str(error)
    code = _CODE.search(text)
    if code is not None and code[1] == "NoSuchBucket":
        return ObjectStoreUnavailable(f"the bucket {key.bucket} is not there")
    if code is not None and code[1] in _UNREADABLE:
        return BlobUnreadable(f"{key}: {code[1]}")
    if code is not None and code[1] in _NOT_THERE:
        return BlobMissing(f"{key}: {code[1]}")
    if isinstance(error, FileNotFoundError | ValueError):
        return BlobMissing(f"{key} is not there")
    kind = AccessDenied if isinstance(error, PermissionDeniedError) else ObjectStoreUnavailable
    reason = without_secrets(text.partition("\n\nDebug source")[0])[:300]
    if code is not None:
        reason = f"{code[1]}: {reason}"
    certificate = _CERTIFICATE.search(text)
    if certificate is not None:
        reason += f": its certificate is not trusted ({certificate[1]})"
    return kind(f"the object store does not give {key}: {reason}")


@dataclass
class _Fetch:
    """One call of get_many, shared by its threads."""

    get: Get
    keys: Sequence[StorageKey | None]
    budget: int
    results: list[Fetched]
    lock: Lock = field(default_factory=Lock)
    error: ObjectStoreUnavailable | None = None

    def stride(self, first: int, step: int) -> None:
        """Fetch every `step`-th key, until all are read, the budget is used up or S3 is
        unavailable."""
        for index in range(first, len(self.keys), step):
            if self.error is not None:
                return
            key = self.keys[index]
            if key is not None:
                self.results[index] = self._fetch_one(key)

    def _fetch_one(self, key: StorageKey) -> Fetched:
        if self.budget <= 0:
            return OVER_BUDGET
        try:
            data = self.get(key)
        except (BlobMissing, BlobForbidden, BlobTooLarge) as exc:
            return exc
        except ObjectStoreUnavailable as exc:
            self.error = exc
            return None
        with self.lock:
            self.budget -= len(data)
        return data


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
    fetch = _Fetch(get_one, keys, budget, [None] * len(keys))
    step = max(1, min(threads, len(keys)))
    for done in [executor.submit(fetch.stride, first, step) for first in range(step)]:
        done.result()
    if fetch.error is not None:
        raise fetch.error
    return fetch.results
