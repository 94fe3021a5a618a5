"""The content type of a datum, by its bytes."""

from io import BytesIO

from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from inference_store.proxy.capture.datum import content_type_of, size_of
from tests.exchanges import png

MAGIC = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF0000WEBPVP", b"BM0000\0\0\0\0"]
MAGIC += [
    b"II*\0",
    b"MM\0*",
    b"0000ftypavif",
    b"0000ftypheic",
    b"\0\0\0\x0cjP  \r\n\x87\n",
    b"P6\n",
]


def test_content_types() -> None:
    for data, expected in (
        (png(), "image/png"),
        (b"GIF89a\x01\x00\x02\x00\x00\x00\x00;", "image/gif"),
        (b"a text, \xc3\xa9", "text/plain; charset=utf-8"),
        (b' {"a": [1]} ', "application/json"),
        (b"[1, 2]", "application/json"),
        (b"{not json}", "text/plain; charset=utf-8"),
        (b"\x00\x00\x80\x3f", "application/octet-stream"),
        (b"\xff\xfe\xfd", "application/octet-stream"),
        (b"", "text/plain; charset=utf-8"),
    ):
        assert content_type_of(data) == expected


def test_the_size_of_an_image() -> None:
    assert size_of(png(17, 5), "image/png") == (17, 5)
    assert size_of(b"GIF89a\x01\x00\x02\x00\x00\x00\x00;", "image/gif") == (1, 2)
    assert size_of(b"text", "text/plain") == (None, None)
    assert size_of(png()[:12], "image/png") == (None, None)


def test_the_size_is_that_of_the_stored_pixels_however_they_are_turned_for_people() -> None:
    exif, file = Image.Exif(), BytesIO()
    exif[0x0112] = 6  # the orientation: a quarter turn
    Image.new("RGB", (40, 20)).save(file, "JPEG", exif=exif)
    assert size_of(file.getvalue(), "image/jpeg") == (40, 20)


@given(st.sampled_from(MAGIC), st.binary(max_size=200))
def test_nothing_is_raised_on_any_bytes(start: bytes, rest: bytes) -> None:
    kind = content_type_of(start + rest)
    width, height = size_of(start + rest, kind)
    assert (width is None) == (height is None)
    assert width is None or 0 < width < 2**31
