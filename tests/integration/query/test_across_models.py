"""The same query of several models: order, counts, cursors, and time that runs out."""

from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import erasing, inference, metadata_number
from inference_store.inference.errors import UnknownKey
from inference_store.inference.events import uid_floor
from inference_store.query.across_models import build_queries, count_across, find_across
from inference_store.query.deadline import Deadline, OutOfTime
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.matching import Query
from inference_store.query.operators import OPERATORS
from inference_store.query.preparation import QueryRequest, prepare
from tests.integration.query.held_partition import hold_partition
from tests.integration.query.lock_time import PATIENT_SECONDS, hold_partition_until_late
from tests.integration.stored_inferences import NewInference, at, store

_DAY = 86_400
_DAYS = 12
_MODELS = 10


def _make_models() -> list[list[NewInference]]:
    """Make 24 to 6 inferences over twelve days for each of ten models.

    One statement reads fewer models than that. Only the even ones have the key `n`.
    """
    return [
        [
            NewInference(
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


def _least(value: int) -> MetadataEntry:
    return MetadataEntry("metadata_filter[0]", "n", None, OPERATORS["gte"], value)


_QUESTIONS = {
    "everything": QueryRequest(),
    "a key of some": QueryRequest(metadata=[_least(4)]),
    "prediction": QueryRequest(predicted=True, labels=["person"]),
    "no index": QueryRequest(predicted=True, scores={"gte": 0.05}),
    "a window": QueryRequest(since=at(2 * _DAY), until=at(5 * _DAY)),
}


def _holds(name: str, entry: NewInference) -> bool:
    model, n = (int(part) for part in entry.inference_id.split("-"))
    return {
        "everything": True,
        "a key of some": model % 2 == 0 and n >= 4,
        "prediction": n % 3 == 0,
        "no index": n / 100 >= 0.05,
        "a window": at(2 * _DAY) <= entry.received_at < at(5 * _DAY),
    }[name]


async def _build_queries(
    engine: AsyncEngine, models: list[int], question: QueryRequest, *, newest_first: bool = True
) -> tuple[Query, ...]:
    async with engine.connect() as connection:
        query = (await prepare(connection, models, question)).query
        return await build_queries(connection, query if newest_first else query.in_order(), models)


@pytest.mark.long
async def test_pages_and_counts(engine: AsyncEngine) -> None:
    by_model = _make_models()
    models = [await store(engine, *entries) for entries in by_model]
    marked = by_model[4][7]
    async with engine.begin() as connection:
        mark = {"model": models[4], "uid": marked.uid, "scope": "inference", "erasure": uuid4()}
        await connection.execute(insert(erasing).values(mark))
    everything = [entry for entries in by_model for entry in entries if entry is not marked]
    for name, question in _QUESTIONS.items():
        expected = sorted(entry.uid for entry in everything if _holds(name, entry))
        queries = await _build_queries(engine, models, question)
        async with engine.connect() as connection:
            counted = await count_across(connection, queries, deadline=Deadline.after(60))
            assert counted == len(expected), name
        for newest_first, scan in ((True, 1), (False, 40), (True, 4_000)):
            queries = await _build_queries(engine, models, question, newest_first=newest_first)
            uids = await _fetch_pages(engine, queries, scan)
            assert uids == sorted(expected, reverse=newest_first), name


async def _fetch_pages(engine: AsyncEngine, queries: tuple[Query, ...], scan: int) -> list[UUID]:
    uids: list[UUID] = []
    async with engine.connect() as connection:
        while True:
            page = await find_across(
                connection, queries, limit=17, deadline=Deadline.after(60), scan=scan
            )
            uids += [hit.uid for hit in page.hits]
            if len(page.hits) < 17:
                return uids
            queries = tuple(query.after(page.hits[-1].uid) for query in queries)


async def test_key_is_unknown_only_if_unknown_to_all(engine: AsyncEngine) -> None:
    models = [await store(engine, *entries) for entries in _make_models()[:2]]
    other = await store(
        engine, NewInference("x", at(0), [("secret", "int", "1")], model_id="other")
    )
    async with engine.connect() as connection:
        prepared = await prepare(connection, models, QueryRequest(metadata=[_least(0)]))
        assert not prepared.query.nothing
        with pytest.raises(UnknownKey) as refused:
            await prepare(connection, [models[1]], QueryRequest(metadata=[_least(0)]))
        assert list(refused.value.faults[0].known) == ["m"]
        secret = MetadataEntry("metadata_filter[0]", "secret", None, OPERATORS["eq"], 1)
        with pytest.raises(UnknownKey) as refused:
            await prepare(connection, models, QueryRequest(metadata=[secret]))
        assert set(refused.value.faults[0].known) == {"m", "n"}
        unseen = await prepare(connection, models, QueryRequest(predicted=True, labels=["perso"]))
        assert "person" in unseen.warnings[0]
        assert (await prepare(connection, [*models, other], QueryRequest(metadata=[secret]))).query


@pytest.mark.parametrize("newest_first", [True, False], ids=["newest first", "oldest first"])
async def test_next_page_continues_where_time_ran_out(
    engine: AsyncEngine, newest_first: bool
) -> None:
    models = [await store(engine, *entries) for entries in _make_models()[:3]]
    question = QueryRequest(metadata=[_least(0)])
    queries = await _build_queries(engine, models, question, newest_first=newest_first)
    everything = await _fetch_pages(engine, queries, 1)
    async with (
        hold_partition_until_late(engine, metadata_number, at(5 * _DAY)) as span,
        engine.connect() as connection,
    ):
        deadline = Deadline.after(PATIENT_SECONDS)
        page = await find_across(connection, queries, limit=1000, deadline=deadline, scan=1)
    assert page.out_of_time
    assert page.searched is not None
    edge = uid_floor(span.hi if newest_first else span.lo).int
    reached = page.searched.int if newest_first else page.searched.int + 1
    assert (reached >= edge) == newest_first or reached == edge
    uids = [hit.uid for hit in page.hits]
    assert 0 < len(uids) < len(everything)
    rest = await _fetch_pages(engine, tuple(query.after(page.searched) for query in queries), 1)
    assert uids + rest == everything


async def test_raises_when_nothing_was_read_in_time(engine: AsyncEngine) -> None:
    models = [await store(engine, *entries) for entries in _make_models()[:2]]
    queries = await _build_queries(engine, models, QueryRequest())
    async with (
        engine.connect() as connection,
        hold_partition(engine, inference, at((_DAYS - 1) * _DAY)),
    ):
        with pytest.raises(OutOfTime):
            await find_across(connection, queries, limit=5, deadline=Deadline.after(0.5))
        with pytest.raises(OutOfTime):
            await count_across(connection, queries, deadline=Deadline.after(0.5))
