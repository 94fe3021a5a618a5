"""Reading many small objects at once, by threads: a third of the CPU that asyncio costs here."""

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
    BlobsAway,
    BlobTooLarge,
    BlobUnreadable,
)
from inference_store.inference.events import StorageKey

from .clients import away, without_secrets


class OverBudget:
    """Stands for a blob that was not fetched, because those before it filled the budget."""


OVER_BUDGET: Final = OverBudget()
Fetched: TypeAlias = bytes | BlobMissing | BlobForbidden | BlobTooLarge | OverBudget | None
Get = Callable[[StorageKey], bytes]

_CODE = re.compile(r"<Code>(\w+)</Code>")
# What is of use in the page of debugging output beneath obstore's sentence.
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
# The trouble of this one object, for ever: waiting for the store would not help.
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
    """One object's bytes. Raises BlobMissing, BlobTooLarge, BlobsAway, AccessDenied."""
    try:
        found = get(store, key.key)
        # get_range would be cheaper, but answers 416 for an empty object
        refuse_size(key, found.meta["size"], limit)
        return bytes(found.bytes())
    except (FileNotFoundError, ValueError, BaseError) as exc:
        raise translated(key, exc) from exc


def get_odd(client: Minio, key: StorageKey) -> tuple[bytes, str | None]:
    """An object's bytes and content type, by the client that changes no key. Raises BlobsAway."""
    with away():
        answer = client.get_object(key.bucket, key.key)
        try:
            # as it is stored: undoing a Content-Encoding could make gigabytes of it
            return answer.read(decode_content=False), answer.headers.get("Content-Type")
        finally:
            answer.close()
            answer.release_conn()


def refuse_size(key: StorageKey, size: int | None, limit: int) -> None:
    """Raise BlobTooLarge when an object is over `limit` bytes."""
    if size is not None and size > limit:
        raise BlobTooLarge(f"{key} has {size} bytes; at most {limit} are read")


def translated(key: StorageKey, error: Exception) -> Exception:
    """What obstore's error means. A missing bucket looks like a missing object but for its code."""
    text = str(error)
    code = _CODE.search(text)
    if code is not None and code[1] == "NoSuchBucket":
        return BlobsAway(f"the bucket {key.bucket} is not there")
    if code is not None and code[1] in _UNREADABLE:
        return BlobUnreadable(f"{key}: {code[1]}")
    if code is not None and code[1] in _NOT_THERE:
        return BlobMissing(f"{key}: {code[1]}")
    if isinstance(error, FileNotFoundError | ValueError):
        return BlobMissing(f"{key} is not there")
    kind = AccessDenied if isinstance(error, PermissionDeniedError) else BlobsAway
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
    trouble: BlobsAway | None = None

    def stride(self, first: int, step: int) -> None:
        """Fetch every `step`-th key, until all are there, the budget is full or S3 is away."""
        for index in range(first, len(self.keys), step):
            if self.trouble is not None:
                return
            key = self.keys[index]
            if key is not None:
                self.results[index] = self._one(key)

    def _one(self, key: StorageKey) -> Fetched:
        if self.budget <= 0:
            return OVER_BUDGET
        try:
            found = self.get(key)
        except (BlobMissing, BlobForbidden, BlobTooLarge) as exc:
            return exc
        except BlobsAway as exc:
            self.trouble = exc
            return None
        with self.lock:
            self.budget -= len(found)
        return found


def get_many(
    executor: ThreadPoolExecutor,
    get_one: Get,
    keys: Sequence[StorageKey | None],
    *,
    threads: int,
    budget: int,
) -> list[Fetched]:
    """One result a key, in their order. Raises BlobsAway when one could not be asked for."""
    fetch = _Fetch(get_one, keys, budget, [None] * len(keys))
    step = max(1, min(threads, len(keys)))
    for done in [executor.submit(fetch.stride, first, step) for first in range(step)]:
        done.result()
    if fetch.trouble is not None:
        raise fetch.trouble
    return fetch.results
