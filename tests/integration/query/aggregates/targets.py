"""The models of an aggregation, with the query of each."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.registrations import Registration
from inference_store.query.aggregates import Target
from inference_store.query.preparation import QueryRequest, prepare


async def build_targets(
    connection: AsyncConnection, models: Sequence[Registration], request: QueryRequest
) -> list[Target]:
    """Return the query of each model."""
    numbers = [registration.model for registration in models]
    prepared = await prepare(connection, numbers, request)
    return [Target(of, prepared.query.of_model(of.model)) for of in models]
