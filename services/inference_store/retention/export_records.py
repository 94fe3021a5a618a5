"""Records in the lists of exports what a batch erased, hashed as its certificate hashes it."""

from collections.abc import Sequence
from functools import partial

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.certify.list_entries import hash_inference
from inference_store.erasure.log.keys import SigningKey
from inference_store.erasure.mark.pending_deletions import PendingDeletion
from inference_store.erasure.progress.erasure import Erasure
from inference_store.export.ledger.recording import EntryHash, ErasedBatch, record_batch


async def record_in_exports(
    connection: AsyncConnection,
    key: SigningKey | None,
    erasure: Erasure,
    done: Sequence[PendingDeletion],
) -> None:
    """Record the inferences of a batch in the exports that name them. `key` None: nothing hashes.

    Called in the transaction that deletes their rows, of whole partitions too.
    """
    hashing = None if key is None else EntryHash(key.id, partial(hash_inference, key))
    batch = ErasedBatch(erasure.id, erasure.scope, hashing)
    await record_batch(connection, batch, [(mark.model, mark.uid) for mark in done])
