"""Pages that end early with what they have: together they hold every inference once."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.inference.events.event import Extras
from inference_store.query.across_models import build_queries, find_across
from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline
from inference_store.query.matching import Query
from inference_store.query.page import find_page
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.progress import Progress
from tests.integration.stored_inferences import NewInference, at, store

_DAY = 86_400
_DAYS = 20
_MODELS = ("one", "other")
# Led by one index, several or none; for a missing key; without any condition.
FILTERS = {
    "everything": None,
    "one index": "n >= 6",
    "two indexes": "n <> 7 AND even = TRUE",
    "rare": "rare = 'yes'",
    "no index": "ok = TRUE",
    "missing": "rare IS NULL",
    "prediction": "prediction(label = 'person' AND score > 0.2)",
    "either": "rare = 'yes' OR n BETWEEN 10 AND 12",
    "nothing": "n > 10 AND n < 10",
}


def _make_inferences(model_id: str) -> list[NewInference]:
    """Make three inferences a day for twenty days, each day a partition."""
    return [
        NewInference(
            f"id-{n}",
            at(n * _DAY / 3),
            [
                ("n", "int", str(n)),
                ("even", "bool", str(n % 2 == 0).lower()),
                *([("rare", "string", "yes")] if n in {2, 31, 58} else []),
            ],
            [("person" if n % 5 == 0 else "dog", n / 100)],
            extras=Extras(ok=n % 4 != 0),
            model_id=model_id,
        )
        for n in range(3 * _DAYS)
    ]


async def _build_queries(
    connection: AsyncConnection, models: Sequence[int], filter: str | None, *, newest_first: bool
) -> Sequence[Query]:
    question = QueryRequest(
        filter=None if filter is None else parse_text(filter), newest_first=newest_first
    )
    query = (await prepare(connection, models if len(models) > 1 else models[0], question)).query
    return await build_queries(connection, query, models)


async def _fetch_page(
    connection: AsyncConnection,
    queries: Sequence[Query],
    limit: int,
    deadline: Deadline,
    scan: int,
    goes_on: bool,
) -> tuple[Progress, list[UUID]]:
    options: dict[str, Any] = {
        "limit": limit,
        "deadline": deadline,
        "scan": scan,
        "goes_on": goes_on,
    }
    if len(queries) == 1:
        alone = await find_page(connection, queries[0], **options)
        return alone, alone.uids
    page = await find_across(connection, queries, **options)
    return page, [hit.uid for hit in page.hits]


async def _fetch_everything(
    connection: AsyncConnection, queries: Sequence[Query], random: Random, scan: int
) -> tuple[list[UUID], list[UUID]]:
    """Return all uids, page by page as a client follows cursors, and where each page ended."""
    uids: list[UUID] = []
    reached: list[UUID] = []
    while True:
        # Most end at once, some in the middle of a statement.
        seconds = random.choice([0, 0, 0, 0.01 * random.random()])
        deadline, limit = Deadline.after(300).softly(seconds), random.randrange(1, 30)
        far, page_uids = await _fetch_page(
            connection, queries, limit, deadline, scan, bool(reached)
        )
        uids += page_uids
        if len(page_uids) == limit:
            reached.append(page_uids[-1])
        elif far.out_of_time:
            assert far.searched is not None
            reached.append(far.searched)
        else:
            return uids, reached
        queries = [query.after(reached[-1]) for query in queries]


@pytest.mark.long
@pytest.mark.parametrize("newest_first", [True, False], ids=["newest first", "oldest first"])
@pytest.mark.parametrize("count", [1, 2], ids=["one model", "two models"])
async def test_pages_together_hold_everything_once(
    engine: AsyncEngine, count: int, newest_first: bool
) -> None:
    models = [await store(engine, *_make_inferences(model_id)) for model_id in _MODELS[:count]]
    ended_early = 0
    async with engine.connect() as connection:
        for name, filter in FILTERS.items():
            queries = await _build_queries(connection, models, filter, newest_first=newest_first)
            whole, uids = await _fetch_page(
                connection, queries, 500, Deadline.after(300), 4_000, False
            )
            assert not whole.out_of_time
            assert uids == sorted(uids, reverse=newest_first)
            for scan in (1, 5, 4_000) if count == 1 else (5,):
                random = Random(f"{name} {scan} {count} {newest_first}")
                all_uids, reached = await _fetch_everything(connection, queries, random, scan)
                assert all_uids == uids, (name, scan)
                assert all(
                    (first > second) == newest_first for first, second in pairwise(reached)
                ), name
                # Each page reads a partition at least if an index leads, otherwise one scan.
                at_most = len(uids) if queries[0].is_driven else 3 * _DAYS * count
                assert len(reached) <= at_most + _DAYS + 1, (name, scan)
                ended_early += len(reached)
    assert ended_early > 100


async def test_a_first_page_answers_after_a_short_walk(engine: AsyncEngine) -> None:
    [model] = [await store(engine, *_make_inferences("one"))]
    async with engine.connect() as connection:
        queries = await _build_queries(connection, [model], "n >= 6", newest_first=True)
        soft = Deadline.after(300).softly(0)
        first, uids = await _fetch_page(connection, queries, 100, soft, 2, False)
        assert first.out_of_time
        assert len(uids) == 2
        assert first.searched == uids[-1]
        on = [query.after(uids[-1]) for query in queries]
        second, more = await _fetch_page(connection, on, 100, soft, 2, True)
        # Two of the scan, and the rest of the partition of that day or the next.
        assert second.out_of_time
        assert 2 < len(more) <= 5


async def test_empty_page_waits_for_the_whole_time(engine: AsyncEngine) -> None:
    """A soft end has no effect before there is a result."""
    [model] = [await store(engine, *_make_inferences("one"))]
    async with engine.connect() as connection:
        queries = await _build_queries(connection, [model], None, newest_first=True)
        page, uids = await _fetch_page(
            connection, queries, 100, Deadline.after(300).softly(0), 4_000, False
        )
        assert page.searched is not None
        assert len(uids) >= 1
