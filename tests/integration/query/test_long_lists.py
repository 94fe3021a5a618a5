"""Several long lists are joined by hash, as the settings tell Postgres to do."""

from sqlalchemy import text, union_all
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline, fetch
from inference_store.query.driving import build_matches, settings_for
from inference_store.query.explain import Explain, recording
from inference_store.query.list_sizes import count_lists, find_candidates
from inference_store.query.matching import match_by_scan
from inference_store.query.page import find_page
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.scan_range import find_pieces_of
from tests.integration.stored_inferences import NewInference, at, store

_DAY = 86_400


async def test_joins_long_lists(engine: AsyncEngine) -> None:
    """All are joined; or two, if one is shorter, and the third is tested."""
    inferences = [
        NewInference(str(n), at(n * _DAY / 5), [("n", "int", str(n)), ("m", "int", str(n % 3))])
        for n in range(20)
    ]
    model = await store(engine, *inferences)
    question = QueryRequest(filter=parse_text("n >= 5 AND m <> 1 AND n < 18"))
    expected = [one.uid for n, one in enumerate(inferences) if 5 <= n < 18 and n % 3 != 1]
    async with engine.connect() as connection:
        query = (await prepare(connection, model, question)).query
        parts = await find_pieces_of(connection, query.scan_range, newest_first=True)
        deadline = Deadline.after(300)
        for some, joins in ((1, 2), (100, 1)):
            # A list that is longer than `most` counts as long.
            candidates = await find_candidates(
                connection, query, parts, deadline, most=1, some=some
            )
            assert {candidate.joins for candidate in candidates} == {joins}
            assert {bool(candidate.pairs) for candidate in candidates} == {joins == 1}
            statement = union_all(*(build_matches(query, one)[0] for one in candidates))
            rows = await fetch(connection, statement, deadline, settings=settings_for(candidates))
            assert sorted(row[0] for row in rows) == sorted(expected)


async def test_counts_expensive_lists_only_if_no_list_is_very_short(engine: AsyncEngine) -> None:
    """A list of one scan leads if it is very short. A list of those that have a key takes a scan
    of every table, and is not counted."""
    inferences = [
        NewInference(str(n), at(n * _DAY), [("n", "int", str(n)), ("m", "string", f"{n % 4}")])
        for n in range(12)
    ]
    model = await store(engine, *inferences)
    question = QueryRequest(filter=parse_text("m = '3' AND n IS NOT NULL"))
    async with engine.connect() as connection:
        query = (await prepare(connection, model, question)).query
        deadline = Deadline.after(300)
        with recording(True) as explanation:
            page = await find_page(connection, query, limit=100, deadline=deadline, scan=1)
        assert page.uids == [inferences[n].uid for n in (11, 7, 3)]
        assert page.driven_by == 0
        assert explanation is not None
        counted = [
            step for step in explanation.steps if step.what.startswith("see which index leads")
        ]
        assert counted
        assert all(
            step.what.endswith("on metadata_string") or " x" in step.what for step in counted
        )
        assert not any("metadata_timestamp" in step.what for step in counted)
        # If counting stops at one, every list is long, and all lists are counted.
        parts = await find_pieces_of(connection, query.scan_range, newest_first=True)
        candidates = await find_candidates(connection, query, parts, deadline, most=1, some=1)
        assert [candidate.sizes for candidate in candidates] == [(1, 1)] * 3
        candidates = await count_lists(connection, query, parts, deadline, most=5, some=5)
        assert [candidate.sizes for candidate in candidates] == [
            (int(n % 4 == 3), 5) for n in range(11, -1, -1)
        ]


async def test_compares_two_values_within_each_inference(engine: AsyncEngine) -> None:
    """Without this Postgres hashed all combinations, or joined every value with every other in a
    time span that it took to be short."""
    inferences = [
        NewInference(str(n), at(n), [("n", "int", str(n)), ("m", "int", str(n % 7))])
        for n in range(400)
    ]
    model = await store(engine, *inferences)
    async with engine.connect() as connection:
        await connection.execute(text("ANALYZE"))
        query = (
            await prepare(connection, model, QueryRequest(filter=parse_text("n + m > 300")))
        ).query
        plan = await connection.execute(Explain(match_by_scan(query, query.scan_range)))
        assert "hashed SubPlan" not in str(plan.scalar_one())
        page = await find_page(connection, query, limit=500, deadline=Deadline.after(300))
    assert page.uids == [inferences[n].uid for n in range(399, -1, -1) if n + n % 7 > 300]
