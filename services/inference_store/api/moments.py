"""Pages of what was asked for at some moment, newest first: runs, erasures."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from inference_store.api import cursors
from inference_store.api.answer import named
from inference_store.api.dependencies import Reading
from inference_store.api.schemas.links import PageParameters
from inference_store.store import registrations
from inference_store.store.errors import InvalidCursor


def before(page: PageParameters) -> tuple[datetime, UUID] | None:
    key = cursors.after_moment(page.cursor)
    try:
        return None if key is None else (key[0], UUID(key[1]))
    except ValueError:
        raise InvalidCursor("The cursor cannot be used: ask without one.") from None


async def page(connection: Reading, found: Sequence[Any], limit: int) -> dict[str, Any]:
    """A page of runs or erasures, with models by their ids."""
    items, following = cursors.cut(
        found, limit, lambda each: cursors.moment(each.requested_at, each.id)
    )
    names = await registrations.names(connection, {each.model for each in items})
    return {
        "items": [named(each, "model") | {"model_id": names.get(each.model)} for each in items],
        "next": following,
    }
