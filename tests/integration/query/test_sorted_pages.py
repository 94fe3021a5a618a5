"""Sorted pages, followed by their cursors, hold every match once and in order."""

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.long_text import encode
from inference_store.index.tables import erasing, inference, metadata_number
from inference_store.inference.errors import ImpossibleComparison, Invalid, UnknownKey
from inference_store.inference.events.event import Extras
from inference_store.query.across_models import build_queries
from inference_store.query.deadline import Deadline, OutOfTime
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.operators import OPERATORS
from inference_store.query.order import SORTABLE, ByKey, ByProperty
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.properties import PROPERTIES
from inference_store.query.sort import resolve_sort
from inference_store.query.sorted_page import find_sorted
from tests.integration.query.held_partition import hold_partition
from tests.integration.query.paging import fetch_pages, sort_uids
from tests.integration.stored_inferences import NewInference, at, store
from tests.properties import examples

_DAY = 86_400
_TEXTS = ["", "a", "B", "b", "é", "😀", "a" * 600, "a" * 600 + "b", "\ue000", "\U0010ffff"]
_LONGEST_NUMBER = "9" * 599 + ".5e400"
_ITEMS = st.one_of(
    st.tuples(st.just("int"), st.sampled_from(["-1", "0", "7", "7", "98765432109876543210"])),
    st.tuples(st.just("float"), st.sampled_from(["7.0", "0.1", "1e-300", _LONGEST_NUMBER])),
    st.tuples(st.just("string"), st.sampled_from(_TEXTS)),
    st.tuples(st.just("bool"), st.sampled_from(["true", "false"])),
    st.tuples(
        st.just("timestamp"),
        st.sampled_from(["2026-11-01", "2026-11-01T00:00:00.000001Z", "0001-01-01", "9999-12-31"]),
    ),
)
_LISTS = st.lists(st.sampled_from(["3", "10", '"x"', "true", '"12"', '"é"']), max_size=3)
_INFERENCES = st.lists(
    st.tuples(st.integers(0, 12), st.one_of(st.none(), _ITEMS), _LISTS), min_size=1, max_size=14
)


def _make_inferences(
    model_id: str, rows: Sequence[tuple[int, Any, list[str]]]
) -> list[NewInference]:
    return [
        NewInference(
            str(n),
            at(day * _DAY),
            [
                ("n", "int", str(n)),
                *([] if item is None else [("k", *item)]),
                ("tags", "json", f"[{', '.join(tags)}]"),
            ],
            model_id=model_id,
        )
        for n, (day, item, tags) in enumerate(rows)
    ]


def _value(entry: NewInference, key: str, family: str, *, descending: bool) -> Any:
    values = [
        leaf.value for leaf in entry.read.leaves if leaf.name == key and leaf.family == family
    ]
    if family == "string":
        values = [encode(str(value))[0] for value in values]
    if not values:
        return None
    return max(values) if descending else min(values)


