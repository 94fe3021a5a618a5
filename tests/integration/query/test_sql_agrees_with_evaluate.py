"""Typed filters are implemented twice, in SQL and in Python: the two must agree.

Rows of every sort are stored once as the ingester writes them. For each predicate one statement
asks Postgres for those for which it is true and those for which it is false, by a test of each row
and by the lists of the indexes.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.tables import erasing, metadata_key
from inference_store.query.anti_join import find_anti_joins
from inference_store.query.conditions import compile_condition, read_names
from inference_store.query.count import count
from inference_store.query.counting import count_ended
from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline, fetch
from inference_store.query.driving import build_matches, settings_for
from inference_store.query.filters.check import check
from inference_store.query.filters.evaluate import evaluate
from inference_store.query.filters.facts import Facts
from inference_store.query.filters.known_keys import find_known_keys
from inference_store.query.filters.typed import And, Predicate
from inference_store.query.list_sizes import find_candidates
from inference_store.query.matching import Query, match_by_index, match_by_scan
from inference_store.query.page import find_page
from inference_store.query.preparation import build_query
from inference_store.query.scan_range import find_pieces_of, range_of_time, split_groups
from inference_store.query.stored_counts import read_numbers
from tests.integration.query.relative_times import draw_relative_time
from tests.integration.query.typed_predicates import PredicateMaker
from tests.integration.query.typed_rows import InferenceMaker, derive_facts
from tests.integration.stored_inferences import store
from tests.properties import examples

_MODELS, _ROWS = 4, 50
_RELAXED = settings(
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)


@dataclass(frozen=True)
class Stored:
    """The contents of the database: by model, the facts of each inference."""

    models: tuple[int, ...]
    facts: Mapping[int, Mapping[UUID, Facts]]
    keys: Mapping[str, int]
    connection: AsyncConnection


@pytest.fixture
async def stored(engine: AsyncEngine) -> AsyncIterator[Stored]:
    """Store rows of several models: no answer may show those of another."""
    facts: dict[int, Mapping[UUID, Facts]] = {}
    for seed in range(_MODELS):
        inferences = InferenceMaker(seed).make_inferences(f"model-{seed}", _ROWS)
        facts[await store(engine, *inferences)] = {
            inference.uid: derive_facts(inference) for inference in inferences
        }
    async with engine.connect() as connection:
        rows = await connection.execute(select(metadata_key.c.name, metadata_key.c.key))
        keys = {row.name: row.key for row in rows}
        yield Stored(tuple(facts), facts, keys, connection)


def _sort_by_truth(
    facts: Mapping[UUID, Facts], predicate: Predicate
) -> Mapping[bool | None, set[UUID]]:
    by_truth: dict[bool | None, set[UUID]] = {True: set(), False: set(), None: set()}
    for uid, inference_facts in facts.items():
        by_truth[evaluate(predicate, inference_facts)].add(uid)
    return by_truth


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model_index", range(_MODELS))
@settings(_RELAXED, max_examples=examples(2_000 // _MODELS))
@given(data=st.data())
async def test_sql_agrees_with_python(
    stored: Stored, model_index: int, data: st.DataObject
) -> None:
    model = stored.models[model_index]
    predicate = PredicateMaker(stored.keys, data.draw).predicate(3)
    names = await read_names(stored.connection, predicate)
    expected = _sort_by_truth(stored.facts[model], predicate)
    columns: dict[str, Any] = {}
    for when in (True, False):
        condition = compile_condition(predicate, names, when=when)
        query = Query(range_of_time(model, None, None), (condition,))
        event(f"{condition.kind}: {'led' if query.is_driven else 'walked'}")
        event(f"matches: {'some' if expected[when] else 'none'}")
        columns[f"walked {when}"] = _collect_uids(match_by_scan(query, query.scan_range))
        if query.is_driven:
            rows, unique = match_by_index(query, query.scan_range)
            columns[f"led {when}"] = _collect_uids(rows if unique else rows.distinct())
    async with stored.connection.begin_nested():
        statement = select(*(column.label(name) for name, column in columns.items()))
        row = (await stored.connection.execute(statement)).one()
    for name, uids in row._mapping.items():
        assert sorted(uids or ()) == sorted(expected[name.endswith("True")]), f"{name}: {predicate}"


def _collect_uids(rows: Any) -> Any:
    table = rows.subquery()
    return select(func.array_agg(table.c.uid)).scalar_subquery()


@pytest.mark.long
@pytest.mark.parametrize("counted", [False, True])
@settings(_RELAXED, max_examples=examples(100))
@given(data=st.data())
async def test_pages_and_counts_agree_and_leave_out_marked_inferences(
    engine: AsyncEngine, stored: Stored, counted: bool, data: st.DataObject
) -> None:
    """With and without stored counts."""
    if counted:
        await count_ended(engine, seconds=60, before=datetime(2100, 1, 1, tzinfo=UTC))
    connection, model = stored.connection, data.draw(st.sampled_from(stored.models))
    facts = stored.facts[model]
    maker = PredicateMaker(stored.keys, data.draw)
    predicates = [
        maker.predicate(2),
        And((maker.predicate(1), maker.predicate(1))),
        data.draw(st.sampled_from([maker.lacking, maker.several, maker.predicate]))(2),
    ]
    predicates = predicates[data.draw(st.integers(0, 2)) :]
    marked = set(data.draw(st.lists(st.sampled_from(sorted(facts)), max_size=20)))
    expected = (
        set.intersection(*(_sort_by_truth(facts, predicate)[True] for predicate in predicates))
        - marked
    )
    async with connection.begin_nested() as savepoint:
        if marked:
            marks = [
                {"model": model, "uid": uid, "scope": "inference", "erasure": uuid4()}
                for uid in marked
            ]
            await connection.execute(insert(erasing), marks)
        query = await build_query(connection, range_of_time(model, None, None), predicates)
        event(f"lists taken from all: {len(find_anti_joins(query))}")
        deadline = Deadline.after(60)
        parts = await find_pieces_of(connection, query.scan_range, newest_first=True)
        stored_numbers = await read_numbers(connection, [query], parts, deadline)
        event(f"counts that are stored: {'some' if stored_numbers else 'none'}")
        for walk in (3, 4_000):
            page = await find_page(connection, query, limit=100, deadline=deadline, scan=walk)
            assert page.uids == sorted(expected, reverse=True)
        assert await count(connection, query, deadline=deadline) == len(expected)
        assert await _find_by_long_lists(connection, query, data.draw) == sorted(expected)
        await savepoint.rollback()


@settings(_RELAXED, max_examples=examples(100))
@given(data=st.data())
async def test_relative_times_agree(stored: Stored, data: st.DataObject) -> None:
    """An instant given by the present and a duration, in every form of comparison."""
    model = data.draw(st.sampled_from(stored.models))
    relative = draw_relative_time(data.draw)
    event(relative.text)
    tree = parse_text(relative.text, clock=relative.clock)
    predicate = check(tree, await find_known_keys(stored.connection, model, {"when"})).predicate
    facts = stored.facts[model]
    expected = {uid for uid, inference_facts in facts.items() if relative.holds(inference_facts)}
    assert _sort_by_truth(facts, predicate)[True] == expected
    query = await build_query(stored.connection, range_of_time(model, None, None), [predicate])
    deadline = Deadline.after(60)
    page = await find_page(stored.connection, query, limit=100, deadline=deadline)
    assert page.uids == sorted(expected, reverse=True)
    assert await count(stored.connection, query, deadline=deadline) == len(expected)


async def _find_by_long_lists(connection: AsyncConnection, query: Query, draw: Any) -> list[UUID]:
    """Return the uids that are found if lists of a few count as long."""
    deadline, uids = Deadline.after(60), list[UUID]()
    parts = await find_pieces_of(connection, query.scan_range, newest_first=True)
    most, some = draw(st.sampled_from([(1, 1), (1, 100), (1, 100)]))
    for group in [] if query.nothing else split_groups(parts):
        candidates = await find_candidates(
            connection, query, group, deadline, most=most, some=some, alone=True
        )
        for candidate in candidates:
            event("pairs" if candidate.pairs else f"joins: {candidate.joins}")
            rows, unique = build_matches(query, candidate)
            statement = rows if unique else rows.distinct()
            settings = settings_for([candidate])
            uids += [
                row[0] for row in await fetch(connection, statement, deadline, settings=settings)
            ]
    return sorted(uids)
