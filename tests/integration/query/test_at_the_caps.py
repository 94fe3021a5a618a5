"""The largest filters, folded and long texts, and look-ups by id over many partitions."""

import unicodedata
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import fields, is_dataclass, replace
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.dialects.postgresql import TEXT
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import acquire_with
from inference_store.index.long_text import encode
from inference_store.index.tables import erasing, inference, metadata_key, partition_span
from inference_store.inference.errors import NotFound
from inference_store.query import lookup
from inference_store.query.conditions import Names, compile_condition
from inference_store.query.deadline import Deadline, OutOfTime, bind_many, range_of_time
from inference_store.query.filters.check import check
from inference_store.query.filters.from_conditions import MetadataEntry, metadata_node
from inference_store.query.filters.names import find_known_keys
from inference_store.query.filters.operands import without_accents
from inference_store.query.filters.typed import (
    And,
    Applied,
    Area,
    Column,
    Compared,
    Constant,
    Located,
    Metadata,
    Not,
    Or,
    Predicate,
    PredicateValue,
    Predicted,
    Property,
    Unknown,
    Value,
)
from inference_store.query.plan import Query, match_by_index
from inference_store.query.preparation import build_query
from inference_store.query.properties import OPERATORS
from inference_store.query.search import count, find_by_time
from tests.integration.query.held_partition import hold_partition
from tests.integration.stored_inferences import NewInference, at, store
from tests.servers.marks import plain_postgres
from tests.unit.query.filters.oracle import Facts, evaluate

from .conftest import DAY, Filled, make_days
from .typed_rows import derive_facts

_DEPTH, _PARTS = 62, 600
# Replaced by the integers of the keys once the rows are stored.
_KEY = Metadata("n", -1, "number", False)
_TEXT = Metadata("s", -2, "string", False)


def _number(value: int) -> Constant:
    return Constant("number", Decimal(value))


def _comparisons() -> tuple[Predicate, ...]:
    """Return comparisons of equal and of different values, so that they are not one list."""
    return tuple(
        Compared("<" if n % 2 else ">", (Applied("+", (_KEY, _number(n % 3))), _number(n)))
        for n in range(_PARTS)
    )


def _deep() -> Predicate:
    predicate: Predicate = Compared(">", (_KEY, _number(1)))
    for n in range(_DEPTH):
        predicate = (And if n % 2 else Or)((predicate, Compared(">", (_KEY, _number(n)))))
    return predicate


def _negated() -> Predicate:
    predicate: Predicate = Compared(">", (_KEY, _number(1)))
    for n in range(8):
        predicate = Unknown(predicate) if n % 2 else Not(predicate)
    return predicate


def _calculated() -> Predicate:
    value: Value = _KEY
    for n in range(_DEPTH):
        value = Applied("+", (value, _number(n)))
    return Compared(">", (value, _number(3)))


def _powers() -> Predicate:
    value: Value = Property("width", "number")
    for _ in range(8):
        value = Applied("^", (value, _number(2)))
    return Compared(">", (value, _number(3)))


def _folded() -> Predicate:
    value: Value = _TEXT
    for _ in range(_DEPTH):
        value = Applied("casei", (value,))
    return Compared("<", (value, Constant("string", "é")))


def _predicted(n: int) -> Predicate:
    label = Compared("=", (Column("label", "string"), Constant("string", "car")))
    score = Compared("<", (Column("score", "number"), Constant("number", Decimal(n) / 1000)))
    return Predicted(And((label, score)))


def _many_corners() -> Predicate:
    corners = [(Decimal(n) / 10, Decimal(n * n % 80)) for n in range(1_500)]
    return Located("intersects", (Area((*corners, corners[0])),))


def _compared(n: int) -> Predicate:
    below, other = (
        Compared("<", (_KEY, _number(n))),
        Compared("<", (_TEXT, Constant("string", "é"))),
    )
    return Compared("=", (PredicateValue(below), PredicateValue(other)))


FILTERS: dict[str, Predicate] = {
    "one of many": Or(_comparisons()),
    "all of many": And(_comparisons()),
    "not all of many": Not(And(_comparisons())),
    "a long list": Or(tuple(Compared("=", (_KEY, _number(n))) for n in range(1_000))),
    "patterns": Or(
        tuple(Compared("like", (_TEXT, Constant("string", f"%{n}%"))) for n in range(300))
    ),
    "predictions": Or(tuple(_predicted(n) for n in range(300))),
    "conditions compared": And(tuple(_compared(n) for n in range(100))),
    "deep": _deep(),
    "unknown of unknown": _negated(),
    "deep arithmetic": _calculated(),
    "powers of powers": _powers(),
    "folded again and again": _folded(),
    "a polygon of many corners": _many_corners(),
}


