"""Cursors of plain lists: the sort key of the last item, opaque."""

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson

from inference_store.inference.errors import Fault, InvalidCursor
from inference_store.platform.json_encoding import format_instant

Item = TypeVar("Item")


def cut_page(
    rows: Sequence[Item], limit: int, key: Callable[[Item], Any]
) -> tuple[Sequence[Item], str | None]:
    """Return a page of items, one more of which were read, and the cursor of the next page.

    `key`: of an item; of one part, or a tuple of several.
    """
    items = rows[:limit]
    if len(rows) <= limit:
        return items, None
    last = key(items[-1])
    return items, encode(*last) if isinstance(last, tuple) else encode(last)


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


def decode_one(cursor: str | None, kind: type) -> Any | None:
    """Return the one-part key to continue after; None without a cursor. Raises InvalidCursor."""
    key = decode(cursor, kind)
    return key[0] if key else None


def make_time_key(at: datetime, id: object) -> tuple[str | None, str]:
    """Return the key of a list that is sorted by time, then by id."""
    return format_instant(at), str(id)


def decode_time_key(cursor: str | None) -> tuple[datetime, str] | None:
    """Return the time and id to continue after; None without a cursor. Raises InvalidCursor."""
    key = decode(cursor, str, str)
    if key is None:
        return None
    try:
        return datetime.fromisoformat(key[0]).astimezone(UTC), key[1]
    except (ValueError, OverflowError):
        raise InvalidCursor("The cursor cannot be used: ask without one.") from None
