"""Filters checked against the keys of a real database: known keys, errors and warnings."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.errors import ImpossibleComparison, UnknownKey
from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline
from inference_store.query.filters.certain import load, save
from inference_store.query.filters.check import Checked, check
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.filters.names import find_known_keys, names_in
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.properties import OPERATORS
from inference_store.query.search import count
from tests.integration.stored_inferences import NewInference, at, store
from tests.transactions import transact
from tests.unit.query.filters.oracle import Facts, evaluate


async def _check_filter(engine: AsyncEngine, models: list[int], text: str) -> Checked:
    node = parse_text(text)
    return check(node, await transact(engine, find_known_keys, models, names_in(node)), source=text)


async def test_a_key_is_unknown_only_if_it_is_unknown_to_all(engine: AsyncEngine) -> None:
    first = await store(engine, NewInference(metadata=[("a", "int", "1")], model_id="one"))
    second = await store(
        engine, NewInference(metadata=[("b", "int", "1"), ("a", "string", "x")], model_id="two")
    )
    with pytest.raises(UnknownKey) as caught:
        await _check_filter(engine, [first], "b = 1")
    assert caught.value.faults[0].known == ("a",)
    checked = await _check_filter(engine, [first, second], "b = 1 AND a = 1")
    assert checked.keys["b"].key is not None
    assert checked.keys["a"].rows == {"number": 1, "string": 1}
    assert "1 value is not of that type" in checked.warnings[0]
    # What one model makes impossible another makes possible.
    with pytest.raises(ImpossibleComparison):
        await _check_filter(engine, [first], "a = 'x'")
    assert await _check_filter(engine, [second, first], "a = 'x'")


async def test_a_warning_counts_the_rows_of_another_type(engine: AsyncEngine) -> None:
    items = [
        [("k", "int", "1"), ("j", "json", '["10.5", "x"]')],
        [("k", "int", "many"), ("j", "json", '["7"]')],
        [("k", "string", "x"), ("j", "json", "[true]")],
        [("k", "json", "null")],
        [("k", "float", "NaN")],
    ]
    inferences = [NewInference(str(n), at(n), metadata) for n, metadata in enumerate(items)]
    model = await store(engine, *inferences)
    # A text, a value that is not an int, and NaN; JSON null is not a value.
    assert "3 values" in (await _check_filter(engine, [model], "k = 1")).warnings[0]
    assert "1 value " in (await _check_filter(engine, [model], "k <> 'x'")).warnings[0]
    # A text that is also a number counts as both: of four values two are not numbers.
    assert "2 values" in (await _check_filter(engine, [model], '"j[]" = 7')).warnings[0]
    assert "1 value " in (await _check_filter(engine, [model], "\"j[]\" <> 'x'")).warnings[0]


async def test_combines_filter_with_other_conditions(engine: AsyncEngine) -> None:
    inferences = [
        NewInference(
            str(n), at(n), [("k", "int", str(n)), ("s", "string", "x" * n)], [("cat", n / 10)]
        )
        for n in range(10)
    ]
    model = await store(engine, *inferences)
    text = "k >= 3 AND prediction(label = 'cat' AND score < 0.8) AND NOT s LIKE 'xxxx'"
    question = QueryRequest(
        filter=parse_text(text), filter_text=text, inference_ids=[str(n) for n in range(6)]
    )
    async with engine.connect() as connection:
        prepared = await prepare(connection, model, question)
        assert await count(connection, prepared.query, deadline=Deadline.after(60)) == 2
        assert prepared.warnings == ()
        typo = "prediction(label = 'cta') OR top_label IN ('cat', 'dgo')"
        warned = await prepare(connection, [model], QueryRequest(filter=parse_text(typo)))
        assert [warning.split("'")[1] for warning in warned.warnings] == ["cta", "dgo"]
        assert "cat" in warned.warnings[0]
        empty = QueryRequest(filter=parse_text("nobody = 1"), unknown_keys="empty")
        nothing = await prepare(connection, model, empty)
        assert await count(connection, nothing.query, deadline=Deadline.after(60)) == 0
        with pytest.raises(UnknownKey):
            await prepare(connection, model, QueryRequest(filter=parse_text("nobody = 1")))


async def test_loads_saved_filter_from_the_dictionary(engine: AsyncEngine) -> None:
    model = await store(engine, NewInference(metadata=[("a", "int", "1")], model_id="one"))
    node = parse_text("a = 1 AND later = 'x'")
    keys = await transact(engine, find_known_keys, [model], names_in(node))
    saved = save(node, keys, declared={"later": "string"})
    assert await transact(engine, load, saved.text) == saved.checked.predicate
    # Store `a` with another type, and `later` for the first time.
    await store(
        engine, NewInference("2", metadata=[("a", "string", "y"), ("later", "string", "x")])
    )
    loaded = await transact(engine, load, saved.text)
    assert loaded != saved.checked.predicate
    number = (await _check_filter(engine, [model], "a = 1")).keys["a"].key
    assert f"key={number}, kind='number'" in repr(loaded)
    assert "key=None" not in repr(loaded)


# The filter, and how many of three inferences match.
NON_FINITE = (
    ("temperature = 'NaN'", 1),
    ("temperature IN ('NaN', '-inf')", 2),
    ("temperature LIKE '%inf%'", 1),
    ("temperature > 20", 1),
    ("temperature IS NOT NULL", 3),
    ("\"readings[]\" = 'NaN'", 1),
    ("A_CONTAINS(readings, ('NaN', 1))", 1),
)
# The key, the operator, its value, and how many of three inferences match.
STRAY = (
    ("temperature", "eq", "1.5", 1),
    ("temperature", "gt", "1", 2),
    ("temperature", "in", ["1.5", "20"], 2),
    ("temperature", "between", ["1", "3"], 1),
    ("temperature", "eq", "NaN", 1),
    ("temperature", "in", ["1.5", "NaN"], 1),  # a list has one kind, and NaN is not a number
    ("temperature", "like", "1", 0),
    ("frame", "gt", "8", 2),
    ("frame", "eq", "n/a", 1),
    ("seen", "lt", "2026-11-02T01:00:00+02:00", 1),
    ("seen", "eq", "later", 1),
    ("ok_there", "eq", "TRUE", 1),
    ("ok_there", "gt", "1", 1),  # booleans have no order, and texts do
    ("speed", "gt", "9", 2),  # its producers send texts on purpose
)


async def _count(engine: AsyncEngine, model: int, question: QueryRequest) -> int:
    query = (await transact(engine, prepare, model, question)).query
    return await transact(engine, count, query, deadline=Deadline.after(300))


async def test_finds_non_finite_numbers_as_text(engine: AsyncEngine) -> None:
    items = [("float", "NaN"), ("float", "-inf"), ("float", "20.5")]
    inferences = [
        NewInference(
            str(n),
            at(n),
            [("temperature", *item), ("readings", "json", "[1, NaN]" if n == 0 else "[2]")],
        )
        for n, item in enumerate(items)
    ]
    model = await store(engine, *inferences)
    for text, expected in NON_FINITE:
        question = QueryRequest(filter=parse_text(text), filter_text=text)
        assert await _count(engine, model, question) == expected, text
        predicate = (await _check_filter(engine, [model], text)).predicate
        agreed = [evaluate(predicate, Facts(metadata=inference.read)) for inference in inferences]
        assert agreed.count(True) == expected, text


async def test_stray_text_does_not_change_the_type_of_a_key(engine: AsyncEngine) -> None:
    rows = {
        "temperature": [("float", "1.5"), ("float", "20"), ("float", "NaN")],
        "frame": [("int", "9"), ("int", "10"), ("int", "n/a")],
        "seen": [("date", "2026-11-01"), ("date", "2026-11-02"), ("date", "later")],
        "ok_there": [("bool", "true"), ("bool", "false"), ("bool", "yes")],
        "speed": [("float", "20"), ("string", "fast"), ("float", "NaN")],
    }
    inferences = [
        NewInference(str(n), at(n), [(name, *items[n]) for name, items in rows.items()])
        for n in range(3)
    ]
    model = await store(engine, *inferences)
    for key, operator, value, expected in STRAY:
        entry = MetadataEntry("metadata_filter[0]", key, None, OPERATORS[operator], value)
        number = await _count(engine, model, QueryRequest(metadata=[entry]))
        assert number == expected, (key, operator, value)
    for text, expected in (("seen > '2026-11-01'", 1), ("seen = 'later'", 1)):
        node = parse_text(text)
        assert await _count(engine, model, QueryRequest(filter=node)) == expected, text
        known = await transact(engine, find_known_keys, model, names_in(node))
        predicate = await transact(engine, load, save(node, known).text)
        assert predicate == check(node, known).predicate, text
