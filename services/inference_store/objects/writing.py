"""Writing many small objects at once, by threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Literal

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from inference_store.inference.errors import BlobsAway
from inference_store.inference.events import StorageKey

from .reading import translated

Put = Callable[[StorageKey, bytes], None]


def put_plain(
    store: S3Store, key: StorageKey, data: bytes, *, content_type: str, only_new: bool = False
) -> bool:
    """Write an object; False: `only_new` was asked for, and one is there. Raises BlobsAway."""
    mode: Literal["create", "overwrite"] = "create" if only_new else "overwrite"
    try:
        obstore.put(store, key.key, data, attributes={"Content-Type": content_type}, mode=mode)
    except AlreadyExistsError:
        return False
    except (FileNotFoundError, BaseError) as exc:
        meaning = translated(key, exc)
        raise (meaning if isinstance(meaning, BlobsAway) else BlobsAway(str(meaning))) from exc
    return True


def put_many(
    executor: ThreadPoolExecutor,
    put_one: Put,
    objects: Sequence[tuple[StorageKey, bytes]],
    *,
    threads: int,
) -> None:
    """Write all, or raise BlobsAway for the first that could not be; waits for every thread."""
    troubled = Event()

    def stride(first: int, step: int) -> BlobsAway | None:
        for key, data in objects[first::step]:
            if troubled.is_set():
                return None
            try:
                put_one(key, data)
            except BlobsAway as exc:
                troubled.set()
                return exc
        return None

    step = max(1, min(threads, len(objects)))
    running = [executor.submit(stride, first, step) for first in range(step)]
    troubles = [trouble for done in running if (trouble := done.result()) is not None]
    if troubles:
        raise troubles[0]
