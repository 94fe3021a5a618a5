"""The suffix of a file with an input: by its first bytes, else by its content type.

Nothing of a suffix comes from who sent the input. The client's datasets name pictures the same.
"""

import re
from types import MappingProxyType
from typing import Final

_SIGNATURES: Final = (
    (re.compile(rb"\xff\xd8\xff"), "jpg"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "png"),
    (re.compile(rb"GIF8[79]a"), "gif"),
    (re.compile(rb"RIFF....WEBPVP", re.DOTALL), "webp"),
    (re.compile(rb"BM....\0\0\0\0", re.DOTALL), "bmp"),
    (re.compile(rb"II\*\0|MM\0\*"), "tiff"),
    (re.compile(rb"....ftypavi[fs]", re.DOTALL), "avif"),
)
_SUFFIXES: Final = MappingProxyType(
    {
        "image/jpeg": "jpg",
        "image/png": "png",
        "image/gif": "gif",
        "image/webp": "webp",
        "image/bmp": "bmp",
        "image/tiff": "tiff",
        "image/avif": "avif",
        "image/heic": "heic",
        "image/jp2": "jp2",
        "audio/flac": "flac",
        "audio/mpeg": "mp3",
        "audio/ogg": "ogg",
        "audio/wav": "wav",
        "audio/x-wav": "wav",
        "video/mp4": "mp4",
        "application/pdf": "pdf",
        # `json` alone is the inference itself
        "application/json": "input.json",
        "text/plain": "txt",
    }
)
_OTHER: Final = "bin"


def find_suffix(content: bytes, content_type: str | None) -> str:
    """Return the suffix, without a dot before it."""
    for begin, suffix in _SIGNATURES:
        if begin.match(content):
            return suffix
    media_type = (content_type or "").partition(";")[0].strip().lower()
    return _SUFFIXES.get(media_type, _OTHER)
