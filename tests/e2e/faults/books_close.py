"""What must hold after any fault: every published event stored exactly once, and no remains."""

from collections import Counter
from collections.abc import Collection, Iterable
from uuid import UUID

from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.store import books
from inference_store.store.blobs.keys import Buckets
from inference_store.store.books import Outcome
from inference_store.store.events import decode
from inference_store.store.tables import (
    PARTITIONED,
    blob_reference,
    dead_letter,
    erasing,
    inference,
    metadata_key,
    metadata_key_delta,
    metadata_key_seen,
    parked_event,
)
from tests.producer import Capture

# How many rows of each table one `tests.producer.capture` is.
ROWS = {
    "inference": 1,
    "inference_alias": 0,
    "metadata_number": 4,
    "metadata_string": 2,
    "metadata_bool": 1,
    "metadata_timestamp": 0,
    "metadata_presence": 1,
    "prediction": 2,
    "blob_reference": 3,
}


def uid_of(capture: Capture) -> UUID:
    """The uid that the store gives an inference."""
    return decode(capture.event, record_time=NOW(), buckets=BUCKETS).uid
