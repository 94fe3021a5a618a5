"""Filters in SQL mean what is written down in Python, of what is stored and of what is not."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Any, Final
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import Select, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.registrations import Registration
from inference_store.index.tables import erasing, inference, metadata_key, partition_count
from inference_store.inference.errors import Invalid
from inference_store.inference.metadata import Metadata
from inference_store.inference.metadata.values import Leaf, Presence
from inference_store.query import plan
from inference_store.query.conditions import compile_condition, read_names
from inference_store.query.counting import count_ended
from inference_store.query.cql2 import Clock, parse_text
from inference_store.query.deadline import (
    Deadline,
    fetch,
    find_pieces_of,
    range_of_time,
    split_groups,
)
from inference_store.query.filters import typed
from inference_store.query.filters.check import check
from inference_store.query.filters.from_conditions import MetadataEntry, metadata_node
from inference_store.query.filters.names import find_known_keys
from inference_store.query.filters.typed import (
    And,
    Compared,
    Constant,
    Missing,
    Not,
    Predicate,
    Property,
    Unknown,
    Value,
)
from inference_store.query.plan import (
    Query,
    build_matches,
    choose_plans,
    find_anti_joins,
    match_by_index,
    settings_for,
)
from inference_store.query.preparation import QueryRequest, build_query, prepare
from inference_store.query.properties import OPERATORS, Takes
from inference_store.query.search import count, find_by_time
from inference_store.query.stored_counts import read_numbers
from inference_store.query.unstored import evaluate as evaluate_unstored
from tests.integration.query import typed_rows
from tests.integration.query.typed_predicates import OF_TRUTH, PredicateMaker
from tests.integration.stored_inferences import START, make_indexable
from tests.properties import examples
from tests.unit.query.filters.oracle import Facts, evaluate
from tests.unit.query.operator_meanings import TESTS, holds

from .conftest import Filled

_DURATIONS: Final[Mapping[str, timedelta]] = {
    "PT0S": timedelta(0),
    "PT1H": timedelta(hours=1),
    "PT0.000001S": timedelta(microseconds=1),
    "P1DT1M": timedelta(days=1, minutes=1),
    "P2W": timedelta(weeks=2),
}
_FORMS: Final[Mapping[str, Callable[[datetime, datetime], bool]]] = {
    "{name} > {time}": lambda value, at: value > at,
    "{name} <= {time}": lambda value, at: value <= at,
    "{time} = {name}": lambda value, at: value == at,
    "NOT {name} <> {time}": lambda value, at: value == at,
    "{name} BETWEEN {time} AND {time} + duration('P1D')": lambda value, at: (
        at <= value <= at + timedelta(days=1)
    ),
    "{name} IN (DATE('1999-01-01'), {time})": lambda value, at: value == at,
    "T_BEFORE({name}, {time})": lambda value, at: value < at,
    "T_INTERSECTS({name}, INTERVAL({time}, '..'))": lambda value, at: value >= at,
    "T_DURING({name}, INTERVAL('..', {time}))": lambda value, at: value < at,
}


@dataclass(frozen=True)
class Relative:
    """A filter. `at`: the instant that its relative time stands for."""

    text: str
    clock: Clock
    name: str
    at: datetime
    test: Callable[[datetime, datetime], bool]

    def holds(self, facts: Facts) -> bool:
        values = facts.properties.get(self.name) or facts.metadata_values(self.name, "timestamp")
        return any(self.test(value, self.at) for value in values if isinstance(value, datetime))


def draw_relative_time(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Relative:
    """Draw a filter. Its clock is set so that the relative time equals a stored one."""
    name, form = draw(st.sampled_from(["received_at", "when"])), draw(st.sampled_from([*_FORMS]))
    at, sign = draw(st.sampled_from(typed_rows.INSTANTS)), draw(st.sampled_from("+-"))
    duration = draw(st.sampled_from([*_DURATIONS]))
    by = _DURATIONS[duration]
    time = f"now() {sign} duration('{duration}')"
    clock = Clock(at - by if sign == "+" else at + by)
    return Relative(form.format(name=name, time=time), clock, name, at, _FORMS[form])


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
async def stored(anything_engine: AsyncEngine, anything: Filled) -> AsyncIterator[Stored]:
    """Open the rows of several models: no answer may show those of another."""
    # It does nothing after the first time.
    await count_ended(anything_engine, seconds=300, before=datetime(2100, 1, 1, tzinfo=UTC))
    facts = {
        model: {
            entry.uid: typed_rows.derive_facts(entry) for entry in anything.inferences[model_id]
        }
        for model_id, model in anything.models.items()
    }
    async with anything_engine.connect() as connection:
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
@settings(_RELAXED, max_examples=examples(2_000))
@given(data=st.data())
async def test_sql_agrees_with_python(stored: Stored, data: st.DataObject) -> None:
    model = data.draw(st.sampled_from(stored.models))
    await _check(stored, model, PredicateMaker(stored.keys, data.draw).predicate(3), event)


@pytest.mark.parametrize("name", OF_TRUTH)
async def test_sql_agrees_about_truth_that_nothing_has(stored: Stored, name: str) -> None:
    kind = OF_TRUTH[name]
    values = (True, False) if kind == "bool" else ("person", "nobody")
    of, (one, other) = Property(name, kind), [Constant(kind, value) for value in values]
    pairs: list[tuple[Value, Value]]
    pairs = [(of, one), (one, of), (of, other), (other, of), (of, of)]
    lists: list[Predicate] = [
        *(Compared(op, (of, one, other)) for op in ("between", "in", "outside")),
        Compared("between", (one, of, other)),
        Missing(of),
    ]
    compared: list[Predicate] = [
        *(Compared(op, pair) for op in ("=", "<>", "<", "<=", ">", ">=") for pair in pairs),
        *lists,
    ]
    for predicate in compared:
        for one_way in (predicate, Not(predicate), Unknown(predicate)):
            await _check(stored, stored.models[0], one_way, lambda _: None)


async def _check(
    stored: Stored, model: int, predicate: Predicate, event: Callable[[str], None]
) -> None:
    names = await read_names(stored.connection, predicate)
    expected = _sort_by_truth(stored.facts[model], predicate)
    columns: dict[str, Any] = {}
    for when in (True, False):
        condition = compile_condition(predicate, names, when=when)
        query = Query(range_of_time(model, None, None), (condition,))
        event(f"{condition.kind}: {'led' if query.is_driven else 'walked'}")
        event(f"matches: {'some' if expected[when] else 'none'}")
        columns[f"walked {when}"] = _collect_uids(_select_tested(query))
        if query.is_driven:
            columns[f"led {when}"] = _collect_uids(match_by_index(query, query.scan_range))
    async with stored.connection.begin_nested():
        statement = select(*(column.label(name) for name, column in columns.items()))
        row = (await stored.connection.execute(statement)).one()
    for name, uids in row._mapping.items():
        assert sorted(uids or ()) == sorted(expected[name.endswith("True")]), f"{name}: {predicate}"


def _collect_uids(rows: Any) -> Any:
    table = rows.subquery()
    return select(func.array_agg(table.c.uid)).scalar_subquery()


@pytest.mark.long
@settings(_RELAXED, max_examples=examples(200))
@given(data=st.data(), counted=st.booleans())
async def test_pages_and_counts_agree_and_leave_out_marked_inferences(
    stored: Stored, data: st.DataObject, counted: bool
) -> None:
    """With and without stored counts."""
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
        if not counted:
            await connection.execute(update(partition_count).values(counted_at=None))
        if marked:
            marks = [
                {"model": model, "uid": uid, "scope": "inference", "erasure": uuid4()}
                for uid in marked
            ]
            await connection.execute(insert(erasing), marks)
        query = await build_query(connection, range_of_time(model, None, None), predicates)
        event(f"lists taken from all: {len(find_anti_joins(query))}")
        deadline = Deadline.after(300)
        parts = await find_pieces_of(connection, query.scan_range, newest_first=True)
        stored_numbers = await read_numbers(connection, query, parts, deadline)
        event(f"counts that are stored: {'some' if stored_numbers else 'none'}")
        for walk in (3, 4_000):
            page = await find_by_time(connection, query, limit=100, deadline=deadline, scan=walk)
            assert page.uids == sorted(expected, reverse=True)
        assert await count(connection, query, deadline=deadline) == len(expected)
        assert await _find_by_long_lists(connection, query, data.draw) == sorted(expected)
        await savepoint.rollback()


@settings(_RELAXED, max_examples=examples(100))
@given(data=st.data())
async def test_relative_times_agree(stored: Stored, data: st.DataObject) -> None:
    """An instant given by the present and a duration, in every form of comparison."""
    with_times = [
        model
        for model, facts in stored.facts.items()
        if any(each.metadata_values("when", "timestamp") for each in facts.values())
    ]
    model = data.draw(st.sampled_from(with_times))
    relative = draw_relative_time(data.draw)
    event(relative.text)
    tree = parse_text(relative.text, clock=relative.clock)
    predicate = check(tree, await find_known_keys(stored.connection, model, {"when"})).predicate
    facts = stored.facts[model]
    expected = {uid for uid, inference_facts in facts.items() if relative.holds(inference_facts)}
    assert _sort_by_truth(facts, predicate)[True] == expected
    query = await build_query(stored.connection, range_of_time(model, None, None), [predicate])
    deadline = Deadline.after(300)
    page = await find_by_time(stored.connection, query, limit=100, deadline=deadline)
    assert page.uids == sorted(expected, reverse=True)
    assert await count(stored.connection, query, deadline=deadline) == len(expected)


async def test_a_range_whose_end_is_unknown_is_unknown(stored: Stored) -> None:
    decided = dict.fromkeys([True, False, None], 0)
    for (model, facts), end in product(stored.facts.items(), ("model_ms", "100 / model_ms")):
        tree = parse_text(f"NOT (prediction_count BETWEEN 1 AND {end})")
        predicate = check(tree, await find_known_keys(stored.connection, model, set())).predicate
        by_truth = _sort_by_truth(facts, predicate)
        decided = {truth: count + len(by_truth[truth]) for truth, count in decided.items()}
        query = await build_query(stored.connection, range_of_time(model, None, None), [predicate])
        page = await find_by_time(stored.connection, query, limit=100, deadline=Deadline.after(300))
        assert page.uids == sorted(by_truth[True], reverse=True)
    assert min(decided.values())


def _select_tested(query: Query) -> Select[Any]:
    """Select the matches as a scan does: every inference is tested by itself."""
    of = query.conditions, query.scan_range, inference.c.uid
    tests = plan.test_each(query, *of, may_hash=False)
    return select(inference.c.uid).where(query.scan_range.of(inference), *tests)


async def _find_by_long_lists(connection: AsyncConnection, query: Query, draw: Any) -> list[UUID]:
    """Return the uids that are found if lists of a few count as long."""
    deadline, uids = Deadline.after(300), list[UUID]()
    parts = await find_pieces_of(connection, query.scan_range, newest_first=True)
    most, some = draw(st.sampled_from([(1, 1), (1, 100), (1, 100)]))
    for group in [] if query.nothing else split_groups(parts):
        candidates = await choose_plans(
            connection, query, group, deadline, most=most, some=some, alone=True
        )
        for candidate in candidates:
            event("pairs" if candidate.pairs else f"joins: {candidate.joins}")
            statement, settings = build_matches(query, candidate), settings_for([candidate])
            uids += [
                row[0] for row in await fetch(connection, statement, deadline, settings=settings)
            ]
    return sorted(uids)


def _draw_value(stored: Stored, model: int, key: str) -> st.SearchStrategy[Any]:
    """Return a strategy of values that the key has, in the form of a condition, and of others."""
    leaves = [
        leaf.value.isoformat() if isinstance(leaf.value, datetime) else leaf.value
        for facts in stored.facts[model].values()
        for leaf in facts.metadata.leaves
        if leaf.name == key
    ]
    texts = [value for value in leaves if isinstance(value, str)] or [""]
    cut = st.builds(lambda text, n: text[:n] + "%", st.sampled_from(texts), st.integers(0, 520))
    # LIKE leads its index by the text before `_`: the case of the rest it must check itself.
    other_case = st.sampled_from(texts).map(lambda text: "_" + text[1:].swapcase())
    others = st.sampled_from([*typed_rows.NUMBERS, "1", "0.1", "true", "a_c", True])
    return st.one_of(st.sampled_from(leaves or ["nothing"]), cut, other_case, others)


def _draw_entry(stored: Stored, model: int, data: st.DataObject) -> MetadataEntry:
    key = data.draw(st.sampled_from(typed_rows.KEYS))
    operator = OPERATORS[data.draw(st.sampled_from(sorted(OPERATORS)))]
    values = _draw_value(stored, model, key)
    sizes = {Takes.LIST: (1, 3), Takes.PAIR: (2, 2)}
    if operator.takes in sizes:
        least, most = sizes[operator.takes]
        kind = type(data.draw(values))  # a list of several kinds is mostly refused
        alike = values.filter(lambda value: isinstance(value, kind))
        value: Any = data.draw(st.lists(alike, min_size=least, max_size=most))
    else:
        value = None if operator.takes is Takes.NONE else data.draw(values)
    types = [None, None, "string", "int", "float", "bool", "timestamp", "json"]
    kind_of_value = data.draw(st.sampled_from(types))
    return MetadataEntry("metadata_filter[0]", key, kind_of_value, operator, value)


def _holds(entry: MetadataEntry, predicate: Predicate, metadata: Metadata) -> bool:
    """Check whether the values satisfy an entry, by the table of operators."""
    inner = predicate.of if isinstance(predicate, typed.Not) else predicate
    if isinstance(inner, typed.Sent):
        rows: list[Leaf | Presence] = [*metadata.leaves, *metadata.presences]
        return holds(entry.operator, [row for row in rows if row.name == entry.key], None)
    assert isinstance(inner, typed.Compared)
    of, *constants = inner.values
    assert isinstance(of, typed.Metadata)
    values = [
        leaf.value for leaf in metadata.leaves if (leaf.name, leaf.family) == (of.name, of.kind)
    ]
    operands = [constant.value for constant in constants if isinstance(constant, typed.Constant)]
    several = entry.operator.takes in {Takes.LIST, Takes.PAIR}
    return holds(entry.operator, values, operands if several else operands[0])


@settings(_RELAXED, max_examples=examples(2_000))
@given(data=st.data())
async def test_conditions_on_metadata_mean_what_the_table_of_operators_says(
    stored: Stored, data: st.DataObject
) -> None:
    model = data.draw(st.sampled_from(stored.models))
    entry, facts = _draw_entry(stored, model, data), stored.facts[model]
    keys = await find_known_keys(stored.connection, model, {entry.key})
    try:
        predicate = check(metadata_node(entry, keys), keys).predicate
    except Invalid:
        event("refused")
        # No comparison with a value that the key has is refused.
        if entry.operator.name in {"eq", "neq"} and not entry.type and isinstance(entry.value, str):
            leaves = [leaf for of in facts.values() for leaf in of.metadata.leaves]
            assert (entry.key, entry.value) not in {(leaf.name, leaf.value) for leaf in leaves}
        return
    expected = {uid for uid, of in facts.items() if _holds(entry, predicate, of.metadata)}
    event(f"{entry.operator.name}: {'some' if expected else 'none'}")
    assert _sort_by_truth(facts, predicate)[True] == expected
    query = await build_query(stored.connection, range_of_time(model, None, None), [predicate])
    page = await find_by_time(stored.connection, query, limit=100, deadline=Deadline.after(300))
    assert page.uids == sorted(expected, reverse=True)


_WINDOW_ENDS = st.none() | st.sampled_from(typed_rows.INSTANTS)
_LABELS = st.lists(st.sampled_from([*typed_rows.LABELS, "nobody"]), min_size=1, max_size=2)
_SCORES = st.sampled_from([score for score in typed_rows.SCORES if score > 1e-10])
_QUESTIONS = st.builds(
    QueryRequest,
    since=_WINDOW_ENDS,
    until=_WINDOW_ENDS,
    predicted=st.booleans(),
    labels=st.none() | _LABELS,
    scores=st.dictionaries(st.sampled_from(["gt", "gte", "lt", "lte", "eq"]), _SCORES, max_size=2),
    newest_first=st.booleans(),
)


def _matches(
    question: QueryRequest, at: datetime, predictions: Sequence[Mapping[str, Any]]
) -> bool:
    """Check an instant, and whether one prediction has both a label and a score as requested."""
    if question.since is not None and at < question.since:
        return False
    if question.until is not None and at >= question.until:
        return False
    return not question.predicted or any(
        (question.labels is None or prediction["label"] in question.labels)
        and all(
            prediction["score"] is not None and TESTS[name](prediction["score"], bound)
            for name, bound in question.scores.items()
        )
        for prediction in predictions
    )


@settings(_RELAXED, max_examples=examples(800, 40))
@given(data=st.data(), question=_QUESTIONS)
async def test_conditions_on_predictions_and_time_agree(
    stored: Stored, data: st.DataObject, question: QueryRequest
) -> None:
    model = data.draw(st.sampled_from(stored.models))
    matching = {
        uid
        for uid, facts in stored.facts[model].items()
        if _matches(question, facts.properties["received_at"][0], facts.predictions or ())
    }
    expected = sorted(matching, reverse=question.newest_first)
    event(f"matches: {'some' if expected else 'none'}")
    query = (await prepare(stored.connection, model, question)).query
    scanned = await stored.connection.execute(_select_tested(query))
    assert sorted(scanned.scalars(), reverse=question.newest_first) == expected
    rows = await stored.connection.execute(match_by_index(query, query.scan_range))
    assert set(rows.scalars()) == matching
    deadline = Deadline.after(300)
    assert await count(stored.connection, query, deadline=deadline) == len(expected)
    for scan in (1, 4_000):
        page = await find_by_time(stored.connection, query, limit=100, deadline=deadline, scan=scan)
        assert page.uids == expected


_VALUES: tuple[Any, ...] = (1, "one", "p", None, None, (), None, "api", 1, START, START)
_REGISTRATION = Registration(**dict(zip(Registration.model_fields, _VALUES, strict=False)))


@settings(_RELAXED, max_examples=examples(300))
@given(data=st.data())
async def test_what_is_not_stored_is_evaluated_alike(stored: Stored, data: st.DataObject) -> None:
    predicates = [PredicateMaker(stored.keys, data.draw).predicate(2) for _ in range(2)]
    inferences = typed_rows.InferenceMaker(data.draw(st.integers(0, 99))).make_inferences("one", 5)
    items = [make_indexable(inference, _REGISTRATION) for inference in inferences]
    facts = [
        replace(found, properties={**found.properties, "indexed_at": (datetime.now(UTC),)})
        for found in (typed_rows.derive_facts(one, project_id="p") for one in inferences)
    ]
    expected = [[evaluate(predicate, of) for predicate in predicates] for of in facts]
    answers = await evaluate_unstored(stored.connection, items, predicates)
    assert answers == expected, predicates


async def test_any_number_of_filters_asks_what_is_not_stored(stored: Stored) -> None:
    """Also of an inference that comes twice."""
    k = typed.Metadata(name="k", key=None, kind="number", many=False)
    numbers = (typed.Constant(kind="number", value=Decimal(n)) for n in range(2_000))
    predicates = [typed.Compared("=", (k, number)) for number in numbers]
    inferences = typed_rows.InferenceMaker(7).make_inferences("one", 3)
    items = [make_indexable(inference, _REGISTRATION) for inference in inferences]
    answers = await evaluate_unstored(stored.connection, [*items, *items], predicates)
    assert [len(truths or ()) for truths in answers] == [2_000] * 6
    assert answers[:3] == answers[3:]
