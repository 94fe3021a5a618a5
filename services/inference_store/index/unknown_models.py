"""Refuses an unknown model, and names the ids most like it of those that the caller may read."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import AccessScope
from inference_store.index import registrations
from inference_store.inference.errors import NotFound
from inference_store.inference.nearest import MOST_COMPARED, nearest

_MOST_NAMED: Final = 3


@asynccontextmanager
async def naming_nearest_models(
    connection: AsyncConnection, model_id: str, within: AccessScope
) -> AsyncIterator[None]:
    """Raise NotFound with the nearest ids within the scope in place of NotFound without them."""
    try:
        yield
    except NotFound:
        raise await refuse_model(connection, model_id, within) from None


async def refuse_model(connection: AsyncConnection, model_id: str, within: AccessScope) -> NotFound:
    """Return the error for a model that is not within the scope, with the nearest ids that are.

    Its words are the same whether or not the model exists outside the scope.
    """
    model_ids = await registrations.list_ids(connection, within=within, limit=MOST_COMPARED)
    near = nearest(model_id, model_ids, limit=_MOST_NAMED)
    hint = f" The nearest are {', '.join(near)}." if near else ""
    return NotFound(f"There is no model {model_id!r}.{hint}")
