"""The content types of bytes that nobody has declared."""

import re
from typing import Final

from .json_text import UnreadableJson, read_json
from .layout import find_image_type

JSON: Final = "application/json"
_OCTETS: Final = "application/octet-stream"
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_MOST_JSON = 64 * 1024


def response_type_of(response: bytes) -> str:
    """Return the content type of a response, which is JSON by its first byte alone."""
    return JSON if response[:1] in (b"{", b"[") else content_type_of(response)


def content_type_of(data: bytes) -> str:
    """Return the content type that the bytes indicate."""
    if (image := find_image_type(data)) is not None:
        return image
    if _BINARY.search(data):
        return _OCTETS
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return _OCTETS
    return JSON if _is_json(data) else "text/plain; charset=utf-8"


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
