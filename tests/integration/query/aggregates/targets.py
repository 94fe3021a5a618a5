"""The models of an aggregation, and its query."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.registrations import Registration
from inference_store.query.plan import Query
from inference_store.query.preparation import QueryRequest, prepare


async def build_targets(
    connection: AsyncConnection, models: Sequence[Registration], request: QueryRequest
) -> tuple[Sequence[Registration], Query]:
    """Return what `aggregate` takes."""
    numbers = [registration.model for registration in models]
    return models, (await prepare(connection, numbers, request)).query
