"""Pages of lists in order of time, newest first: runs, erasures, holds."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from inference_store.api import cursors
from inference_store.api.schemas.parameters import PageParameters
from inference_store.inference.errors import InvalidCursor

Item = TypeVar("Item", bound=Any)


def decode_before(page: PageParameters) -> tuple[datetime, UUID] | None:
    """Return the time and id to continue before; None without a cursor. Raises InvalidCursor."""
    key = cursors.decode_time_key(page.cursor)
    try:
        return None if key is None else (key[0], UUID(key[1]))
    except ValueError:
        raise InvalidCursor("The cursor cannot be used: ask without one.") from None


def cut_page(
    rows: Sequence[Item], limit: int, at: str = "requested_at"
) -> tuple[Sequence[Item], str | None]:
    """Return a page of items, one more of which were read, and the cursor of the next page.

    `at`: the attribute with the time.
    """
    return cursors.cut_page(
        rows, limit, lambda row: cursors.make_time_key(getattr(row, at), row.id)
    )


def make_next(rows: Sequence[Item], *, has_more: bool, at: str = "requested_at") -> str | None:
    """Return the cursor of the page after these items, if there are more."""
    if not has_more:
        return None
    return cursors.encode(*cursors.make_time_key(getattr(rows[-1], at), rows[-1].id))
