"""One object, piece by piece, for whoever asked the api for it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from obstore import get_async
from obstore.exceptions import BaseError
from obstore.store import S3Store

from inference_store.inference.events import StorageKey

from .reading import translated

_PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class BlobStream:
    """An object that has begun to arrive: its size in bytes, its content type, its pieces."""

    size: int
    content_type: str | None
    pieces: AsyncIterator[bytes]


async def stream_plain(store: S3Store, key: StorageKey) -> BlobStream:
    """Raises BlobMissing and BlobsAway before the first piece, BlobsAway in between."""
    try:
        found = await get_async(store, key.key)
    except (FileNotFoundError, ValueError, BaseError) as exc:
        raise translated(key, exc) from exc

    async def pieces() -> AsyncIterator[bytes]:
        try:
            async for piece in found.stream(min_chunk_size=_PIECE_BYTES):
                yield bytes(piece)
        except BaseError as exc:
            raise translated(key, exc) from exc

    content_type = found.attributes.get("Content-Type")
    return BlobStream(found.meta["size"], content_type, pieces())


def stream_whole(data: bytes, content_type: str | None) -> BlobStream:
    """The same for an object that is in memory already."""

    async def pieces() -> AsyncIterator[bytes]:
        yield data

    return BlobStream(len(data), content_type, pieces())
