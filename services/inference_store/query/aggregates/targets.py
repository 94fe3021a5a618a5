"""Prepares the query of each model for an aggregation."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.registrations import Registration
from inference_store.query.across_models import build_queries
from inference_store.query.preparation import PreparedQuery, QueryRequest, prepare

from .part_collector import Target


async def build_targets(
    connection: AsyncConnection, models: Sequence[Registration], request: QueryRequest
) -> tuple[list[Target], PreparedQuery]:
    """Return the query of each model, and the query prepared for all, with warnings.

    A name is known if any of the models has it.

    Raises UnknownKey, ImpossibleComparison, Invalid, NotKept.
    """
    numbers = [registration.model for registration in models]
    prepared = await prepare(connection, numbers, request)
    queries = await build_queries(connection, prepared.query, numbers)
    return [Target(*pair) for pair in zip(models, queries, strict=True)], prepared
