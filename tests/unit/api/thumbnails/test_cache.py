"""Thumbnails are kept by bytes and by time, and forgotten by inference."""

from uuid import UUID

from inference_store.api.thumbnails.cache import KEEP_SECONDS, Key, ThumbnailCache
from inference_store.api.thumbnails.decoder import Thumbnail


def _make_key(number: int, edge: int = 240) -> Key:
    return 1, UUID(int=number), "s3://b/k", edge


def _make_thumbnail(size: int = 4096 - 1024) -> Thumbnail:
    return Thumbnail(b"x" * size, (1, 1), (2, 2))


def test_evicts_the_least_recently_used() -> None:
    cache = ThumbnailCache(3 * 4096)
    for number in range(3):
        cache.put(_make_key(number), _make_thumbnail())
    assert cache.get(_make_key(0)) is not None
    cache.put(_make_key(3), _make_thumbnail())
    assert [cache.get(_make_key(n)) is not None for n in range(4)] == [True, False, True, True]
    assert cache.bytes == 3 * 4096


def test_counts_an_item_put_twice_once_and_keeps_none_larger_than_the_cache() -> None:
    cache = ThumbnailCache(4096)
    cache.put(_make_key(1), _make_thumbnail(5000))
    assert (cache.get(_make_key(1)), cache.bytes) == (None, 0)
    for _ in range(2):
        cache.put(_make_key(0), _make_thumbnail())
        assert cache.bytes == 4096


def test_an_inference_is_forgotten_in_every_size() -> None:
    cache = ThumbnailCache()
    for edge in (60, 240):
        cache.put(_make_key(0, edge), _make_thumbnail())
    cache.put(_make_key(1), _make_thumbnail())
    cache.forget(1, UUID(int=0))
    cache.forget(1, UUID(int=9))
    assert cache.get(_make_key(0)) is cache.get(_make_key(0, 60)) is None
    assert cache.get(_make_key(1)) is not None
    assert cache.bytes == 4096


def test_nothing_stays_for_long_however_often_it_is_used() -> None:
    now = 0.0
    cache = ThumbnailCache(clock=lambda: now)
    cache.put(_make_key(0), _make_thumbnail())
    now = KEEP_SECONDS / 2
    cache.put(_make_key(1), _make_thumbnail())
    assert cache.get(_make_key(0)) is not None
    now = KEEP_SECONDS
    assert (cache.get(_make_key(0)), cache.bytes) == (None, 4096)
