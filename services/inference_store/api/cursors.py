"""Pages of lists: their parameters, and opaque cursors of the last item's sort key."""

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar
from uuid import UUID

import orjson
from pydantic import BaseModel, ConfigDict, Field

from inference_store.inference.errors import Fault, InvalidCursor
from inference_store.inference.field_docs import field_docs
from inference_store.platform.json_encoding import format_instant


class Parameters(BaseModel):
    """Query parameters: text that is read as what it should be."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """FastAPI documents parameters by their fields, never by the model's JSON schema."""
        for name, doc in field_docs(cls).items():
            cls.model_fields[name].description = doc


class PageParameters(Parameters):
    """Which page of a list."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    """Most items of a page."""
    cursor: Annotated[str, Field(max_length=2000)] | None = None
    """`next` of the page before."""


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


def _make_time_key(at: datetime, id: object) -> tuple[str | None, str]:
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


Timed = TypeVar("Timed", bound=Any)


def decode_before(page: PageParameters) -> tuple[datetime, UUID] | None:
    """Return the time and id to continue before; None without a cursor. Raises InvalidCursor."""
    key = decode_time_key(page.cursor)
    try:
        return None if key is None else (key[0], UUID(key[1]))
    except ValueError:
        raise InvalidCursor("The cursor cannot be used: ask without one.") from None


def cut_time_page(
    rows: Sequence[Timed], limit: int, at: str = "requested_at"
) -> tuple[Sequence[Timed], str | None]:
    """Return a page of items, one more of which were read, and the cursor of the next page.

    `at`: the attribute with the time.
    """
    return cut_page(rows, limit, lambda row: _make_time_key(getattr(row, at), row.id))


def make_next(rows: Sequence[Timed], *, has_more: bool, at: str = "requested_at") -> str | None:
    """Return the cursor of the page after these items, if there are more."""
    if not has_more:
        return None
    return encode(*_make_time_key(getattr(rows[-1], at), rows[-1].id))