@pytest.mark.long
@settings(
    max_examples=examples(30),
    deadline=None,
    # The explain phase traces every line, which takes minutes here.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example([(0, ("float", _LONGEST_NUMBER), []), (0, ("float", _LONGEST_NUMBER), [])], [], 2)
@example([(0, ("timestamp", "0001-01-01"), []), (1, ("timestamp", "9999-12-31"), [])] * 3, [], 2)
@given(mine=_INFERENCES, theirs=_INFERENCES | st.just([]), limit=st.sampled_from([2, 5, 9]))
async def test_sorts_by_a_key(
    engine: AsyncEngine,
    mine: Sequence[tuple[int, Any, list[str]]],
    theirs: Sequence[tuple[int, Any, list[str]]],
    limit: int,
) -> None:
    entries, models = [], []
    for rows in (mine, theirs):
        if rows:
            new_entries = _make_inferences(str(uuid.uuid4()), rows)
            models.append(await store(engine, *new_entries))
            entries += new_entries
    sorts = {
        (leaf.name, leaf.family)
        for entry in entries
        for leaf in entry.read.leaves
        if leaf.name in {"k", "tags[]"}
    }
    least = MetadataEntry("metadata_filter[0]", "n", None, OPERATORS["gte"], 3)
    questions = [
        (QueryRequest(), entries),
        (
            QueryRequest(metadata=[least]),
            [entry for entry in entries if int(entry.inference_id) >= 3],
        ),
        (QueryRequest(ok=True), []),
        (
            QueryRequest(since=at(0), until=at(6 * _DAY)),
            [entry for entry in entries if entry.received_at < at(6 * _DAY)],
        ),
    ]
    async with engine.connect() as connection:
        for key, family in sorted(sorts):
            event(f"{key} {family}")
            for descending in (False, True):
                sort = f"{'-' if descending else ''}{key}:{family}"
                # Over many examples every question meets every sort; not all of them in each.
                turn = (len(sort) + limit + len(entries)) % len(questions)
                for question, matches in (questions[turn], questions[turn - 2]):
                    expected = sort_uids(
                        [
                            (entry.uid, _value(entry, key, family, descending=descending))
                            for entry in matches
                        ],
                        descending=descending,
                    )
                    found_pages = await fetch_pages(connection, models, sort, question, limit=limit)
                    assert [uid for page in found_pages for uid in page] == expected
                    assert all(len(page) == limit for page in found_pages[:-1])


def _make_rows() -> list[NewInference]:
    """Make twenty inferences over ten days, with ties and gaps."""
    return [
        NewInference(
            f"id-{n * 7 % 20}",
            at(n * _DAY / 2),
            [("n", "int", str(n)), *([("rare", "string", "yes")] if n % 6 == 0 else [])],
            None if n % 5 == 0 else [("dog" if n % 2 else "cat", n % 3 / 10)],
            aliases=(f"alias-{n % 3}",),
            extras=Extras(
                ok=None if n % 3 == 0 else n % 2 == 0,
                data_hash=None if n % 4 == 0 else f"{n % 6:064x}",
                http_status=None if n % 7 == 0 else 200 + n % 2,
                error="e" * 300 + str(n) if n % 2 else None,
                data_size=n * 2**40,
            ),
            flags=("capture_request_over_cap",) if n % 3 else (),
        )
        for n in range(20)
    ]


_PROPERTIES = [name for name in SORTABLE if name not in {"uid", "received_at"}]


async def _read_rows(engine: AsyncEngine) -> dict[UUID, Any]:
    """Return the rows of the database by uid, read without the query code."""
    async with engine.connect() as connection:
        rows = (await connection.execute(inference.select())).mappings()
        return {row["uid"]: dict(row) for row in rows}


def _expect_value(name: str, entry: NewInference, row: dict[str, Any], *, descending: bool) -> Any:
    """Return a property of an inference, calculated in Python."""

    def lasted(begin: str, end: str) -> Any:
        if row[begin] is None or row[end] is None:
            return None
        return Decimal((row[end] - row[begin]) // timedelta(microseconds=1)) / 1000

    end = max if descending else min
    readers: dict[str, Callable[[], Any]] = {
        "model_id": lambda: entry.model_id,
        "project_id": lambda: None,
        "inference_ids": lambda: end([entry.inference_id, *entry.aliases]),
        "top_label": lambda: entry.predictions[0][0] if entry.predictions else None,
        "request_problem": lambda: "over_cap" if entry.flags else None,
        "response_problem": lambda: None,
        "pre_ms": lambda: lasted("received_at", "forwarded_at"),
        "model_ms": lambda: lasted("forwarded_at", "responded_at"),
        "post_ms": lambda: lasted("responded_at", "published_at"),
    }
    if name in readers:
        return readers[name]()
    value = row[name]
    return value[:256] if isinstance(value, str) else value


async def _give_times(engine: AsyncEngine, entries: Sequence[NewInference]) -> None:
    async with engine.begin() as connection:
        for n, entry in enumerate(entries):
            late = timedelta(microseconds=n * 37 % 11)
            times: dict[str, datetime | None] = {
                "forwarded_at": entry.received_at + late,
                "responded_at": entry.received_at + 2 * late if n % 3 else None,
                "published_at": entry.received_at + 3 * late,
            }
            await connection.execute(
                update(inference).where(inference.c.uid == entry.uid).values(times)
            )


@pytest.mark.long
async def test_sorts_by_every_property(engine: AsyncEngine) -> None:
    entries = _make_rows()
    other = [NewInference(f"o-{n}", at(n * _DAY), model_id="another") for n in range(3)]
    models = [await store(engine, *entries), await store(engine, *other)]
    await _give_times(engine, entries)
    rows = await _read_rows(engine)
    rare = QueryRequest(
        metadata=[MetadataEntry("metadata_filter[0]", "rare", None, OPERATORS["eq"], "yes")]
    )
    questions = [
        (QueryRequest(), [*entries, *other]),
        (rare, [entry for n, entry in enumerate(entries) if n % 6 == 0]),
        (QueryRequest(ok=True), [entry for entry in entries if entry.extras.ok]),
    ]
    async with engine.connect() as connection:
        for turn, name in enumerate(_PROPERTIES):
            for descending in (False, True):
                # Every property sorts everything; the other questions take turns.
                for question, matches in (questions[0], questions[1 + (turn + descending) % 2]):
                    values = [
                        (
                            entry.uid,
                            _expect_value(name, entry, rows[entry.uid], descending=descending),
                        )
                        for entry in matches
                    ]
                    expected = sort_uids(values, descending=descending)
                    sort = f"{'-' if descending else ''}{name}"
                    found_pages = await fetch_pages(connection, models, sort, question, limit=8)
                    assert [uid for page in found_pages for uid in page] == expected, sort
    assert {name for name in PROPERTIES if name not in SORTABLE} == {"location"}


@pytest.mark.parametrize("few", [0, 3, 4_000])
async def test_every_form_of_a_query_gives_the_same_page(engine: AsyncEngine, few: int) -> None:
    entries = _make_rows()
    model = await store(engine, *entries)
    marked = entries[12]
    async with engine.begin() as connection:
        mark = {"model": model, "uid": marked.uid, "scope": "inference", "erasure": uuid4()}
        await connection.execute(insert(erasing).values(mark))
    rare = QueryRequest(
        metadata=[MetadataEntry("metadata_filter[0]", "rare", None, OPERATORS["eq"], "yes")]
    )
    some = QueryRequest(predicted=True, labels=["dog", "cat"])
    async with engine.connect() as connection:
        for question, matches in (
            (rare, lambda n: n % 6 == 0),
            (some, lambda n: n % 5 != 0),
            (QueryRequest(), lambda _: True),
        ):
            base = (await prepare(connection, model, question)).query
            [query] = await build_queries(connection, base, [model])
            expected = [entry.uid for n, entry in enumerate(entries) if matches(n) and n != 12]
            for sort in ("n", "inference_id", "data_size"):
                order = (await resolve_sort(connection, model, sort)).order
                assert order is not None
                hits = await find_sorted(
                    connection, [query], order, limit=50, deadline=Deadline.after(120), few=few
                )
                uids = [hit.uid for hit in hits]
                if sort == "inference_id":
                    assert sorted(uids) == expected
                    assert [hit.value for hit in hits] == sorted(hit.value for hit in hits)
                else:
                    assert uids == expected


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


async def test_raises_when_time_runs_out(engine: AsyncEngine) -> None:
    entries = [NewInference(str(n), at(n * _DAY), [("n", "int", str(n))]) for n in range(12)]
    model = await store(engine, *entries)
    async with engine.connect() as connection:
        with pytest.raises(OutOfTime):
            async with hold_partition(engine, metadata_number, at(5 * _DAY)):
                await fetch_pages(connection, [model], "-n", QueryRequest(), limit=3, seconds=0.5)
