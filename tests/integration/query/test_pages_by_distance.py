"""Pages by distance from a point: every match exactly once, by the distance that Python has."""

from collections.abc import Sequence
from decimal import Decimal
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import erasing, metadata_number
from inference_store.query.ask import QueryRequest
from inference_store.query.bounded import OutOfTime
from inference_store.query.filters.evaluate import evaluate
from inference_store.query.filters.facts import Facts
from inference_store.query.filters.from_conditions import Asked
from inference_store.query.filters.geometry import metres
from inference_store.query.filters.typed import Compared, Constant, Distance
from inference_store.query.operators import OPERATORS
from tests.integration.query.asked import in_order, pages
from tests.integration.query.held_partition import held
from tests.integration.stored import Made, at, store
from tests.properties import examples

_DAY = 86_400
_LONGITUDES = st.sampled_from(["-180", "179.9999", "0", "1E-40", "13.4", "13.400000000000000001"])
_LATITUDES = st.sampled_from(["-90", "0", "0.5", "52.5", "90", "91"])
_PLACES = st.lists(
    st.tuples(st.integers(0, 12), st.none() | _LONGITUDES, st.none() | _LATITUDES),
    min_size=1,
    max_size=14,
)


def _stored(model_id: str, found: Sequence[tuple[int, str | None, str | None]]) -> list[Made]:
    return [
        Made(
            str(n),
            at(day * _DAY),
            [
                ("n", "int", str(n)),
                *([] if longitude is None else [("longitude", "float", longitude)]),
                *([] if latitude is None else [("latitude", "float", latitude)]),
            ],
            model_id=model_id,
        )
        for n, (day, longitude, latitude) in enumerate(found)
    ]


def _metres(made: Made, point: tuple[Decimal, Decimal]) -> float | None:
    location = Facts(metadata=made.read).location
    return None if location is None else metres(location, point)


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
async def test_pages(
    engine: AsyncEngine,
    mine: Sequence[tuple[int, str | None, str | None]],
    theirs: Sequence[tuple[int, str | None, str | None]],
    to: tuple[str, str],
    limit: int,
) -> None:
    made, models = [], []
    for found in (mine, theirs):
        if found:
            some = _stored(str(uuid4()), found)
            models.append(await store(engine, *some))
            made += some
    point = (Decimal(to[0]), Decimal(to[1]))
    least = Asked("metadata_filter[0]", "n", None, OPERATORS["gte"], 3)
    later = [each for each in made if int(each.inference_id) >= 3]
    window = [each for each in made if each.received_at < at(6 * _DAY)]
    async with engine.connect() as connection:
        for descending in (False, True):
            sort = f"{'-' if descending else ''}distance(location, POINT({to[0]} {to[1]}))"
            for question, matches in (
                (QueryRequest(), made),
                (QueryRequest(metadata=[least]), later),
                (QueryRequest(since=at(0), until=at(6 * _DAY)), window),
                (QueryRequest(ok=True), []),
            ):
                values = [(each.uid, _metres(each, point)) for each in matches]
                event(f"located: {any(value is not None for _, value in values)}")
                found_pages = await pages(connection, models, sort, question, limit=limit)
                found_uids = [uid for page in found_pages for uid in page]
                assert found_uids == in_order(values, descending=descending)
                assert all(len(page) == limit for page in found_pages[:-1])


async def test_without_any_location(engine: AsyncEngine) -> None:
    """Of a store that has never seen a coordinate: all come last, in order of time."""
    made = [Made(str(n), at(n * _DAY), [("n", "int", str(n))]) for n in range(5)]
    model = await store(engine, *made)
    uids = [each.uid for each in made]
    async with engine.connect() as connection:
        for sign, expected in (("", uids), ("-", uids[::-1])):
            sort = f"{sign}distance(location, POINT(0 0))"
            found = await pages(connection, [model], sort, QueryRequest(), limit=2)
            assert [uid for page in found for uid in page] == expected


def _line() -> list[Made]:
    """Along the equator, each a day later and a degree farther."""
    return [
        Made(
            str(n),
            at(n * _DAY),
            [("n", "int", str(n)), ("longitude", "float", str(n)), ("latitude", "float", "0")],
        )
        for n in range(12)
    ]


async def test_the_order_agrees_with_the_filter(engine: AsyncEngine) -> None:
    """What a page shows first is what `distance()` of a filter says is nearest."""
    made = _line()
    model = await store(engine, *made)
    async with engine.begin() as connection:
        mark = {"model": model, "uid": made[4].uid, "scope": "inference", "erasure": uuid4()}
        await connection.execute(insert(erasing).values(mark))
    within = Compared(
        "<", Distance(Decimal("4.2"), Decimal(0)), Constant("number", Decimal(150_000))
    )
    near = [each for each in made if evaluate(within, Facts(metadata=each.read))]
    assert [each.inference_id for each in near] == ["3", "4", "5"]
    async with engine.connect() as connection:
        sort = "distance(location, POINT(4.2 0))"
        found: list[list[UUID]] = await pages(connection, [model], sort, QueryRequest(), limit=2)
    assert found[0] == [made[5].uid, made[3].uid]


async def test_a_page_whose_time_is_over(engine: AsyncEngine) -> None:
    model = await store(engine, *_line())
    sort = "distance(location, POINT(0 0))"
    async with engine.connect() as connection:
        with pytest.raises(OutOfTime):
            async with held(engine, metadata_number, at(5 * _DAY)):
                await pages(connection, [model], sort, QueryRequest(), limit=3, seconds=0.5)
