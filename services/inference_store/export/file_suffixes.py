"""The suffix of a file with an input: by its first bytes, else by its content type.

Nothing of a suffix comes from who sent the input. The client's datasets name pictures the same.
"""

from types import MappingProxyType
from typing import Final

from inference_store.inference.image_types import find_image_type

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
    suffix = _SUFFIXES.get(find_image_type(content) or "")
    media_type = (content_type or "").partition(";")[0].strip().lower()
    return suffix or _SUFFIXES.get(media_type, _OTHER)
