"""Thumbnails of the process that decodes pictures."""

from io import BytesIO
from uuid import UUID

import pytest
from PIL import Image

from inference_store.api import thumbnail_wire, thumbnail_worker
from inference_store.api.thumbnail_wire import DAMAGED, NOT_A_PICTURE, TOO_MANY_PIXELS, Thumbnail
from inference_store.api.thumbnail_worker import Refused, make_thumbnail
from inference_store.api.thumbnails import KEEP_SECONDS, Key, ThumbnailCache
from tests.exchanges import png

from .pictures import SVG, make_picture, make_progressive


def test_each_format_and_kind_of_pixel() -> None:
    for form in thumbnail_worker.FORMATS:
        thumbnail = make_thumbnail(make_picture(form, (640, 320)), 100)
        assert (thumbnail.picture, thumbnail.size) == ((640, 320), (100, 50)), form
        with Image.open(BytesIO(thumbnail.jpeg)) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (100, 50), "RGB"), form
    for form, modes in (
        ("PNG", ("1", "L", "LA", "P", "RGBA", "I;16")),
        ("GIF", ("L", "P")),
        ("JPEG", ("L", "CMYK")),
        ("WEBP", ("RGBA",)),
    ):
        for mode in modes:
            assert make_thumbnail(make_picture(form, mode=mode), 16).size == (16, 8), (form, mode)


def test_a_small_picture_keeps_its_size_and_a_large_one_is_decoded_at_a_fraction() -> None:
    assert make_thumbnail(make_picture(size=(5, 3)), 240).size == (5, 3)
    thumbnail = make_thumbnail(make_picture("JPEG", (6_000, 4_000), "L"), 240)
    assert (thumbnail.picture, thumbnail.size) == ((6_000, 4_000), (240, 160))


def test_nothing_but_pixels_is_left() -> None:
    """The location and an embedded thumbnail are removed."""
    exif = Image.Exif()
    exif[0x010E] = "secret"
    exif[0x0112] = 6  # it is not turned either: shapes are in pixels as they are stored
    thumbnail = make_thumbnail(make_picture(size=(64, 32), exif=exif, comment=b"secret"), 64)
    assert b"secret" not in thumbnail.jpeg
    assert thumbnail.size == (64, 32)


def test_what_is_refused() -> None:
    for data, outcome in (
        (b"", NOT_A_PICTURE),
        (SVG, NOT_A_PICTURE),
        (b'{"inputs": []}', NOT_A_PICTURE),
        (b"%PDF-1.7", NOT_A_PICTURE),
        (make_picture("TIFF"), NOT_A_PICTURE),
        (make_picture("ICO", (32, 32)), NOT_A_PICTURE),
        (make_picture("JPEG", (640, 480))[:-400], DAMAGED),
        (make_progressive(9_000, 9_000), thumbnail_wire.TOO_MUCH_MEMORY),
        (png(5_000, 4_000, rows=1), TOO_MANY_PIXELS),
        (png(20_000, 20_000, rows=1), TOO_MANY_PIXELS),
    ):
        with pytest.raises(Refused) as refused:
            make_thumbnail(data, 240)
        assert refused.value.outcome == outcome, data[:20]


def test_a_picture_that_is_cut_anywhere() -> None:
    """Refused, or made of what is left; never another error."""
    for form in thumbnail_worker.FORMATS:
        whole = make_picture(form, (64, 64))
        for cut in (1, 3, 10, 30, 100):
            try:
                make_thumbnail(whole[: len(whole) * cut // 101], 16)
            except Refused as refused:
                assert refused.outcome in {NOT_A_PICTURE, DAMAGED}, form


def _make_key(number: int, edge: int = 240) -> Key:
    return 1, UUID(int=number), "s3://b/k", edge


def _make_thumbnail(size: int = 4096 - 1024) -> Thumbnail:
    return Thumbnail(b"x" * size, (1, 1), (2, 2))


def test_evicts_the_oldest() -> None:
    cache = ThumbnailCache(3 * 4096)
    for number in range(3):
        cache.put(_make_key(number), _make_thumbnail())
    assert cache.get(_make_key(0)) is not None
    cache.put(_make_key(3), _make_thumbnail())
    assert [cache.get(_make_key(n)) is not None for n in range(4)] == [False, True, True, True]
    assert cache.bytes == 3 * 4096


def test_nothing_stays_for_long_however_often_it_is_used() -> None:
    now = 0.0
    cache = ThumbnailCache(clock=lambda: now)
    cache.put(_make_key(0), _make_thumbnail())
    now = KEEP_SECONDS / 2
    cache.put(_make_key(1), _make_thumbnail())
    assert cache.get(_make_key(0)) is not None
    now = KEEP_SECONDS
    assert (cache.get(_make_key(0)), cache.bytes) == (None, 4096)
