"""The same question of several models: order, counts, cursors, and what is done out of time."""

from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import erasing, inference, metadata_number
from inference_store.inference.errors import UnknownKey
from inference_store.inference.events import uid_floor
from inference_store.query.across import build_queries, count_across, find_across
from inference_store.query.ask import QueryRequest, prepare
from inference_store.query.bounded import Deadline, OutOfTime
from inference_store.query.filters.from_conditions import Asked
from inference_store.query.matching import Query
from inference_store.query.operators import OPERATORS
from tests.integration.query.held_partition import held
from tests.integration.stored import Made, at, store

_DAY = 86_400
_DAYS = 12
_MODELS = 10


def _made() -> list[list[Made]]:
    """Ten models, more than a statement asks at once, with 24 to 6 inferences over twelve days.

    Only the even ones have the key `n`.
    """
    return [
        [
            Made(
                f"{model}-{n}",
                at(n * _DAY / 2 + model),
                [("n", "int", str(n)) if model % 2 == 0 else ("m", "int", str(n))],
                [("person" if n % 3 == 0 else "dog", n / 100)],
                model_id=f"model-{model}",
            )
            for n in range(2 * _DAYS - 2 * (model % 10))
        ]
        for model in range(_MODELS)
    ]


def _least(value: int) -> Asked:
    return Asked("metadata_filter[0]", "n", None, OPERATORS["gte"], value)


_QUESTIONS = {
    "everything": QueryRequest(),
    "a key of some": QueryRequest(metadata=[_least(4)]),
    "prediction": QueryRequest(predicted=True, labels=["person"]),
    "no index": QueryRequest(predicted=True, scores={"gte": 0.05}),
    "a window": QueryRequest(since=at(2 * _DAY), until=at(5 * _DAY)),
}


def _holds(name: str, made: Made) -> bool:
    model, n = (int(part) for part in made.inference_id.split("-"))
    return {
        "everything": True,
        "a key of some": model % 2 == 0 and n >= 4,
        "prediction": n % 3 == 0,
        "no index": n / 100 >= 0.05,
        "a window": at(2 * _DAY) <= made.received_at < at(5 * _DAY),
    }[name]


async def _queries(
    engine: AsyncEngine, models: list[int], question: QueryRequest, *, newest_first: bool = True
) -> tuple[Query, ...]:
    async with engine.connect() as connection:
        query = (await prepare(connection, models, question)).query
        return await build_queries(connection, query if newest_first else query.in_order(), models)


async def test_pages_and_counts(engine: AsyncEngine) -> None:
    made = _made()
    models = [await store(engine, *each) for each in made]
    gone = made[4][7]
    async with engine.begin() as connection:
        mark = {"model": models[4], "uid": gone.uid, "scope": "inference", "erasure": uuid4()}
        await connection.execute(insert(erasing).values(mark))
    everything = [each for some in made for each in some if each is not gone]
    for name, question in _QUESTIONS.items():
        expected = sorted(each.uid for each in everything if _holds(name, each))
        queries = await _queries(engine, models, question)
        async with engine.connect() as connection:
            counted = await count_across(connection, queries, deadline=Deadline.after(60))
            assert counted == len(expected), name
        for newest_first, scan in ((True, 1), (False, 40), (True, 4_000)):
            queries = await _queries(engine, models, question, newest_first=newest_first)
            found = await _paged(engine, queries, scan)
            assert found == sorted(expected, reverse=newest_first), name


async def _paged(engine: AsyncEngine, queries: tuple[Query, ...], scan: int) -> list[UUID]:
    found: list[UUID] = []
    async with engine.connect() as connection:
        while True:
            page = await find_across(
                connection, queries, limit=17, deadline=Deadline.after(60), scan=scan
            )
            found += [hit.uid for hit in page.hits]
            if len(page.hits) < 17:
                return found
            queries = tuple(query.after(page.hits[-1].uid) for query in queries)


async def test_a_key_is_unknown_only_if_unknown_to_all(engine: AsyncEngine) -> None:
    models = [await store(engine, *each) for each in _made()[:2]]
    other = await store(engine, Made("x", at(0), [("secret", "int", "1")], model_id="other"))
    async with engine.connect() as connection:
        asked = await prepare(connection, models, QueryRequest(metadata=[_least(0)]))
        assert not asked.query.nothing
        with pytest.raises(UnknownKey) as refused:
            await prepare(connection, [models[1]], QueryRequest(metadata=[_least(0)]))
        assert list(refused.value.faults[0].known) == ["m"]
        secret = Asked("metadata_filter[0]", "secret", None, OPERATORS["eq"], 1)
        with pytest.raises(UnknownKey) as refused:
            await prepare(connection, models, QueryRequest(metadata=[secret]))
        assert set(refused.value.faults[0].known) == {"m", "n"}
        unseen = await prepare(connection, models, QueryRequest(predicted=True, labels=["perso"]))
        assert "person" in unseen.warnings[0]
        assert (await prepare(connection, [*models, other], QueryRequest(metadata=[secret]))).query


@pytest.mark.parametrize("newest_first", [True, False], ids=["newest first", "oldest first"])
async def test_the_next_page_goes_on_where_time_ran_out(
    engine: AsyncEngine, newest_first: bool
) -> None:
    models = [await store(engine, *each) for each in _made()[:3]]
    question = QueryRequest(metadata=[_least(0)])
    queries = await _queries(engine, models, question, newest_first=newest_first)
    everything = await _paged(engine, queries, 1)
    async with engine.connect() as connection:
        async with held(engine, metadata_number, at(5 * _DAY)) as span:
            page = await find_across(
                connection, queries, limit=1000, deadline=Deadline.after(3), scan=1
            )
        assert page.out_of_time
        assert page.searched is not None
        edge = uid_floor(span.hi if newest_first else span.lo).int
        reached = page.searched.int if newest_first else page.searched.int + 1
        assert (reached >= edge) == newest_first or reached == edge
    found = [hit.uid for hit in page.hits]
    assert 0 < len(found) < len(everything)
    rest = await _paged(engine, tuple(query.after(page.searched) for query in queries), 1)
    assert found + rest == everything


async def test_nothing_at_all_in_time(engine: AsyncEngine) -> None:
    models = [await store(engine, *each) for each in _made()[:2]]
    queries = await _queries(engine, models, QueryRequest())
    async with engine.connect() as connection, held(engine, inference, at((_DAYS - 1) * _DAY)):
        with pytest.raises(OutOfTime):
            await find_across(connection, queries, limit=5, deadline=Deadline.after(0.5))
        with pytest.raises(OutOfTime):
            await count_across(connection, queries, deadline=Deadline.after(0.5))
