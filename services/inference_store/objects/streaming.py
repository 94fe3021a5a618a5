"""Streams one object, piece by piece, to a caller of the api."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from obstore import get_async
from obstore.exceptions import BaseError
from obstore.store import S3Store

from inference_store.inference.events import StorageKey

from .many_reads import translate_error

_PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class BlobStream:
    """An object, or some of it, that has begun to arrive: how many bytes, its content type, its
    pieces."""

    size: int
    content_type: str | None
    pieces: AsyncIterator[bytes]


async def stream_plain(
    store: S3Store, key: StorageKey, span: tuple[int, int] | None = None
) -> BlobStream:
    """Return a stream of an object, or of a span of it.

    Raises BlobMissing and ObjectStoreUnavailable before the first piece; its pieces raise
    ObjectStoreUnavailable.
    """
    try:
        result = await get_async(store, key.key, options={"range": span} if span else None)
    except (FileNotFoundError, ValueError, BaseError) as exc:
        raise translate_error(key, exc) from exc

    async def pieces() -> AsyncIterator[bytes]:
        try:
            async for piece in result.stream(min_chunk_size=_PIECE_BYTES):
                yield bytes(piece)
        except BaseError as exc:
            raise translate_error(key, exc) from exc

    content_type = result.attributes.get("Content-Type")
    begin, end = result.range
    return BlobStream(end - begin, content_type, pieces())


def stream_whole(data: bytes, content_type: str | None) -> BlobStream:
    """Return a stream of an object that is already in memory."""

    async def pieces() -> AsyncIterator[bytes]:
        yield data

    return BlobStream(len(data), content_type, pieces())
