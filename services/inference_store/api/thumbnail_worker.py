"""Makes thumbnails, as a process of its own: pictures come from strangers.

`python -m` starts it. Its memory is bounded, it opens and writes no file, and it has no secret: it
reads pictures from stdin and writes thumbnails to stdout until stdin ends.
"""

import resource
import sys
import warnings
from contextlib import suppress
from io import BytesIO
from typing import BinaryIO, Final

from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from .thumbnail_wire import (
    ANSWER,
    DAMAGED,
    MADE,
    NOT_A_PICTURE,
    REQUEST,
    TOO_MANY_PIXELS,
    TOO_MUCH_MEMORY,
    Thumbnail,
)

FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MOST_PIXELS: Final = 100_000_000
"""The most pixels of a picture."""
MOST_DECODED_PIXELS: Final = 16_777_216
"""The most pixels that are decoded: a JPEG is decoded at a fraction of its size."""
MEMORY_BYTES: Final = 384 * 1024 * 1024
MOST_COEFFICIENT_BYTES: Final = MEMORY_BYTES - 96 * 1024 * 1024
"""The most that the library may keep of a progressive JPEG until its last scan."""
_QUALITY: Final = 80
_PAPER: Final = (255, 255, 255)
"""The colour behind a transparent picture."""


class Refused(Exception):
    """No thumbnail is made; `outcome` says why."""

    def __init__(self, outcome: int) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def make_thumbnail(picture: bytes, edge: int) -> Thumbnail:
    """Make a JPEG whose edges are at most `edge` pixels. Raises Refused.

    EXIF orientation is ignored: shapes are in the pixels that the model had.
    """
    try:
        with Image.open(BytesIO(picture), formats=FORMATS) as image:
            return _shrink(image, edge)
    except Refused:
        raise
    except UnidentifiedImageError:
        raise Refused(NOT_A_PICTURE) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Refused(TOO_MANY_PIXELS) from None
    except MemoryError:
        raise Refused(TOO_MUCH_MEMORY) from None
    except Exception:  # decoders raise whatever they like
        raise Refused(DAMAGED) from None


def _shrink(image: Image.Image, edge: int) -> Thumbnail:
    picture = image.size
    if picture[0] * picture[1] > MOST_PIXELS:
        raise Refused(TOO_MANY_PIXELS)
    if _count_coefficient_bytes(image) > MOST_COEFFICIENT_BYTES:
        raise Refused(TOO_MUCH_MEMORY)
    image.draft("RGB", (2 * edge, 2 * edge))
    if image.size[0] * image.size[1] > MOST_DECODED_PIXELS:
        raise Refused(TOO_MANY_PIXELS)
    small = _interpolable(image)
    small.thumbnail((edge, edge), reducing_gap=2.0)
    out, bare = BytesIO(), _opaque(small)
    bare.info = {}  # a comment would be copied
    bare.save(out, "JPEG", quality=_QUALITY)
    return Thumbnail(out.getvalue(), small.size, picture)


def _count_coefficient_bytes(image: Image.Image) -> int:
    """Return what a progressive JPEG takes at any scale; with less the library calls it damaged."""
    if not (isinstance(image, JpegImageFile) and image.info.get("progressive")):
        return 0
    samplings = [(across, down) for _, across, down, _ in image.layer]
    samples = sum(across * down for across, down in samplings)
    whole = max(across for across, _ in samplings) * max(down for _, down in samplings)
    return 2 * image.width * image.height * samples // whole


def _interpolable(image: Image.Image) -> Image.Image:
    """Return the picture with pixels between which there are others: palettes have none."""
    if image.mode in {"P", "PA"}:
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    if image.mode.startswith("I"):  # 16 bits
        return image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    return image.convert("L") if image.mode == "1" else image


def _opaque(image: Image.Image) -> Image.Image:
    if image.mode in {"RGBA", "LA", "La", "RGBa"}:
        paper = Image.new("RGB", image.size, _PAPER)
        coloured = image.convert("RGBA")
        paper.paste(coloured, mask=coloured)
        return paper
    return image if image.mode == "L" else image.convert("RGB")


def _bound() -> None:
    with suppress(ValueError, OSError):  # not every system bounds the address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    Image.MAX_IMAGE_PIXELS = MOST_PIXELS
    warnings.simplefilter("error", Image.DecompressionBombWarning)


def _answer(picture: bytes, edge: int) -> bytes:
    try:
        thumbnail = make_thumbnail(picture, edge)
    except Refused as refused:
        return ANSWER.pack(refused.outcome, 0, 0, 0, 0, 0)
    return (
        ANSWER.pack(MADE, *thumbnail.picture, *thumbnail.size, len(thumbnail.jpeg)) + thumbnail.jpeg
    )


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer each request, until there are no more."""
    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
        size, edge = REQUEST.unpack(head)
        answers.write(_answer(requests.read(size), edge))
        answers.flush()


if __name__ == "__main__":
    Image.preinit()
    from PIL import WebPImagePlugin  # noqa: F401  (it registers itself)

    _bound()
    serve(sys.stdin.buffer, sys.stdout.buffer)
