"""The key registry: folded and unfolded entries look the same."""

import json

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import key_registry
from inference_store.index.tables import metadata_key_delta
from inference_store.inference.errors import Invalid
from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.search import count
from tests.integration.stored_inferences import NewInference, at, store
from tests.transactions import transact


async def test_folding_does_not_change_the_entries(engine: AsyncEngine) -> None:
    model = 0
    for n in range(5):
        items = [("k", "int", str(n)), ("k2", "string", "x"), ("t", "bool", "true")]
        model = await store(engine, NewInference(str(n), at(n), items))
    async with engine.begin() as connection:
        before = await key_registry.keys(connection, model)
        assert [entry.types[0].count for entry in before] == [5, 5, 5]
        assert await key_registry.fold(connection, most=4) == 4
        assert await key_registry.fold(connection) == 11
        assert await key_registry.fold(connection) == 0
        remaining = await connection.scalar(select(func.count()).select_from(metadata_key_delta))
        assert remaining == 0
        after = await key_registry.keys(connection, model)
    assert [_facts(entry) for entry in after] == [_facts(entry) for entry in before]
    assert all(len(entry.types[0].examples) <= key_registry.MOST_EXAMPLES for entry in after)
    await store(engine, NewInference("late", at(9), [("k", "float", "0.5")]))
    k = (await transact(engine, key_registry.find, model, {"k"}))["k"]
    assert {key_type.type: key_type.count for key_type in k.types} == {"int": 5, "float": 1}


async def test_one_folds_at_a_time(engine: AsyncEngine) -> None:
    await store(engine, NewInference(metadata=[("k", "int", "1")]))
    async with engine.begin() as first, engine.begin() as second:
        assert await key_registry.fold(first) == 1
        assert await key_registry.fold(second) == 0


def _facts(entry: key_registry.KeySeen) -> list[object]:
    seen = ("type", "flag", "count", "first_seen", "last_seen")
    return [(entry.name, *(getattr(of, name) for name in seen)) for of in entry.types]


async def test_what_goes_leaves_every_type_of_what_stays(engine: AsyncEngine) -> None:
    """Two types of strays and a text are in one table; a text of JSON has two rows."""
    values = [("int", "x"), ("bool", "x"), ("string", "5"), ("int", "7")]
    stored = [
        NewInference(str(n), at(n), [("n", kind, value), ("j", "json", '"abc"')])
        for n, (kind, value) in enumerate(values)
    ]
    model = await store(engine, *stored)
    await transact(engine, key_registry.subtract, model, [item.uid for item in stored[:2]])
    found = await transact(engine, key_registry.find, model, {"n", "j"})
    types = {(seen.type, seen.flag): seen.count for seen in found["n"].types}
    assert types == {
        ("bool", "not_bool"): 1,
        ("int", "not_int"): 1,
        ("string", ""): 1,
        ("int", ""): 1,
    }
    assert [seen.count for seen in found["j"].types] == [2]
    await transact(engine, key_registry.subtract, model, [item.uid for item in stored[2:]])
    assert (await transact(engine, key_registry.find, model, {"j"}))["j"].types == ()
    assert await transact(engine, key_registry.list_emptied) == []
    assert await transact(engine, key_registry.fold)
    assert await transact(engine, key_registry.list_emptied) == [model]


async def test_shortens_a_key_that_is_too_long(engine: AsyncEngine) -> None:
    name, shortened = "camera" * 50, ("camera" * 50)[:255] + "…"
    items = [("k", "int", "1"), (name, "int", "7"), ("j", "json", json.dumps({name: 1}))]
    model = await store(
        engine, NewInference("one", at(0), items), NewInference("two", at(1), items[:1])
    )
    text = f'sent("{shortened}")'
    async with engine.connect() as connection:
        entries = await key_registry.find(
            connection, model, {shortened, "j." + shortened[:253] + "…"}
        )
        assert [len(entry.types) for entry in entries.values()] == [1, 1]
        assert entries[shortened].families == frozenset()
        assert key_registry.types_of(entries[shortened]) == ["int (key_too_long)"]
        [seen] = entries[shortened].types
        assert (seen.flag, seen.count) == ("key_too_long", 1)
        prepared = await prepare(connection, model, QueryRequest(filter=parse_text(text)))
        assert await count(connection, prepared.query, deadline=Deadline.after(60)) == 1
        for key, refusal in ((shortened, "key_too_long"), (name, "cap of length")):
            with pytest.raises(Invalid, match=refusal):
                await prepare(connection, model, QueryRequest(filter=parse_text(f'"{key}" = 7')))
