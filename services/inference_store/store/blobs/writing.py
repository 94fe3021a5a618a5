"""Writing many small objects at once, by threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from inference_store.store.errors import BlobsAway
from inference_store.store.events import StorageKey

Put = Callable[[StorageKey, bytes], None]


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
