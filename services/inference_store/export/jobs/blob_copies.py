"""The bytes of blobs in the parts of an export, a few megabytes at a time.

A blob that is missing is None, and never an error: it was erased, it is not in the bucket, or it is
too large. If the bucket is unavailable, the part waits.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from inference_store.export.fixed_columns import Row
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import OVER_BUDGET, Blobs, Fetched
from inference_store.query.read import get_storage_key

_BATCH_ROWS: Final = 100
_BATCH_BYTES: Final = 2 * 1024 * 1024
"""Bytes of a batch, unless a single row has more."""
_THREADS: Final = 4
"""Requests at once; each may be for a blob more than the batch has room for."""
_SURPLUS: Final = 2
"""A part has at most so many times the bytes that its list was closed for, which producers name."""


class CopyLimits(NamedTuple):
    """Most bytes of one blob that is copied, and of the blobs that a list is closed for."""

    blob: int
    part: int


class CopySource:
    """Adds the bytes of blobs to the rows of one part."""

    def __init__(self, blobs: Blobs, copied: Sequence[str], limits: CopyLimits) -> None:
        self._blobs, self._copied, self._most = blobs, copied, limits.blob
        self._left = max(_SURPLUS * limits.part, limits.part + len(copied) * limits.blob)

    def complete(self, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """Yield the rows with their blobs, in batches that depend on nothing but the blobs: so a
        part that is written again has the same bytes. Raises ObjectStoreUnavailable. Blocks."""
        batch: list[Row] = []
        size = 0
        for row in self._read_all(rows):
            row_size = sum(map(len, filter(None, (row.contents or {}).values())))
            if batch and (size + row_size > _BATCH_BYTES or len(batch) == _BATCH_ROWS):
                yield batch
                batch, size = [], 0
            batch.append(row)
            size += row_size
        if batch:
            yield batch

    def _read_all(self, rows: Sequence[Row]) -> Iterator[Row]:
        while rows:
            some = self._read_some(rows[:_BATCH_ROWS])
            rows = rows[len(some) :]
            for row, results in some:
                yield row._replace(contents=self._take(results))

    def _read_some(self, rows: Sequence[Row]) -> list[tuple[Row, Sequence[Fetched]]]:
        """Read the blobs of the first rows, of as many as a batch has bytes for; of one at
        least."""
        width = len(self._copied)
        keys = [self._find_key(row, blob) for row in rows for blob in self._copied]
        budget = _BATCH_BYTES if len(rows) > 1 else None
        results = self._blobs.get_many(keys, limit=self._most, threads=_THREADS, budget=budget)
        whole = results.index(OVER_BUDGET) // width if OVER_BUDGET in results else len(rows)
        if whole == 0:
            return self._read_some(rows[:1])
        each = (results[at : at + width] for at in range(0, whole * width, width))
        return [*zip(rows, each, strict=False)]

    def _find_key(self, row: Row, blob: str) -> StorageKey | None:
        """Return the key to read; None: the blob is gone, or its bucket no longer allowed."""
        text = get_storage_key(row.inference, blob)
        key = None if text is None else parse_stored(text)
        return key if key is not None and key.bucket in self._blobs.buckets.allowed else None

    def _take(self, results: Sequence[Fetched]) -> Mapping[str, bytes | None]:
        """Return the bytes of a row's blobs, as long as the part has room for them."""
        contents: dict[str, bytes | None] = {}
        for blob, result in zip(self._copied, results, strict=True):
            fits = isinstance(result, bytes) and len(result) <= self._left
            contents[blob] = result if isinstance(result, bytes) and fits else None
            self._left -= len(contents[blob] or b"")
        return contents
