"""What is asked of each model."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.registrations import Registration
from inference_store.query.across import build_queries
from inference_store.query.ask import PreparedQuery, QueryRequest, prepare

from .gather import Target


async def targets(
    connection: AsyncConnection, models: Sequence[Registration], request: QueryRequest
) -> tuple[list[Target], PreparedQuery]:
    """The request of each model, and as it is asked of all, with warnings; a name is one that
    any of the models has.

    Raises UnknownKey, ImpossibleComparison, Invalid, NotKept.
    """
    numbers = [each.model for each in models]
    asked = await prepare(connection, numbers, request)
    queries = await build_queries(connection, asked.query, numbers)
    return [Target(*each) for each in zip(models, queries, strict=True)], asked
