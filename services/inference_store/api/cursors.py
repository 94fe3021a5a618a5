"""Cursors of plain lists: the sort key of the last item, opaque."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from inference_store.inference.errors import InvalidCursor
from inference_store.platform.json_encoding import format_instant
from inference_store.query.list_cursors import decode, encode

__all__ = ["cut_page", "decode", "decode_one", "decode_time_key", "encode", "make_time_key"]
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
