"""Describes a datum: its content type by its first bytes, and an image's size."""

import re
from io import BytesIO

import imagesize

from inference_store.inference.image_types import find_image_type
from inference_store.inference.json_text import UnreadableJson, read_json

OCTETS = "application/octet-stream"
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_MOST_JSON = 64 * 1024


def content_type_of(data: bytes) -> str:
    """Return the content type that the bytes indicate."""
    if (image := find_image_type(data)) is not None:
        return image
    if _BINARY.search(data):
        return OCTETS
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return OCTETS
    return "application/json" if _is_json(data) else "text/plain; charset=utf-8"


def size_of(data: bytes, content_type: str) -> tuple[int, int] | tuple[None, None]:
    """Return the width and height of an image in pixels, as it is stored; (None, None) if
    unknown."""
    if not content_type.startswith("image/"):
        return None, None
    try:
        width, height = imagesize.get(BytesIO(data), exif_rotation=False)
    except Exception:  # a library reads untrusted bytes: whatever it raises, the size is unknown
        return None, None
    if not 0 < width < 2**31 or not 0 < height < 2**31:
        return None, None
    return int(width), int(height)


def _is_json(data: bytes) -> bool:
    """Return whether bytes are a JSON object or array; large ones are judged by both ends."""
    trimmed = data[:64].lstrip()[:1] + data[-64:].rstrip()[-1:]
    if trimmed not in {b"{}", b"[]"}:
        return False
    if len(data) > _MOST_JSON:
        return True
    try:
        read_json(data)
    except UnreadableJson:
        return False
    return True
