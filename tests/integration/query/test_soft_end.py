"""Pages that end early with what they have: together they hold every inference once."""

from collections.abc import Sequence
from itertools import pairwise, product
from random import Random
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.query.across_models import build_queries, find_across
from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline
from inference_store.query.matching import Query
from inference_store.query.page import find_page
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.progress import Progress

from .conftest import DAYS, Filled

# Led by one index, several or none; for a missing key; without any condition.
FILTERS = {
    "everything": None,
    "one index": "n >= 6",
    "two indexes": "n <> 7 AND even = TRUE",
    "rare": "rare = 'yes'",
    "no index": "ok = TRUE",
    "missing": "rare IS NULL",
    "prediction": "prediction(label = 'person' AND score BETWEEN 0.2 AND 0.8)",
    "either": "rare = 'yes' OR n BETWEEN 10 AND 12",
    "nothing": "n > 10 AND n < 10",
}


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
@pytest.mark.parametrize("models", [("one",), ("one", "other")], ids=["one model", "two models"])
async def test_pages_together_hold_everything_once(
    days: AsyncConnection, twenty_days: Filled, models: tuple[str, ...]
) -> None:
    numbers = [twenty_days.models[name] for name in models]
    ended_early = 0
    for (name, filter), newest_first in product(FILTERS.items(), (True, False)):
        queries = await _build_queries(days, numbers, filter, newest_first=newest_first)
        deadline = Deadline.after(300)
        whole, uids = await _fetch_page(days, queries, 500, deadline, 4_000, False)
        assert not whole.out_of_time
        assert uids == sorted(uids, reverse=newest_first)
        for scan in (1 if newest_first else 5, 4_000) if len(models) == 1 else (5,):
            case = f"{name} {scan} {len(models)} {newest_first}"
            all_uids, reached = await _fetch_everything(days, queries, Random(case), scan)
            assert all_uids == uids, case
            in_order = ((first > second) == newest_first for first, second in pairwise(reached))
            assert all(in_order), case
            # Each page reads a partition at least if an index leads, otherwise one scan.
            at_most = len(uids) if queries[0].is_driven else 3 * DAYS * len(models)
            assert len(reached) <= at_most + DAYS + 1, case
            ended_early += len(reached)
    assert ended_early > 200


async def test_a_first_page_answers_after_a_short_walk(
    days: AsyncConnection, twenty_days: Filled
) -> None:
    queries = await _build_queries(days, [twenty_days.one], "n >= 6", newest_first=True)
    soft = Deadline.after(300).softly(0)
    first, uids = await _fetch_page(days, queries, 100, soft, 2, False)
    assert first.out_of_time
    assert len(uids) == 2
    assert first.searched == uids[-1]
    on = [query.after(uids[-1]) for query in queries]
    second, more = await _fetch_page(days, on, 100, soft, 2, True)
    # Two of the scan, and the rest of the partition of that day or the next.
    assert second.out_of_time
    assert 2 < len(more) <= 5


async def test_empty_page_waits_for_the_whole_time(
    days: AsyncConnection, twenty_days: Filled
) -> None:
    """A soft end has no effect before there is a result."""
    queries = await _build_queries(days, [twenty_days.one], None, newest_first=True)
    soft = Deadline.after(300).softly(0)
    page, uids = await _fetch_page(days, queries, 100, soft, 4_000, False)
    assert page.searched is not None
    assert len(uids) >= 1
