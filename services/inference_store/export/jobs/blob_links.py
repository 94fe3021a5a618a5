"""Presigned links in the parts of an export.

They are signed as of the request, so that a part that is written again has the same bytes, and all
links of an export end at once: with the export, or after the seven days that signatures have.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from inference_store.export.fixed_columns import Row
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import parse_stored
from inference_store.objects import Blobs
from inference_store.query.stored_blobs import get_storage_key

from .job import ExportJob

MOST: Final = timedelta(days=7)
"""The longest that a link of AWS Signature Version 4 works."""


class LinkSource:
    """Adds links to rows."""

    def __init__(self, blobs: Blobs, job: ExportJob, linked: Sequence[str]) -> None:
        self._blobs, self._linked, self._at = blobs, linked, job.requested_at
        self._seconds = max(1, int(min(job.expires_at - job.requested_at, MOST).total_seconds()))

    def complete(self, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """Yield the rows with their links. Blocks."""
        yield [
            row._replace(urls={blob: self._sign(row, blob) for blob in self._linked})
            for row in rows
        ]

    def _sign(self, row: Row, blob: str) -> str | None:
        key = get_storage_key(row.inference, blob)
        if key is None:
            return None
        try:
            return self._blobs.presign(parse_stored(key), self._seconds, at=self._at)
        except BlobMissing:  # a key that no client can address, or a bucket no longer allowed
            return None
