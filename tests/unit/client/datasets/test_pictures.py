"""Pictures are known by their first bytes, and shapes are cut at their edges, exactly."""

from io import BytesIO
from itertools import product
from random import Random

import pytest
from PIL import Image

from inference_store_client.datasets.geometry import (
    Box,
    clip_box,
    clip_polygon,
    find_extent,
    measure_polygon,
)
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
    for kind, suffix in _KINDS.items():
        content = encode(kind)
        picture = read_picture(content)
        found = (picture.suffix, picture.size, picture.content)
        assert found == (suffix, (40, 20), content), kind


def test_the_size_is_that_of_the_pixels_as_they_are_stored() -> None:
    for orientation in [3, 6, 8]:
        assert read_picture(encode("JPEG", orientation=orientation)).size == (40, 20), orientation


_OTHER = [b"", b"BMW is a car", b"II", b"<svg/>", b'{"a": 1}', b"RIFF\0\0\0\0WAVE", b"%PDF-1.7"]
_HEADS = [make_png(1, 0, 5), b"\xff\xd8\xff", b"II*\0", b"GIF89a"]


def test_other_data_is_no_picture_and_a_broken_header_unreadable(subtests: pytest.Subtests) -> None:
    for reason, contents in {"not_a_picture": _OTHER, "unreadable": _HEADS}.items():
        for content in contents:
            with subtests.test(str(content)), pytest.raises(NoPicture, match=f"^{reason}$"):
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


_SIZE = (100, 50)
_SQUARE = [(10.0, 10.0), (30.0, 10.0), (30.0, 30.0), (10.0, 30.0)]


def test_a_box_is_clipped() -> None:
    cases: list[tuple[Box, Box | None]] = [
        ((10, 10, 20, 20), (10, 10, 20, 20)),
        ((-5, -5, 200, 200), (0, 0, 100, 50)),
        ((90, 40, 110, 60), (90, 40, 100, 50)),
        ((100, 0, 120, 10), None),
        ((-10, 0, 0, 10), None),
        ((20, 20, 10, 30), None),
        ((20, 20, 20, 30), None),
    ]
    for box, expected in cases:
        assert clip_box(box, _SIZE) == expected, box


def test_a_polygon_inside_stays() -> None:
    assert sorted(clip_polygon(_SQUARE, _SIZE)) == sorted(_SQUARE)
    assert measure_polygon(_SQUARE) == 400
    assert find_extent(_SQUARE) == (10, 10, 30, 30)


def test_what_has_no_area_in_the_picture_is_nothing() -> None:
    cases: list[list[tuple[float, float]]] = [
        [],
        [(1.0, 1.0)],
        [(1.0, 1.0), (2.0, 2.0)],
        [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)],
        [(x + 200, y) for x, y in _SQUARE],
        [(x, y - 30) for x, y in _SQUARE],
    ]
    for points in cases:
        assert clip_polygon(points, _SIZE) == [], points


def test_the_area_is_that_of_the_pixels_inside() -> None:
    """Triangles at random, compared with a grid of points."""
    chance = Random(5)
    for _ in range(10):
        triangle = [(chance.uniform(-60, 160), chance.uniform(-60, 110)) for _ in range(3)]
        grid = product(range(1, 100, 2), range(1, 50, 2))
        inside = 4 * sum(is_inside(point, triangle) for point in grid)
        clipped = clip_polygon(triangle, _SIZE)
        assert measure_polygon(clipped) == pytest.approx(inside, abs=160)
        assert all(0 <= x <= 100 and 0 <= y <= 50 for x, y in clipped)


def is_inside(point: tuple[float, float], triangle: list[tuple[float, float]]) -> bool:
    x, y = point
    sides = [
        (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)
        for (x1, y1), (x2, y2) in zip(triangle, [*triangle[1:], triangle[0]], strict=True)
    ]
    return all(side >= 0 for side in sides) or all(side <= 0 for side in sides)
