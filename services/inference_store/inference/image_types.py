"""The content type of an image, by its first bytes."""

import re
from typing import Final

# The MIME Sniffing standard's images, and those of newer containers.
_IMAGES: Final = (
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBPVP", re.DOTALL), "image/webp"),
    (re.compile(rb"BM....\0\0\0\0", re.DOTALL), "image/bmp"),
    (re.compile(rb"II\*\0|MM\0\*"), "image/tiff"),
    (re.compile(rb"....ftypavi[fs]", re.DOTALL), "image/avif"),
    (re.compile(rb"....ftyp(hei[cx]|hev[cx]|mif1)", re.DOTALL), "image/heic"),
    (re.compile(rb"\0\0\0\x0cjP  \r\n\x87\n"), "image/jp2"),
    (re.compile(rb"P[1-6][ \t\r\n]"), "image/x-portable-anymap"),
)


def find_image_type(data: bytes) -> str | None:
    """Return the content type of an image; None: the bytes are no image that is known."""
    return next((name for pattern, name in _IMAGES if pattern.match(data)), None)
