"""Pictures are known by their first bytes, and their size by their header."""

from io import BytesIO
from random import Random

import pytest
from PIL import Image

from inference_store_client.datasets.pictures import NoPicture, read_picture
from tests.console.pictures import make_png

_ORIENTATION = 0x112
_KINDS = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "WEBP": "webp", "BMP": "bmp", "TIFF": "tiff"}
_KINDS |= {"AVIF": "avif"}


def encode(kind: str, *, orientation: int | None = None) -> bytes:
    """Encode a picture of 40 x 20 pixels."""
    exif = Image.Exif()
    if orientation is not None:
        exif[_ORIENTATION] = orientation
    file = BytesIO()
    Image.new("RGB", (40, 20), (200, 10, 10)).save(file, kind, exif=exif)
    return file.getvalue()


def test_each_kind_has_its_suffix_and_size() -> None:
    for kind in _KINDS:
        content = encode(kind)
        picture = read_picture(content)
        assert (picture.suffix, picture.size, picture.content) == (
            _KINDS[kind],
            (40, 20),
            content,
        ), kind


def test_the_size_is_that_of_the_pixels_as_they_are_stored() -> None:
    for orientation in [3, 6, 8]:
        assert read_picture(encode("JPEG", orientation=orientation)).size == (40, 20), orientation


def test_other_data_is_no_picture(subtests: pytest.Subtests) -> None:
    for content in [
        b"",
        b"BMW is a car",
        b"II",
        b"<svg/>",
        b'{"a": 1}',
        b"RIFF\0\0\0\0WAVE",
        b"%PDF-1.7",
    ]:
        with subtests.test(str(content)), pytest.raises(NoPicture, match=r"^not_a_picture$"):
            read_picture(content)


def test_a_header_that_cannot_be_read_is_unreadable(subtests: pytest.Subtests) -> None:
    cases: list[bytes] = [make_png(1, 0, 5), b"\xff\xd8\xff", b"II*\0", b"GIF89a"]
    for content in cases:
        with subtests.test(str(content)), pytest.raises(NoPicture, match=r"^unreadable$"):
            read_picture(content)


def test_broken_bytes_are_a_reason_and_no_other_error() -> None:
    chance = Random(7)
    for kind in _KINDS:
        whole = encode(kind)
        for _ in range(100):
            content = bytearray(whole[: chance.randrange(len(whole))])
            for _ in range(3):
                if content:
                    content[chance.randrange(len(content))] = chance.randrange(256)
            try:
                assert min(read_picture(bytes(content)).size) > 0
            except NoPicture as reason:
                assert str(reason) in {"not_a_picture", "unreadable"}
