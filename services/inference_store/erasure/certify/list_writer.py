"""Writes the list of a certificate to the bucket, before the certificate is signed."""

import asyncio
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from .archive import PIECE_BYTES, Archive
from .erased_lists import read_chunks
from .list_entries import split_entries
from .merkle import MerkleTree


async def write_list(engine: AsyncEngine, archive: Archive, batches: Sequence[int]) -> bytes:
    """Write the entries of these batches, piece by piece, and return the root over them.

    They are read twice, because the root names the pieces. Raises ObjectStoreUnavailable.
    """
    root = (await _compute_root(engine, batches)).hex()
    piece, waiting = 0, b""
    async for chunk in read_chunks(engine, batches):
        waiting += chunk
        while len(waiting) >= PIECE_BYTES:
            piece += 1
            await asyncio.to_thread(archive.put_leaves, root, piece, waiting[:PIECE_BYTES])
            waiting = waiting[PIECE_BYTES:]
    if waiting:
        await asyncio.to_thread(archive.put_leaves, root, piece + 1, waiting)
    return bytes.fromhex(root)


async def _compute_root(engine: AsyncEngine, batches: Sequence[int]) -> bytes:
    tree = MerkleTree()
    async for chunk in read_chunks(engine, batches):
        for entry in split_entries(chunk):
            tree.add(entry)
    return tree.root()
