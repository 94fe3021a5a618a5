"""What is asked of counts: with those that are stored, and with every inference counted anew."""

from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import registrations
from inference_store.index.tables import partition_count
from inference_store.query.across import build_queries, count_across
from inference_store.query.aggregates import (
    AGGREGATES,
    Aggregation,
    ByLabel,
    Measure,
    aggregate,
    targets,
)
from inference_store.query.ask import QueryRequest, prepare
from inference_store.query.bounded import Deadline
from inference_store.query.count import count
from inference_store.query.cql2 import parse_text
from inference_store.query.page import find_page
from inference_store.query.scan_range import find_pieces_of
from inference_store.query.stored import read_numbers
from tests.integration.stored import at

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
_FEW = (None, "n IS NULL", "prediction(label = 'person')")
"""Of everything, of what lacks a key, of a label: each reads other counts."""
_ALL = Measure(function=AGGREGATES["count"], of=None, name="all", path="")


async def answers(
    connection: AsyncConnection, models: dict[str, int], *, whole: bool
) -> dict[Any, Any]:
    """Counts, counts over both models, groups by label, of everything and of a span of time that
    ends amid a partition; with `whole` by every filter, and pages too."""
    found: dict[Any, Any] = {}
    for until in (None, at(86_400 * 1.5)):
        for text in FILTERS if whole else _FEW:
            await _filtered(connection, models, text, until, found, whole)
        for model_id in models:
            found["label", model_id, until] = await _by_label(connection, model_id, until)
    return found


async def _filtered(
    connection: AsyncConnection,
    models: dict[str, int],
    text: str | None,
    until: Any,
    found: Any,
    pages: bool,
) -> None:
    deadline = Deadline.after(300)
    question = QueryRequest(filter=parse_text(text) if text else None, until=until)
    for model_id, model in models.items():
        query = (await prepare(connection, model, question)).query
        found[text, model_id, until] = await count(connection, query, deadline=deadline)
        if pages:
            page = await find_page(connection, query, limit=50, deadline=deadline, scan=1)
            found["page", text, model_id, until] = page.uids
    query = (await prepare(connection, list(models.values()), question)).query
    queries = await build_queries(connection, query, list(models.values()))
    found[text, until] = await count_across(connection, queries, deadline=deadline)


async def _by_label(connection: AsyncConnection, model_id: str, until: Any) -> dict[Any, Any]:
    known = await registrations.known(connection, [model_id])
    chosen, _ = await targets(connection, list(known.values()), QueryRequest(until=until))
    asked = Aggregation(measures=(_ALL,), group_by=(ByLabel("label", "group_by[0]"),), limit=9_999)
    answer = await aggregate(connection, chosen, asked, deadline=Deadline.after(300))
    return {group["key"]["label"]: group["measures"]["all"] for group in answer.groups}


async def agree(
    engine: AsyncEngine, models: dict[str, int], *, whole: bool = False
) -> dict[Any, Any]:
    """The answers; they are the same where no count is stored."""
    async with engine.connect() as connection:
        found = await answers(connection, models, whole=whole)
        await connection.execute(update(partition_count).values(counted_at=None))
        assert found == await answers(connection, models, whole=whole)
        await connection.rollback()
    return found


async def holding(engine: AsyncEngine, model: int) -> int:
    """Of how many partitions a model's counts are read."""
    async with engine.connect() as connection:
        query = (await prepare(connection, model, QueryRequest())).query
        parts = await find_pieces_of(connection, query.scan_range, newest_first=True)
        return len(await read_numbers(connection, [query], parts, Deadline.after(300)))


async def begun(engine: AsyncEngine) -> int:
    """How many counts there are, whether they hold or not."""
    async with engine.connect() as connection:
        return int(await connection.scalar(select(func.count()).select_from(partition_count)) or 0)
