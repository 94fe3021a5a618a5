"""Counts of all kinds, with the stored counts and with every inference counted again."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import registrations
from inference_store.index.tables import partition_count
from inference_store.query.across_models import build_queries, count_across
from inference_store.query.aggregates import (
    AGGREGATES,
    Aggregation,
    ByLabel,
    Measure,
    aggregate,
    build_targets,
)
from inference_store.query.count import count
from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.scan_range import find_pieces_of
from inference_store.query.stored_counts import read_numbers
from tests.integration.stored_inferences import at

FILTERS = (
    None,
    "n IS NULL",
    "n IS NOT NULL",
    "nothing IS NULL",
    "nothing IS NOT NULL",
    "NOT sent(n)",
    "sent(nothing)",
    "spelt IS NULL",
    '"tags[]" IS NULL',
    "prediction(label = 'person')",
    "prediction(label = 'nobody')",
)
FEW_FILTERS = (None, "n IS NULL", "prediction(label = 'person')")
"""Everything, those that lack a key, those with a label: each reads different counts."""
_ALL = Measure(function=AGGREGATES["count"], of=None, name="all", path="")


async def _collect_counts(
    connection: AsyncConnection, models: dict[str, int], filters: Sequence[str | None]
) -> dict[Any, Any]:
    """Collect counts of each model and of both, and groups by label.

    Each is of everything, and of a time span that ends within a partition.
    """
    collected: dict[Any, Any] = {}
    numbers, deadline = list(models.values()), Deadline.after(600)
    for until in (None, at(86_400 * 1.5)):
        for text in filters:
            question = QueryRequest(filter=parse_text(text) if text else None, until=until)
            for model_id, model in models.items():
                query = (await prepare(connection, model, question)).query
                collected[text, model_id, until] = await count(connection, query, deadline=deadline)
            query = (await prepare(connection, numbers, question)).query
            queries = await build_queries(connection, query, numbers)
            collected[text, until] = await count_across(connection, queries, deadline=deadline)
        for model_id in models:
            collected["label", model_id, until] = await _count_by_label(connection, model_id, until)
    return collected


async def _count_by_label(connection: AsyncConnection, model_id: str, until: Any) -> dict[Any, Any]:
    known_registrations = await registrations.find_by_ids(connection, [model_id])
    chosen, _ = await build_targets(
        connection, list(known_registrations.values()), QueryRequest(until=until)
    )
    aggregation = Aggregation(
        measures=(_ALL,), group_by=(ByLabel("label", "group_by[0]"),), limit=9_999
    )
    answer = await aggregate(connection, chosen, aggregation, deadline=Deadline.after(300))
    return {group["key"]["label"]: group["measures"]["all"] for group in answer.groups}


async def check_counts(
    engine: AsyncEngine, models: dict[str, int], filters: Sequence[str | None] = FEW_FILTERS
) -> dict[Any, Any]:
    """Return the counts, and check that they are the same without stored counts."""
    async with engine.connect() as connection:
        collected = await _collect_counts(connection, models, filters)
        await connection.execute(update(partition_count).values(counted_at=None))
        assert collected == await _collect_counts(connection, models, filters)
        await connection.rollback()
    return collected


async def count_usable_partitions(engine: AsyncEngine, model: int) -> int:
    """Return the number of partitions whose stored counts can be used for a model."""
    async with engine.connect() as connection:
        query = (await prepare(connection, model, QueryRequest())).query
        parts = await find_pieces_of(connection, query.scan_range, newest_first=True)
        return len(await read_numbers(connection, [query], parts, Deadline.after(300)))


async def count_partition_counts(engine: AsyncEngine) -> int:
    """Return the number of stored counts, usable or outdated."""
    async with engine.connect() as connection:
        return int(await connection.scalar(select(func.count()).select_from(partition_count)) or 0)
