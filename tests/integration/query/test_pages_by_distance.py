"""Pages sorted by the distance from a point: every match once, in the order of Python."""

from collections.abc import Sequence
from decimal import Decimal
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import erasing, metadata_number
from inference_store.query.deadline import OutOfTime
from inference_store.query.filters.evaluate import evaluate
from inference_store.query.filters.facts import Facts
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.filters.geometry import metres
from inference_store.query.filters.typed import Compared, Constant, Distance
from inference_store.query.operators import OPERATORS
from inference_store.query.preparation import QueryRequest
from tests.integration.query.held_partition import hold_partition
from tests.integration.query.paging import fetch_pages, sort_uids
from tests.integration.stored_inferences import NewInference, at, store
from tests.properties import examples

_DAY = 86_400
_LONGITUDES = st.sampled_from(["-180", "179.9999", "0", "1E-40", "13.4", "13.400000000000000001"])
_LATITUDES = st.sampled_from(["-90", "0", "0.5", "52.5", "90", "91"])
_PLACES = st.lists(
    st.tuples(st.integers(0, 12), st.none() | _LONGITUDES, st.none() | _LATITUDES),
    min_size=1,
    max_size=14,
)


def _make_inferences(
    model_id: str, rows: Sequence[tuple[int, str | None, str | None]]
) -> list[NewInference]:
    return [
        NewInference(
            str(n),
            at(day * _DAY),
            [
                ("n", "int", str(n)),
                *([] if longitude is None else [("longitude", "float", longitude)]),
                *([] if latitude is None else [("latitude", "float", latitude)]),
            ],
            model_id=model_id,
        )
        for n, (day, longitude, latitude) in enumerate(rows)
    ]


def _metres(inference: NewInference, point: tuple[Decimal, Decimal]) -> float | None:
    location = Facts(metadata=inference.read).location
    return None if location is None else metres(location, point)


@pytest.mark.long
@settings(
    max_examples=examples(40),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    mine=_PLACES,
    theirs=_PLACES | st.just([]),
    to=st.tuples(_LONGITUDES, st.sampled_from(["-90", "0", "52.5", "52.50"])),
    limit=st.sampled_from([2, 5, 9]),
)
async def test_sorts_by_distance(
    engine: AsyncEngine,
    mine: Sequence[tuple[int, str | None, str | None]],
    theirs: Sequence[tuple[int, str | None, str | None]],
    to: tuple[str, str],
    limit: int,
) -> None:
    inferences, models = [], []
    for rows in (mine, theirs):
        if rows:
            some = _make_inferences(str(uuid4()), rows)
            models.append(await store(engine, *some))
            inferences += some
    point = (Decimal(to[0]), Decimal(to[1]))
    least = MetadataEntry("metadata_filter[0]", "n", None, OPERATORS["gte"], 3)
    later = [inference for inference in inferences if int(inference.inference_id) >= 3]
    window = [inference for inference in inferences if inference.received_at < at(6 * _DAY)]
    async with engine.connect() as connection:
        for descending in (False, True):
            sort = f"{'-' if descending else ''}distance(location, POINT({to[0]} {to[1]}))"
            for question, matches in (
                (QueryRequest(), inferences),
                (QueryRequest(metadata=[least]), later),
                (QueryRequest(since=at(0), until=at(6 * _DAY)), window),
                (QueryRequest(ok=True), []),
            ):
                values = [(inference.uid, _metres(inference, point)) for inference in matches]
                event(f"located: {any(value is not None for _, value in values)}")
                found_pages = await fetch_pages(connection, models, sort, question, limit=limit)
                found_uids = [uid for page in found_pages for uid in page]
                assert found_uids == sort_uids(values, descending=descending)
                assert all(len(page) == limit for page in found_pages[:-1])


async def test_sorts_inferences_without_location_by_time(engine: AsyncEngine) -> None:
    """In a store without coordinates all come last, in order of time."""
    inferences = [NewInference(str(n), at(n * _DAY), [("n", "int", str(n))]) for n in range(5)]
    model = await store(engine, *inferences)
    uids = [inference.uid for inference in inferences]
    async with engine.connect() as connection:
        for sign, expected in (("", uids), ("-", uids[::-1])):
            sort = f"{sign}distance(location, POINT(0 0))"
            found_pages = await fetch_pages(connection, [model], sort, QueryRequest(), limit=2)
            assert [uid for page in found_pages for uid in page] == expected


def _make_line() -> list[NewInference]:
    """Make inferences along the equator, each a day later and a degree farther."""
    return [
        NewInference(
            str(n),
            at(n * _DAY),
            [("n", "int", str(n)), ("longitude", "float", str(n)), ("latitude", "float", "0")],
        )
        for n in range(12)
    ]


async def test_the_order_agrees_with_the_filter(engine: AsyncEngine) -> None:
    """The first inference of a page is the nearest by `distance()` of a filter."""
    inferences = _make_line()
    model = await store(engine, *inferences)
    async with engine.begin() as connection:
        mark = {"model": model, "uid": inferences[4].uid, "scope": "inference", "erasure": uuid4()}
        await connection.execute(insert(erasing).values(mark))
    within = Compared(
        "<", Distance(Decimal("4.2"), Decimal(0)), Constant("number", Decimal(150_000))
    )
    near = [
        inference for inference in inferences if evaluate(within, Facts(metadata=inference.read))
    ]
    assert [inference.inference_id for inference in near] == ["3", "4", "5"]
    async with engine.connect() as connection:
        sort = "distance(location, POINT(4.2 0))"
        found_pages: list[list[UUID]] = await fetch_pages(
            connection, [model], sort, QueryRequest(), limit=2
        )
    assert found_pages[0] == [inferences[5].uid, inferences[3].uid]


async def test_raises_when_time_runs_out(engine: AsyncEngine) -> None:
    model = await store(engine, *_make_line())
    sort = "distance(location, POINT(0 0))"
    async with engine.connect() as connection:
        with pytest.raises(OutOfTime):
            async with hold_partition(engine, metadata_number, at(5 * _DAY)):
                await fetch_pages(connection, [model], sort, QueryRequest(), limit=3, seconds=0.5)