def _replace_keys(node: Any, keys: Mapping[str, int]) -> Any:
    if isinstance(node, tuple):
        return tuple(_replace_keys(part, keys) for part in node)
    if isinstance(node, Metadata):
        return replace(node, key=keys[node.name])
    if not is_dataclass(node) or isinstance(node, type):
        return node
    return replace(
        node, **{f.name: _replace_keys(getattr(node, f.name), keys) for f in fields(node)}
    )


@pytest.mark.long
async def test_the_largest_filters(anything_engine: AsyncEngine, anything: Filled) -> None:
    model = anything.models["model-0"]
    facts = {entry.uid: derive_facts(entry) for entry in anything.inferences["model-0"]}
    deadline = Deadline.after(600)
    async with anything_engine.connect() as connection:
        rows = await connection.execute(select(metadata_key.c.name, metadata_key.c.key))
        keys = {row.name: row.key for row in rows}
        for name, unkeyed in FILTERS.items():
            predicate = _replace_keys(unkeyed, keys)
            expected = {uid for uid, of in facts.items() if evaluate(predicate, of)}
            query = await build_query(connection, range_of_time(model, None, None), [predicate])
            page = await find_by_time(connection, query, limit=100, deadline=deadline)
            assert set(page.uids) == expected, name
            assert await count(connection, query, deadline=deadline) == len(expected), name


# The letters of every Unicode version in use: those of Python and Postgres differ.
_OLD = unicodedata.ucd_3_2_0


def _letters() -> list[str]:
    points = (chr(point) for point in range(1, 0x110000) if not 0xD800 <= point < 0xE000)
    assigned = [letter for letter in points if _OLD.category(letter) not in {"Cn", "Co"}]
    # Hangul and Han have neither case nor accents, and are most of the letters.
    return [
        letter
        for letter in assigned
        if unicodedata.category(letter) != "Lo" or ord(letter) < 0x2000
    ]


async def test_every_letter_is_folded_as_in_python_and_null_stays_null(engine: AsyncEngine) -> None:
    letters = _letters()
    # Each letter alone and after an `a`, with which marks are composed again.
    texts = [*letters, *("a" + letter for letter in letters), "", "Straße", "e\u0301\u0323"]
    async with engine.connect() as connection:
        for name, fold in (("fold_case", str.casefold), ("fold_accents", without_accents)):
            original = func.unnest(bind_many(texts, TEXT())).column_valued("given")
            folded = getattr(func, name)(original)
            folded_texts = {
                row[0]: row[1] for row in await connection.execute(select(original, folded))
            }
            assert folded_texts == {text: fold(text) for text in texts}, name
    async with engine.connect() as connection:
        none = select(func.fold_case(None, type_=TEXT()), func.fold_accents(None, type_=TEXT()))
        row: tuple[object, ...] = tuple((await connection.execute(none)).one())
        assert row == (None, None)


_LENGTHS = (444, 445, 446, 447, 448, 449, 480, 512, 513)
_ENDINGS = ("", "\x01", "b", "\ud7ff", "\ue000", "😀", "\U0010ffff", "\U0010ffff\U0010ffff")


