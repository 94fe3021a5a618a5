"""Writes objects: one, and many small ones at once, in threads."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from mmap import ACCESS_READ, mmap
from threading import Event
from typing import BinaryIO, Literal

import obstore
from minio import Minio
from minio.helpers import MIN_PART_SIZE
from minio.sse import Sse
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey

from .many_reads import translate_error

Put = Callable[[StorageKey, bytes], None]


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


def put_odd(
    client: Minio, key: StorageKey, data: bytes, content_type: str, *, sse: Sse | None
) -> None:
    """Write an object whose key obstore would change, by one request too."""
    size = len(data)
    client.put_object(
        key.bucket,
        key.key,
        BytesIO(data),
        size,
        content_type,
        sse=sse,
        part_size=max(size, MIN_PART_SIZE),
    )


def put_whole_file(store: S3Store, key: StorageKey, file: BinaryIO, *, content_type: str) -> None:
    """Write an object from a file on the disk, mapped and not read: the system may take its pages
    from memory at any time. Raises ObjectStoreUnavailable."""
    file.flush()
    is_empty = os.fstat(file.fileno()).st_size == 0  # what cannot be mapped
    data = b"" if is_empty else mmap(file.fileno(), 0, access=ACCESS_READ)
    put_plain(store, key, data, content_type=content_type)


def put_many(
    executor: ThreadPoolExecutor,
    put_one: Put,
    objects: Sequence[tuple[StorageKey, bytes]],
    *,
    threads: int,
) -> None:
    """Write all objects, or raise ObjectStoreUnavailable for the first that failed; waits for every
    thread."""
    has_failed = Event()

    def stride(first: int, step: int) -> ObjectStoreUnavailable | None:
        for key, data in objects[first::step]:
            if has_failed.is_set():
                return None
            try:
                put_one(key, data)
            except ObjectStoreUnavailable as exc:
                has_failed.set()
                return exc
        return None

    step = max(1, min(threads, len(objects)))
    running = [executor.submit(stride, first, step) for first in range(step)]
    errors = [error for done in running if (error := done.result()) is not None]
    if errors:
        raise errors[0]
