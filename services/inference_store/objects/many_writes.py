"""Writes objects: one, and many small ones at once, in threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import BinaryIO, Literal

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey

from .many_reads import translate_error

Put = Callable[[StorageKey, bytes], None]


def put_plain(
    store: S3Store,
    key: StorageKey,
    data: bytes | BinaryIO,
    *,
    content_type: str,
    only_new: bool = False,
) -> bool:
    """Write an object; return False if it is `only_new` and one exists. Raises
    ObjectStoreUnavailable."""
    mode: Literal["create", "overwrite"] = "create" if only_new else "overwrite"
    try:
        obstore.put(store, key.key, data, attributes={"Content-Type": content_type}, mode=mode)
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