def _texts(character: str) -> list[str]:
    size = len(character.encode())
    whole = [character * (n // size) + "a" * (n % size) for n in _LENGTHS]
    texts = {text + end for text in whole for end in _ENDINGS}
    return sorted(texts | {encode(text)[0] for text in texts} | {"", "a", character})


async def test_compares_long_texts(engine: AsyncEngine) -> None:
    for character in ("a", "é", "€", "😀", "\ud7ff", "\U0010ffff"):
        texts = _texts(character)
        inferences = [
            NewInference(str(n), at(n), [("k", "string", text)], model_id=character)
            for n, text in enumerate(texts)
        ]
        model = await store(engine, *inferences)
        facts = {inference.uid: Facts(metadata=inference.read) for inference in inferences}
        async with engine.connect() as connection:
            await _check_comparisons(connection, model, facts, texts)


async def _check_comparisons(
    connection: AsyncConnection, model: int, facts: Mapping[UUID, Facts], texts: Sequence[str]
) -> None:
    keys = await find_known_keys(connection, model, {"k"})
    for name in ("eq", "gt", "gte", "lt", "lte", "between", "in", "like"):
        for letter in texts[:: 1 if name in {"gt", "lte", "eq"} else 4]:
            value = {"between": [letter, letter + "b"], "in": [letter, "b"], "like": letter + "%"}
            entry = MetadataEntry("", "k", "string", OPERATORS[name], value.get(name, letter))
            predicate = check(metadata_node(entry, keys), keys).predicate
            condition = compile_condition(predicate, Names())
            query = Query(range_of_time(model, None, None), (condition,))
            assert query.is_driven
            rows = await connection.execute(match_by_index(query, query.scan_range))
            expected = {uid for uid, of in facts.items() if evaluate(predicate, of)}
            assert set(rows.scalars()) == expected, (name, letter)


# The most partitions that one cached plan covers: none of them, and all.
_PLANS = (0, lookup.MOST_PLANNED_ONCE)
_OF_ID_3 = (53, 43, 33, 23, 13, 3)


async def _find(
    connection: AsyncConnection, model: int, name: str, **options: Any
) -> tuple[UUID, ...]:
    return tuple(await lookup.find_by_id(connection, model, name, **{"seconds": 300} | options))


async def test_finds_all_of_an_id_newest_first(days: AsyncConnection, twenty_days: Filled) -> None:
    model, entries = twenty_days.one, twenty_days.inferences["one"]
    strange = [
        UUID(int=0),
        UUID(int=(1 << 128) - 1),
        uuid4(),
        twenty_days.inferences["other"][5].uid,
    ]
    for planned_once in _PLANS:

        async def find(name: str, most: int = 1_000, plan: int = planned_once) -> list[int]:
            uids = await _find(days, model, name, most=most, planned_once=plan)
            return [n for uid in uids for n, entry in enumerate(entries) if entry.uid == uid]

        assert await find("id-3") == [*_OF_ID_3]
        assert await find("id-4") == [54, 44, 34, 24, 14, 7, 4]
        for most in range(1, 8):
            assert await find("id-4", most) == [54, 44, 34, 24, 14, 7, 4][:most]
        assert await find("alias-17") == [17]
        assert await find(f"uid:{entries[5].uid}") == [5]
        for nobody in ("nobody", "", *(f"uid:{uid}" for uid in strange)):
            with pytest.raises(NotFound):
                await find(nobody)
        assert len(await _find(days, twenty_days.models["model-2"], "id-3")) == 1


async def test_hides_marked_and_closed(days: AsyncConnection, twenty_days: Filled) -> None:
    model, entries = twenty_days.one, twenty_days.inferences["one"]
    here = partition_span.c
    for number in (53, 17):
        mark = {"uid": entries[number].uid, "scope": "inference", "erasure": uuid4()}
        await days.execute(insert(erasing).values(model=model, **mark))
    closed = (here.lo <= entries[33].received_at) & (here.hi > entries[33].received_at)
    await days.execute(partition_span.update().where(closed).values(state="dropping"))
    seen = tuple(entries[n].uid for n in (43, 23, 13, 3))
    for planned_once in _PLANS:
        assert await _find(days, model, "id-3", planned_once=planned_once) == seen
        assert await _find(days, model, "id-3", most=1, planned_once=planned_once) == seen[:1]
        for name in ("alias-17", "alias-33", f"uid:{entries[17].uid}", f"uid:{entries[33].uid}"):
            with pytest.raises(NotFound):
                await _find(days, model, name, planned_once=planned_once)


async def test_cached_plan_sees_new_partitions(engine: AsyncEngine) -> None:
    model = await store(engine, *make_days("one"))
    later = NewInference("id-3", at(20 * DAY), model_id="one")
    async with engine.connect() as connection:
        for _ in range(3):
            assert len(await _find(connection, model, "id-3")) == 6
        await connection.rollback()
        await store(engine, later)
        assert (await _find(connection, model, "id-3"))[0] == later.uid


@asynccontextmanager
async def _connect_for_lookup(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open a connection as the routes of one inference do."""
    with acquire_with(lookup.BY_ID):
        connection = await engine.connect()
    async with aclosing(connection):
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        yield connection


async def test_raises_when_time_runs_out(days_engine: AsyncEngine, twenty_days: Filled) -> None:
    model = twenty_days.one
    for planned_once in _PLANS:
        async with days_engine.connect() as connection:
            async with hold_partition(days_engine, inference, at(3 * DAY)):
                with pytest.raises(OutOfTime):
                    await _find(connection, model, "id-3", seconds=0.5, planned_once=planned_once)
            # The transaction is still usable.
            assert await _find(connection, model, "id-3", planned_once=planned_once)
    # In one round trip:
    async with _connect_for_lookup(days_engine) as connection:
        async with hold_partition(days_engine, inference, at(3 * DAY)):
            with pytest.raises(OutOfTime):
                await _find(connection, model, "id-3", seconds=0.5)
        assert await _find(connection, model, "id-3")


@plain_postgres
async def test_a_look_up_is_planned_once(days_engine: AsyncEngine, twenty_days: Filled) -> None:
    plans = text(
        "SELECT generic_plans, custom_plans FROM pg_prepared_statements"
        " WHERE starts_with(statement, 'SELECT anon')"
    )
    async with _connect_for_lookup(days_engine) as connection:
        for _ in range(3):
            assert await _find(connection, twenty_days.one, "id-3")
        assert (await connection.execute(plans)).one() == (3, 0)
