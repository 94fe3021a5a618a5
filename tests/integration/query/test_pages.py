"""Pages and counts over many partitions."""

from collections.abc import Callable
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.tables import erasing
from inference_store.inference.errors import ImpossibleComparison, UnknownKey
from inference_store.inference.events.event import Extras
from inference_store.query.count import count
from inference_store.query.deadline import Deadline, OutOfTime
from inference_store.query.explain import recording
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.matching import Query
from inference_store.query.operators import OPERATORS
from inference_store.query.page import find_page
from inference_store.query.preparation import QueryRequest, prepare
from tests.integration.stored_inferences import NewInference, at, store

_DAY = 86_400
_DAYS = 20


def _make_entry(key: str, operator: str, value: object, kind: str | None = None) -> MetadataEntry:
    return MetadataEntry("metadata_filter[0]", key, kind, OPERATORS[operator], value)


def _make_inferences() -> list[NewInference]:
    """Make three inferences a day for twenty days; every fifth has the label `person`."""
    return [
        NewInference(
            f"id-{n % 10}",
            at(n * _DAY / 3),
            [
                ("n", "int", str(n)),
                ("even", "bool", str(n % 2 == 0).lower()),
                *([("rare", "string", "yes")] if n in {2, 31} else []),
            ],
            [("person" if n % 5 == 0 else "dog", n / 100), ("person", 0.9)],
            aliases=(f"alias-{n}",),
            extras=Extras(ok=n % 3 == 0, data_hash=f"{n % 4:064x}"),
        )
        for n in range(3 * _DAYS)
    ]


QUESTIONS: dict[str, tuple[QueryRequest, Callable[[int], bool]]] = {
    "everything": (QueryRequest(), lambda _: True),
    "one comparison": (QueryRequest(metadata=[_make_entry("n", "gte", "30")]), lambda n: n >= 30),
    "a rare one": (
        QueryRequest(metadata=[_make_entry("rare", "eq", "yes")]),
        lambda n: n in {2, 31},
    ),
    "two comparisons": (
        QueryRequest(metadata=[_make_entry("n", "lt", 40), _make_entry("even", "eq", True)]),
        lambda n: n < 40 and n % 2 == 0,
    ),
    "missing": (
        QueryRequest(metadata=[_make_entry("rare", "missing", None)]),
        lambda n: n not in {2, 31},
    ),
    "ok": (QueryRequest(ok=True), lambda n: n % 3 == 0),
    "hash": (QueryRequest(data_hashes=[f"{1:064x}", f"{2:064X}"]), lambda n: n % 4 in {1, 2}),
    "ids": (QueryRequest(inference_ids=["id-3", "alias-8"]), lambda n: n % 10 == 3 or n == 8),
    "prediction": (
        QueryRequest(predicted=True, labels=["person"], scores={"lt": 0.5}),
        lambda n: n % 5 == 0 and n / 100 < 0.5,
    ),
    "score alone": (QueryRequest(predicted=True, scores={"lte": 0.05}), lambda n: n <= 5),
    "a window": (QueryRequest(since=at(3 * _DAY), until=at(5 * _DAY)), lambda n: 9 <= n < 15),
}


@pytest.mark.parametrize("walk", [1, 7, 4_000])
async def test_pages_and_counts(engine: AsyncEngine, walk: int) -> None:
    inferences = _make_inferences()
    model = await store(engine, *inferences)
    async with engine.connect() as connection:
        for name, (question, matches) in QUESTIONS.items():
            expected = [inference.uid for n, inference in enumerate(inferences) if matches(n)]
            query = (await prepare(connection, model, question)).query
            counted = await count(connection, query, deadline=Deadline.after(120))
            assert counted == len(expected), name
            assert await _fetch_pages(connection, query, walk) == sorted(expected, reverse=True), (
                name
            )
            assert await _fetch_pages(connection, query.in_order(), walk) == sorted(expected), name


async def _fetch_pages(connection: AsyncConnection, query: Query, walk: int) -> list[UUID]:
    uids: list[UUID] = []
    while True:
        page = await find_page(connection, query, limit=7, deadline=Deadline.after(120), scan=walk)
        uids += page.uids
        if len(page.uids) < 7:
            return uids
        query = query.after(page.uids[-1])


@pytest.mark.parametrize(("key", "number"), [("n", 0), ("rare", 58)])
async def test_explains_a_query_for_a_missing_key(
    engine: AsyncEngine, key: str, number: int
) -> None:
    model = await store(engine, *_make_inferences())
    question = QueryRequest(metadata=[_make_entry(key, "missing", None)])
    async with engine.connect() as connection:
        query = (await prepare(connection, model, question)).query
        with recording(True) as explanation:
            page = await find_page(
                connection, query, limit=100, deadline=Deadline.after(60), scan=3
            )
            assert await count(connection, query, deadline=Deadline.after(60)) == number
    assert len(page.uids) == number
    assert explanation is not None
    rows = sum(step.actual_rows or 0 for step in explanation.steps if "count" not in step.what)
    assert rows >= number


async def test_hides_marked_inferences(engine: AsyncEngine) -> None:
    inferences = _make_inferences()
    model = await store(engine, *inferences)
    marked = inferences[31]
    async with engine.begin() as connection:
        mark = {"model": model, "uid": marked.uid, "scope": "inference", "erasure": uuid4()}
        await connection.execute(insert(erasing).values(mark))
    async with engine.connect() as connection:
        for question in (QueryRequest(), QueryRequest(metadata=[_make_entry("rare", "eq", "yes")])):
            query = (await prepare(connection, model, question)).query
            page = await find_page(connection, query, limit=100, deadline=Deadline.after(120))
            assert marked.uid not in page.uids
            number = await count(connection, query, deadline=Deadline.after(120))
            assert number == len(page.uids) > 0


async def test_raises_when_time_runs_out(engine: AsyncEngine) -> None:
    inferences = _make_inferences()
    model = await store(engine, *inferences)
    async with engine.connect() as connection:
        query = (await prepare(connection, model, QueryRequest(ok=False))).query
        with pytest.raises(OutOfTime):
            await find_page(connection, query, limit=5, deadline=Deadline.after(0))
        with pytest.raises(OutOfTime):
            await count(connection, query, deadline=Deadline.after(0))


async def test_rejects_unknown_keys_and_impossible_comparisons(engine: AsyncEngine) -> None:
    model = await store(engine, *_make_inferences())
    async with engine.connect() as connection:
        with pytest.raises(UnknownKey) as unknown:
            await prepare(connection, model, QueryRequest(metadata=[_make_entry("rar", "eq", "x")]))
        assert unknown.value.faults[0].known[0] == "rare"
        with pytest.raises(ImpossibleComparison) as impossible:
            await prepare(connection, model, QueryRequest(metadata=[_make_entry("n", "gt", "abc")]))
        assert impossible.value.faults[0].known == ["int"]
        conditions = [_make_entry("rar", "eq", "x")]
        lenient = QueryRequest(metadata=conditions, unknown_keys="empty")
        assert (await prepare(connection, model, lenient)).query.nothing
        warned = await prepare(connection, model, QueryRequest(predicted=True, labels=["persn"]))
        assert "person" in warned.warnings[0]
