"""The text of a cursor of a plain list: its key, opaque."""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import orjson

from inference_store.inference.errors import Fault, InvalidCursor


def encode(*key: Any) -> str:
    """Return a cursor that continues after the item with this key."""
    return base64.urlsafe_b64encode(orjson.dumps(key)).rstrip(b"=").decode()


def decode(cursor: str | None, *kinds: type) -> Sequence[Any] | None:
    """Return the key to continue after; None without a cursor. Raises InvalidCursor."""
    if cursor is None:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        key = orjson.loads(raw)
    except (binascii.Error, ValueError):
        key = None
    fits = isinstance(key, list) and [type(part) for part in key] == list(kinds)
    if not fits or not all(_is_storable(part) for part in key):
        fault = Fault("query.cursor", "it is damaged, or of another list")
        raise InvalidCursor("The cursor cannot be used: ask without one.", faults=[fault])
    parts: list[Any] = key
    return parts


def _is_storable(part: Any) -> bool:
    """Return whether Postgres can compare it: text without NUL, an integer of eight bytes."""
    if type(part) is int:
        return -(2**63) <= part < 2**63
    return type(part) is not str or "\0" not in part
