"""Sorted pages, followed by their cursors, hold every match once and in order."""

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.long_text import encode
from inference_store.index.tables import erasing
from inference_store.inference.errors import ImpossibleComparison, Invalid, UnknownKey
from inference_store.query import cursor
from inference_store.query.cursor import MOST_CHARACTERS, find_family
from inference_store.query.deadline import Deadline
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.order import SORTABLE, ByKey, ByProperty, resolve_sort
from inference_store.query.pages import find_page, find_sorted
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.properties import OPERATORS, PROPERTIES
from tests.integration.stored_inferences import NewInference, at, store
from tests.unit.query.filters.oracle import Facts, compute_distance

from .conftest import Filled
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
        if name not in {"uid", "received_at"}:
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
    assert {name for name in PROPERTIES if name not in SORTABLE} == {"location"}


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
            ("n:bool", ImpossibleComparison, "int"),
            ("", UnknownKey, None),
        ):
            with pytest.raises(error) as refused:
                await order(sort)
            names = refused.value.faults[0].known
            assert suggestion is None or suggestion in (names, *names), sort
