"""Pictures as they were stored: what their first bytes and their header say."""

from dataclasses import dataclass, field
from importlib import import_module
from io import BytesIO
from typing import Any, Final

from inference_store_client.errors import SettingsError

from .geometry import Size

_SIGNATURES: Final = (
    (0, b"\xff\xd8\xff", "jpg"),
    (0, b"\x89PNG\r\n\x1a\n", "png"),
    (0, b"GIF87a", "gif"),
    (0, b"GIF89a", "gif"),
    (8, b"WEBPVP", "webp"),
    (0, b"BM", "bmp"),
    (0, b"II*\0", "tiff"),
    (0, b"MM\0*", "tiff"),
    (4, b"ftypavif", "avif"),
)
"""What a picture has at an offset, and the suffix of its file."""
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
    for offset, signature, suffix in _SIGNATURES:
        if content.startswith(signature, offset):
            return suffix
    return None


def _import_imagesize() -> Any:
    try:
        return import_module("imagesize")
    except ImportError:
        raise SettingsError(
            "datasets need imagesize: install inference-store-client[datasets]"
        ) from None
