"""Several lists that are long: joined by their hashes, as Postgres is told to."""

import pytest
from sqlalchemy import text, union_all
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.query.ask import QueryRequest, prepare
from inference_store.query.bounded import Deadline, fetch
from inference_store.query.cql2 import parse_text
from inference_store.query.driving import build_matches, settings_for
from inference_store.query.explain import Explain, recording
from inference_store.query.list_sizes import count_lists, find_candidates
from inference_store.query.matching import match_by_scan
from inference_store.query.page import find_page
from inference_store.query.scan_range import find_pieces_of
from tests.integration.stored import Made, at, store

_DAY = 86_400


@pytest.mark.parametrize(("some", "joins"), [(1, 2), (100, 1)])
async def test_they_are_joined(engine: AsyncEngine, some: int, joins: int) -> None:
    """All of them; or two, where one is not so long, and the third is tested."""
    made = [
        Made(str(n), at(n * _DAY / 5), [("n", "int", str(n)), ("m", "int", str(n % 3))])
        for n in range(20)
    ]
    model = await store(engine, *made)
    question = QueryRequest(filter=parse_text("n >= 5 AND m <> 1 AND n < 18"))
    wanted = {each.uid for n, each in enumerate(made) if 5 <= n < 18 and n % 3 != 1}
    async with engine.connect() as connection:
        query = (await prepare(connection, model, question)).query
        parts = await find_pieces_of(connection, query.scan_range, newest_first=True)
        deadline = Deadline.after(60)
        # what is counted no further than this is taken to be long
        looked = await find_candidates(connection, query, parts, deadline, most=1, some=some)
        assert [each.joins for each in looked] == [joins] * len(looked)
        assert all(each.pairs == (joins == 1) for each in looked)
        statement = union_all(*(build_matches(query, each)[0] for each in looked))
        rows = await fetch(connection, statement, deadline, settings=settings_for(looked))
        assert sorted(row[0] for row in rows) == sorted(wanted)


async def test_what_is_dear_is_counted_only_where_nothing_is_very_short(
    engine: AsyncEngine,
) -> None:
    """A list of one scan leads where it is very short; of those that have a key, which take a
    scan of every table, none is counted."""
    made = [
        Made(str(n), at(n * _DAY), [("n", "int", str(n)), ("m", "string", f"{n % 4}")])
        for n in range(12)
    ]
    model = await store(engine, *made)
    question = QueryRequest(filter=parse_text("m = '3' AND n IS NOT NULL"))
    async with engine.connect() as connection:
        query = (await prepare(connection, model, question)).query
        deadline = Deadline.after(60)
        with recording(True) as said:
            page = await find_page(connection, query, limit=100, deadline=deadline, scan=1)
        assert page.uids == [made[n].uid for n in (11, 7, 3)]
        assert page.driven_by == 0
        assert said is not None
        counted = [step for step in said.steps if step.what.startswith("see which index leads")]
        assert counted
        assert all(
            step.what.endswith("on metadata_string") or " x" in step.what for step in counted
        )
        assert not any("metadata_timestamp" in step.what for step in counted)
        # counted no further than one everything is long: then all lists are
        parts = await find_pieces_of(connection, query.scan_range, newest_first=True)
        looked = await find_candidates(connection, query, parts, deadline, most=1, some=1)
        assert [each.sizes for each in looked] == [(1, 1)] * 3
        looked = await count_lists(connection, query, parts, deadline, most=5, some=5)
        assert [each.sizes for each in looked] == [(int(n % 4 == 3), 5) for n in range(11, -1, -1)]


async def test_two_values_of_one_inference_are_tested_inference_by_inference(
    engine: AsyncEngine,
) -> None:
    """Postgres would hash all combinations that there are; of a span of time that it takes to be
    short it joined every value with every other."""
    made = [
        Made(str(n), at(n), [("n", "int", str(n)), ("m", "int", str(n % 7))]) for n in range(400)
    ]
    model = await store(engine, *made)
    async with engine.connect() as connection:
        await connection.execute(text("ANALYZE"))
        query = (
            await prepare(connection, model, QueryRequest(filter=parse_text("n + m > 300")))
        ).query
        plan = await connection.execute(Explain(match_by_scan(query, query.scan_range)))
        assert "hashed SubPlan" not in str(plan.scalar_one())
        found = await find_page(connection, query, limit=500, deadline=Deadline.after(60))
    assert found.uids == [made[n].uid for n in range(399, -1, -1) if n + n % 7 > 300]
