"""A span that is being dropped: no query shows its rows, which have no marks of their own, even if
it reads the spans on both sides of it."""

from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import registrations
from inference_store.index.tables import inference, partition_span
from inference_store.inference.events.event import Extras
from inference_store.query.across_models import build_queries, count_across, find_across
from inference_store.query.aggregates import (
    AGGREGATES,
    Aggregation,
    ByName,
    ByTime,
    Measure,
    Name,
    aggregate,
)
from inference_store.query.aggregates.targets import build_targets
from inference_store.query.count import count
from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline
from inference_store.query.page import find_page
from inference_store.query.preparation import QueryRequest, prepare
from tests.integration.stored_inferences import NewInference, at, store

_DAY = 86_400
_MODELS = ("one", "other")


def _make_inferences(model_id: str) -> list[NewInference]:
    """Make two inferences a day for three days, each a span."""
    return [
        NewInference(
            str(n),
            at(n * _DAY / 2),
            [("n", "int", str(n))],
            extras=Extras(ok=True),
            model_id=model_id,
        )
        for n in range(6)
    ]


async def _store_models(engine: AsyncEngine) -> list[int]:
    """Store two models, and close the second of three spans, as if one had expired in it."""
    models = [await store(engine, *_make_inferences(model_id)) for model_id in _MODELS]
    async with engine.begin() as connection:
        here = partition_span.c
        middle = (here.lo <= at(_DAY)) & (here.hi > at(_DAY))
        closing = partition_span.update().where(middle).values(state="dropping")
        await connection.execute(closing)
        assert await connection.scalar(select(func.count()).select_from(partition_span)) == 3
        assert await connection.scalar(select(func.count()).select_from(inference)) == 12
    return models


def _question(filter: str | None) -> QueryRequest:
    return QueryRequest(filter=parse_text(filter) if filter else None)


@pytest.mark.parametrize("filter", [None, "ok = TRUE", "n >= 0", "n <> 9 AND ok = TRUE"])
async def test_pages_and_counts_agree(engine: AsyncEngine, filter: str | None) -> None:
    models = await _store_models(engine)
    expected = [
        [inference for inference in _make_inferences(model) if inference.inference_id not in "23"]
        for model in _MODELS
    ]
    async with engine.connect() as connection:
        for model, inferences in zip(models, expected, strict=True):
            query = (await prepare(connection, model, _question(filter))).query
            uids = [inference.uid for inference in inferences]
            assert await count(connection, query, deadline=Deadline.after(60)) == 4
            for scan in (1, 4_000):
                deadline = Deadline.after(60)
                page = await find_page(connection, query, limit=9, deadline=deadline, scan=scan)
                assert page.uids == uids[::-1]
                oldest = query.in_order()
                page = await find_page(connection, oldest, limit=9, deadline=deadline, scan=scan)
                assert page.uids == uids
        everything = sorted(inference.uid for inferences in expected for inference in inferences)
        query = (await prepare(connection, models, _question(filter))).query
        queries = await build_queries(connection, query, models)
        assert await count_across(connection, queries, deadline=Deadline.after(60)) == 8
        for scan in (1, 4_000):
            deadline = Deadline.after(60)
            both = await find_across(connection, queries, limit=20, deadline=deadline, scan=scan)
            assert [hit.uid for hit in both.hits] == everything[::-1]


@pytest.mark.parametrize("filter", [None, "ok = TRUE"])
async def test_aggregates_agree(engine: AsyncEngine, filter: str | None) -> None:
    await _store_models(engine)
    by_key = ByName("n", "group_by[0]", Name("n", None, "group_by[0]"))
    by_day = ByTime("day", "group_by[0]", "day", "UTC")
    async with engine.connect() as connection:
        assert await _count_groups(connection, filter, ()) == {(): 4}
        keys = await _count_groups(connection, filter, (by_key,))
        assert {int(n): count for (n,), count in keys.items()} == {0: 1, 1: 1, 4: 1, 5: 1}
        days = await _count_groups(connection, filter, (by_day,))
        assert sorted(days.values()) == [2, 2]
        values = Measure(
            function=AGGREGATES["distinct"], of=Name("n", None, "of"), name="all", path=""
        )
        [distinct] = (await _measure_groups(connection, filter, (), values)).values()
        assert set(map(int, distinct["values"])) == {0, 1, 4, 5}


async def _count_groups(
    connection: AsyncConnection, filter: str | None, by: tuple[ByName | ByTime, ...]
) -> dict[tuple[Any, ...], Any]:
    """Return the number of inferences of one model in each group."""
    everything = Measure(function=AGGREGATES["count"], of=None, name="all", path="")
    return {
        key: n
        for key, n in (await _measure_groups(connection, filter, by, everything)).items()
        if n
    }


async def _measure_groups(
    connection: AsyncConnection,
    filter: str | None,
    by: tuple[ByName | ByTime, ...],
    measure: Measure,
) -> dict[tuple[Any, ...], Any]:
    known_registrations = await registrations.find_by_ids(connection, [_MODELS[0]])
    targets, _ = await build_targets(
        connection, list(known_registrations.values()), _question(filter)
    )
    aggregation = Aggregation(measures=(measure,), group_by=by, limit=100)
    answer = await aggregate(connection, targets, aggregation, deadline=Deadline.after(60))
    return {
        tuple(group["key"].values()): group["measures"][measure.name] for group in answer.groups
    }
