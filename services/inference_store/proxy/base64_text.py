"""Bytes inside JSON: base64, and `data:` addresses that hold it."""

import binascii
from base64 import b64decode
from typing import Final
from urllib.parse import unquote_to_bytes

_URL_SAFE: Final = str.maketrans("-_", "+/")


def from_base64(text: str) -> bytes | None:
    """Return the bytes of base64, of either alphabet, padded or not, in lines or not; None if it is
    not base64."""
    plain = "".join(text.split()).translate(_URL_SAFE).rstrip("=")
    if not plain:
        return None
    try:
        return b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def from_data_url(url: str) -> tuple[bytes, str | None] | None:
    """Return the bytes and the content type of `data:image/png;base64,…`; None if it is not such a
    URL, or unreadable."""
    if url[:5].lower() != "data:":
        return None
    kind, comma, text = url[5:].partition(",")
    content_type, semicolon, coding = kind.rpartition(";")
    if not comma:
        return None
    plain = unquote_to_bytes(text.encode("utf-8", "replace"))
    if not semicolon or coding.strip().lower() != "base64":
        return plain, kind.strip().lower() or None
    raw = from_base64(plain.decode("latin-1"))
    return None if raw is None else (raw, content_type.strip().lower() or None)
