"""Pages, sorted or ended early, hold every match once when their cursors are followed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise, product
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Table, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.long_text import encode
from inference_store.index.tables import erasing, inference, metadata_number, prediction
from inference_store.inference.errors import ImpossibleComparison, Invalid, UnknownKey
from inference_store.inference.events import uid_floor
from inference_store.query import cursor, search
from inference_store.query.cql2 import parse_text
from inference_store.query.cursor import MOST_CHARACTERS, find_family
from inference_store.query.deadline import Deadline, OutOfTime, fetch
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.order import SORTABLE, ByKey, ByProperty, resolve_sort
from inference_store.query.pages import find_page, find_sorted
from inference_store.query.plan import Query
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.properties import OPERATORS, PROPERTIES
from tests.integration.query.held_partition import (
    PATIENT_SECONDS,
    hold_partition,
    hold_partition_until_late,
)
from tests.integration.stored_inferences import NewInference, at, store
from tests.transactions import transact
from tests.unit.query.filters.oracle import Facts, compute_distance

from .conftest import DAY, DAYS, Filled
from .typed_rows import INSTANTS, derive_facts

_FINGERPRINT = cursor.fingerprint("the question")
_MODELS = ("model-0", "model-1", "extremes")
# From other points some distances differ only in the last bit.
_POINTS = (("179.9999", "0"), ("0.3", "0"))
_LEAST = MetadataEntry("metadata_filter[0]", "n", None, OPERATORS["gte"], 3)
_SINCE, _UNTIL = INSTANTS[1], INSTANTS[8]
Value = Callable[[Facts, bool], Any]


def _has_number(facts: Facts) -> bool:
    return any(Decimal(str(value)) >= 3 for value in facts.metadata_values("n", "number"))


def _is_received_between(facts: Facts) -> bool:
    return bool(_SINCE <= facts.properties["received_at"][0] < _UNTIL)


QUESTIONS: tuple[tuple[QueryRequest, Callable[[Facts], bool]], ...] = (
    (QueryRequest(), lambda _: True),
    (QueryRequest(metadata=[_LEAST]), _has_number),
    (QueryRequest(ok=True), lambda facts: facts.properties.get("ok") == (True,)),
    (QueryRequest(since=_SINCE, until=_UNTIL), _is_received_between),
)


async def _fetch_pages(
    connection: AsyncConnection,
    models: Sequence[int],
    sort: str,
    question: QueryRequest,
    *,
    limit: int,
    seconds: float = 300,
) -> list[list[UUID]]:
    """Fetch every page, each by the cursor of the one before."""
    pages: list[list[UUID]] = []
    after: str | None = None
    while True:
        kind = find_family(after)
        order = await resolve_sort(connection, models, sort, kind=kind)
        prepared = await prepare(connection, models, question)
        query = prepared.query if order.descending else prepared.query.in_order()
        page = await find_page(
            connection,
            query,
            order,
            fingerprint=_FINGERPRINT,
            cursor=after,
            limit=limit,
            deadline=Deadline.after(seconds),
        )
        pages.append([hit.uid for hit in page.hits])
        after = page.next
        if after is None:
            return pages
        assert len(after) <= MOST_CHARACTERS


def _sort_uids(values: Sequence[tuple[UUID, Any]], *, descending: bool) -> list[UUID]:
    """Sort by (value, uid), with those that have no value last in both directions."""
    with_value = [(value, uid) for uid, value in values if value is not None]
    lacking = [uid for uid, value in values if value is None]
    by_value = [uid for _, uid in sorted(with_value, reverse=descending)]
    return by_value + sorted(lacking, reverse=descending)


def _read_key(key: str, family: Any) -> Value:
    """Return a reader of the value of a key that decides: the least one, or the greatest."""

    def read(facts: Facts, descending: bool) -> Any:
        values: Sequence[Any] = facts.metadata_values(key, family)
        if family == "string":
            values = [encode(str(value))[0] for value in values]
        return _pick(values, descending)

    return read


def _read_property(name: str) -> Value:
    def read(facts: Facts, descending: bool) -> Any:
        values = facts.properties.get(name, ())
        cut = [value[:256] if isinstance(value, str) else value for value in values]
        return _pick(cut, descending)

    return read


def _read_prediction(column: str) -> Value:
    def read(facts: Facts, descending: bool) -> Any:
        values = [found.get(column) for found in facts.predictions or ()]
        return _pick([value for value in values if value is not None], descending)

    return read


def _pick(values: Sequence[Any], descending: bool) -> Any:
    return (max if descending else min)(values, default=None)


def _read_distance(point: tuple[str, str]) -> Value:
    longitude, latitude = map(Decimal, point)

    def read(facts: Facts, _: bool) -> Any:
        location = facts.location
        return None if location is None else compute_distance(location, (longitude, latitude))

    return read


def _list_sorts() -> Iterator[tuple[str, Value]]:
    """Yield keys with each family, every property, and distances from points."""
    families = ("number", "string", "bool", "timestamp")
    for key, family in product(("k", "tags[]"), families):
        if (key, family) != ("tags[]", "timestamp"):
            yield f"{key}:{family}", _read_key(key, family)
    for name in SORTABLE:
        if name.startswith("prediction."):
            yield name, _read_prediction(name.removeprefix("prediction."))
        elif name not in {"uid", "received_at"}:
            yield f"inference.{name}", _read_property(name)
    for point in _POINTS:
        yield f"distance(location, POINT({' '.join(point)}))", _read_distance(point)


@pytest.mark.long
async def test_sorts_by_keys_properties_and_distances(
    anything_engine: AsyncEngine, anything: Filled
) -> None:
    models = [anything.models[model_id] for model_id in _MODELS]
    entries = [entry for model_id in _MODELS for entry in anything.inferences[model_id]]
    facts = {entry.uid: derive_facts(entry) for entry in entries}
    async with anything_engine.connect() as connection:
        for turn, (name, read) in enumerate(_list_sorts()):
            for descending in (False, True):
                sort = f"{'-' if descending else ''}{name}"
                # Each sorts everything; the other questions and sizes of a page take turns.
                for question, matches in (QUESTIONS[0], QUESTIONS[1 + (turn + descending) % 3]):
                    limit = (7, 12, 40)[(turn + len(sort)) % 3]
                    values = [
                        (uid, read(of, descending)) for uid, of in facts.items() if matches(of)
                    ]
                    pages = await _fetch_pages(connection, models, sort, question, limit=limit)
                    found = [uid for page in pages for uid in page]
                    assert found == _sort_uids(values, descending=descending), (sort, question)
                    assert all(len(page) == limit for page in pages[:-1]), (sort, question)
    unordered = {"location", "has_truth", "truth_label"}
    assert {name for name in PROPERTIES if name not in SORTABLE} == unordered


async def test_sorts_inferences_without_location_by_time(
    days: AsyncConnection, twenty_days: Filled
) -> None:
    """In a store without coordinates all come last, in order of time."""
    uids = [inference.uid for inference in twenty_days.inferences["one"]]
    for sign, expected in (("", uids), ("-", uids[::-1])):
        sort = f"{sign}distance(location, POINT(0 0))"
        pages = await _fetch_pages(days, [twenty_days.one], sort, QueryRequest(), limit=25)
        assert [uid for page in pages for uid in page] == expected


async def test_every_form_of_a_query_gives_the_same_page(
    anything_engine: AsyncEngine, anything: Filled
) -> None:
    """However few matches are sorted at once; what is marked is left out."""
    model, entries = anything.models["model-0"], anything.inferences["model-0"]
    facts = {entry.uid: derive_facts(entry) for entry in entries}
    marked = entries[12].uid
    async with anything_engine.connect() as connection:
        mark = {"model": model, "uid": marked, "scope": "inference", "erasure": uuid4()}
        await connection.execute(insert(erasing).values(mark))
        for question, matches in QUESTIONS:
            query = (await prepare(connection, model, question)).query
            seen = {uid: of for uid, of in facts.items() if matches(of) and uid != marked}
            for sort, read in (
                ("n", _read_key("n", "number")),
                ("inference.inference_ids", _read_property("inference_ids")),
                ("inference.data_size", _read_property("data_size")),
            ):
                expected = _sort_uids(
                    [(uid, read(of, False)) for uid, of in seen.items()], descending=False
                )
                order = (await resolve_sort(connection, model, sort)).order
                assert order is not None
                for few in (0, 3, 4_000):
                    deadline = Deadline.after(300)
                    hits = await find_sorted(
                        connection, query, order, limit=50, deadline=deadline, few=few
                    )
                    assert [hit.uid for hit in hits] == expected, (sort, question, few)


async def test_resolves_the_names_of_sorts(engine: AsyncEngine) -> None:
    items = [
        ("n", "int", "1"),
        ("width", "int", "5"),
        ("-dash", "int", "5"),
        ("a:b", "string", "x"),
        ("a:int", "string", "x"),
        ("metadata.x", "int", "1"),
        ("tags", "json", '["1", 2]'),
    ]
    model = await store(
        engine, NewInference("1", at(0), items), NewInference("2", at(1), [("n", "string", "x")])
    )
    async with engine.connect() as connection:

        async def order(sort: str) -> Any:
            return (await resolve_sort(connection, [model], sort)).order

        for sort in ("received_at", "uid", "inference.received_at", "-uid"):
            assert await order(sort) is None
        for sort, kind in (
            ("n", "number"),
            ("n:string", "string"),
            ("metadata.n", "number"),
            ("metadata.width", "number"),
            ("--dash", "number"),
            ("a:b", "string"),
            ("a:int", "string"),
            ("metadata.metadata.x", "number"),
            ("tags[]", "number"),
            ("tags[]:str", "string"),
        ):
            resolved = await order(sort)
            assert (type(resolved), resolved.kind) == (ByKey, kind), sort
        assert (await order("--dash")).descending
        assert type(await order("inference.width")) is ByProperty
        warned = await resolve_sort(connection, [model], "n")
        assert "n:string" in warned.warnings[0]
        again = (await resolve_sort(connection, [model], "n", kind="string")).order
        assert again is not None
        assert again.kind == "string"
        for sort, error, suggestion in (
            ("width", Invalid, ["inference.width", "metadata.width"]),
            ("widht", UnknownKey, "width"),
            ("inference.widht", UnknownKey, "width"),
            ("metadata.heigth", UnknownKey, "height"),
            ("location", Invalid, "latitude"),
            ("label", Invalid, "metadata.label"),
            ("n:bool", ImpossibleComparison, "int"),
            ("", UnknownKey, None),
        ):
            with pytest.raises(error) as refused:
                await order(sort)
            names = refused.value.faults[0].known
            assert suggestion is None or suggestion in (names, *names), sort


# Far from both ends: more than one group of partitions lies before it in either order.
_HELD_DAY = 9
_AT_LEAST = MetadataEntry("metadata_filter[0]", "n", None, OPERATORS["gte"], 6)
_NUMBERED = QueryRequest(metadata=[_AT_LEAST])
# The conditions, and the table whose partition no statement can read.
SLOW_QUESTIONS: dict[str, tuple[QueryRequest, Table]] = {
    "one comparison": (_NUMBERED, metadata_number),
    "prediction": (QueryRequest(predicted=True, labels=["person"]), prediction),
    "everything": (QueryRequest(), inference),
    "no index": (QueryRequest(ok=True), inference),
}


async def _build_query(
    connection: AsyncConnection, models: Sequence[int], question: QueryRequest
) -> Query:
    return (await prepare(connection, models, question)).query


async def _fetch_page(
    connection: AsyncConnection,
    query: Query,
    deadline: Deadline,
    *,
    limit: int = 500,
    scan: int = 1,
    goes_on: bool = False,
) -> tuple[search.Search, list[UUID]]:
    options: dict[str, Any] = {"limit": limit, "deadline": deadline, "scan": scan}
    options["goes_on"] = goes_on
    page = await search.find_by_time(connection, query, **options)
    return page, page.uids


async def _find(
    engine: AsyncEngine, query: Query, seconds: float
) -> tuple[list[UUID], UUID | None]:
    """Return a page, and how far it searched if time ran out."""
    page, uids = await transact(engine, _fetch_page, query, Deadline.after(seconds))
    return uids, page.searched if page.out_of_time else None


@pytest.mark.parametrize("several", [False, True], ids=["one model", "several models"])
async def test_next_page_continues_where_time_ran_out(
    days_engine: AsyncEngine, twenty_days: Filled, several: bool
) -> None:
    names = ("one", "other", "model-8") if several else ("one",)
    models = [twenty_days.models[name] for name in names]
    for name, (question, table) in SLOW_QUESTIONS.items():
        for newest_first in (True, False):
            case = (name, newest_first)
            ordered = replace(question, newest_first=newest_first)
            query = await transact(days_engine, _build_query, models, ordered)
            everything, _ = await _find(days_engine, query, 600)
            assert len(everything) >= 2 * DAYS, case
            held_at = at(_HELD_DAY * DAY)
            async with hold_partition_until_late(days_engine, table, held_at) as span:
                uids, searched = await _find(days_engine, query, PATIENT_SECONDS)
            assert searched is not None, case
            reached = searched.int if newest_first else searched.int + 1
            edge = uid_floor(span.hi if newest_first else span.lo).int
            # It never reads the locked partition; without an index it ends somewhere before it.
            before = (reached > edge) == newest_first and (several or name == "no index")
            assert reached == edge or before, case
            assert uids == [uid for uid in everything if (uid.int >= reached) == newest_first]
            assert 0 < len(uids) < len(everything), case
            rest, _ = await _find(days_engine, query.after(searched), 600)
            assert uids + rest == everything, case


async def test_raises_when_a_lock_or_nothing_read_ends_the_time(
    days_engine: AsyncEngine, twenty_days: Filled
) -> None:
    models = [twenty_days.models[name] for name in ("one", "other")]
    everything = await transact(days_engine, _build_query, models, QueryRequest())
    unindexed = await transact(days_engine, _build_query, models[:1], QueryRequest(ok=True))
    async with hold_partition_until_late(days_engine, inference, at((DAYS - 1) * DAY)):
        for query in (everything, unindexed):
            with pytest.raises(OutOfTime):
                await _find(days_engine, query, PATIENT_SECONDS)
        async with days_engine.connect() as connection:
            deadline = Deadline.after(PATIENT_SECONDS)
            with pytest.raises(OutOfTime):
                await search.count(connection, everything, deadline=deadline)
    # Here the limit of the statement ends it, as it does in production.
    query = await transact(days_engine, _build_query, [twenty_days.one], QueryRequest())
    async with hold_partition(days_engine, inference, at((DAYS - 1) * DAY)):
        with pytest.raises(OutOfTime):
            await _find(days_engine, query, 0.5)


async def test_restores_the_statement_timeout(days_engine: AsyncEngine) -> None:
    async with days_engine.connect() as connection:
        before = await connection.scalar(select(func.current_setting("statement_timeout")))
        with pytest.raises(OutOfTime):
            await fetch(connection, select(func.pg_sleep(600)), Deadline.after(0.05))
        after = await connection.scalar(select(func.current_setting("statement_timeout")))
        assert after == before


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


async def _fetch_everything(
    connection: AsyncConnection, query: Query, random: Random, scan: int
) -> tuple[list[UUID], list[UUID]]:
    """Return all uids, page by page as a client follows cursors, and where each page ended."""
    uids: list[UUID] = []
    reached: list[UUID] = []
    while True:
        # Most end at once, some in the middle of a statement.
        seconds = random.choice([0, 0, 0, 0.01 * random.random()])
        deadline, limit = Deadline.after(300).softly(seconds), random.randrange(1, 30)
        far, page_uids = await _fetch_page(
            connection, query, deadline, limit=limit, scan=scan, goes_on=bool(reached)
        )
        uids += page_uids
        if len(page_uids) == limit:
            reached.append(page_uids[-1])
        elif far.out_of_time:
            assert far.searched is not None
            reached.append(far.searched)
        else:
            return uids, reached
        query = query.after(reached[-1])


@pytest.mark.long
@pytest.mark.parametrize("models", [("one",), ("one", "other")], ids=["one model", "two models"])
async def test_pages_together_hold_everything_once(
    days: AsyncConnection, twenty_days: Filled, models: tuple[str, ...]
) -> None:
    numbers = [twenty_days.models[name] for name in models]
    ended_early = 0
    for (name, filter), newest_first in product(FILTERS.items(), (True, False)):
        node = None if filter is None else parse_text(filter)
        question = QueryRequest(filter=node, newest_first=newest_first)
        query = await _build_query(days, numbers, question)
        whole, uids = await _fetch_page(days, query, Deadline.after(300), scan=4_000)
        assert not whole.out_of_time
        assert uids == sorted(uids, reverse=newest_first)
        for scan in (1 if newest_first else 5, 4_000) if len(models) == 1 else (5,):
            case = f"{name} {scan} {len(models)} {newest_first}"
            all_uids, reached = await _fetch_everything(days, query, Random(case), scan)
            assert all_uids == uids, case
            in_order = ((first > second) == newest_first for first, second in pairwise(reached))
            assert all(in_order), case
            # Each page reads a partition at least if an index leads, otherwise one scan.
            at_most = len(uids) if query.is_driven else 3 * DAYS * len(models)
            assert len(reached) <= at_most + DAYS + 1, case
            ended_early += len(reached)
    assert ended_early > 150
