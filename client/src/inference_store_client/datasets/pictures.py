"""Pictures as they were stored: what their first bytes and their header say."""

import re
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final

from inference_store_client.errors import SettingsError
from inference_store_client.extras import import_extra

from .geometry import Size

_SIGNATURES: Final = (
    (re.compile(rb"\xff\xd8\xff"), "jpg"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "png"),
    (re.compile(rb"GIF8[79]a"), "gif"),
    (re.compile(rb"RIFF....WEBPVP", re.DOTALL), "webp"),
    (re.compile(rb"BM....\0\0\0\0", re.DOTALL), "bmp"),
    (re.compile(rb"II\*\0|MM\0\*"), "tiff"),
    (re.compile(rb"....ftypavi[fs]", re.DOTALL), "avif"),
)
"""What a picture begins with, and the suffix of its file."""
SUFFIXES: Final = frozenset(suffix for _, suffix in _SIGNATURES)
"""Every suffix that a picture of a dataset may have."""
_MOST_PIXELS: Final = 2**31


@dataclass(frozen=True, slots=True)
class Picture:
    """The bytes of a picture, unchanged, and its size in pixels as it is stored."""

    content: bytes = field(repr=False)
    suffix: str
    size: Size


class NoPicture(Exception):
    """The bytes are not a picture that a dataset can hold; the text is the reason's name."""


def require_headers() -> None:
    """Raise SettingsError if the library that reads headers is not installed."""
    _import_imagesize()


def read_picture(content: bytes) -> Picture:
    """Return a picture. Raises NoPicture with `not_a_picture` or `unreadable`."""
    suffix = _find_suffix(content)
    if suffix is None:
        raise NoPicture("not_a_picture")
    try:
        # Boxes are on the pixels that the model got: not turned as the camera was held.
        width, height = _import_imagesize().get(BytesIO(content), exif_rotation=False)
    except SettingsError:
        raise
    except Exception:  # a library reads untrusted bytes: whatever it raises, the size is unknown
        raise NoPicture("unreadable") from None
    if not (0 < width < _MOST_PIXELS and 0 < height < _MOST_PIXELS):
        raise NoPicture("unreadable")
    return Picture(content, suffix, (int(width), int(height)))


def _find_suffix(content: bytes) -> str | None:
    return next((suffix for begin, suffix in _SIGNATURES if begin.match(content)), None)


def _import_imagesize() -> Any:
    return import_extra("imagesize", "datasets")
