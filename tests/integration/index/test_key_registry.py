"""The key registry: what was folded and what was not show alike."""

import json

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import key_registry
from inference_store.index.tables import metadata_key_delta
from inference_store.inference.errors import Invalid
from inference_store.query.ask import QueryRequest, prepare
from inference_store.query.bounded import Deadline
from inference_store.query.count import count
from inference_store.query.cql2 import parse_text
from tests.integration.stored import Made, at, store


async def test_folding_changes_nothing_that_is_shown(engine: AsyncEngine) -> None:
    model = 0
    for n in range(5):
        items = [("k", "int", str(n)), ("k2", "string", "x"), ("t", "bool", "true")]
        model = await store(engine, Made(str(n), at(n), items))
    async with engine.begin() as connection:
        before = await key_registry.keys(connection, model)
        assert [each.types[0].count for each in before] == [5, 5, 5]
        assert await key_registry.fold(connection, most=4) == 4
        assert await key_registry.fold(connection) == 11
        assert await key_registry.fold(connection) == 0
        left = await connection.scalar(select(func.count()).select_from(metadata_key_delta))
        assert left == 0
        after = await key_registry.keys(connection, model)
    assert [_facts(each) for each in after] == [_facts(each) for each in before]
    assert all(len(each.types[0].examples) <= key_registry.MOST_EXAMPLES for each in after)
    await store(engine, Made("late", at(9), [("k", "float", "0.5")]))
    async with engine.connect() as connection:
        k = (await key_registry.find(connection, model, {"k"}))["k"]
    assert {each.type: each.count for each in k.types} == {"int": 5, "float": 1}


async def test_one_folds_at_a_time(engine: AsyncEngine) -> None:
    await store(engine, Made(metadata=[("k", "int", "1")]))
    async with engine.begin() as first, engine.begin() as second:
        assert await key_registry.fold(first) == 1
        assert await key_registry.fold(second) == 0


def _facts(seen: key_registry.KeySeen) -> list[object]:
    return [
        (seen.name, each.type, each.flag, each.count, each.first_seen, each.last_seen)
        for each in seen.types
    ]


async def test_what_is_none_of_its_type_is_compared_as_text(engine: AsyncEngine) -> None:
    model = await store(engine, Made(metadata=[("k", "int", "n/a")]))
    async with engine.connect() as connection:
        k = (await key_registry.find(connection, model, {"k"}))["k"]
    assert k.families == {"string"}
    assert key_registry.types_of(k) == ["int (not_int)"]


async def test_a_key_that_is_too_long_is_told_by_its_beginning(engine: AsyncEngine) -> None:
    name, told = "camera" * 50, ("camera" * 50)[:255] + "…"
    items = [("k", "int", "1"), (name, "int", "7"), ("j", "json", json.dumps({name: 1}))]
    model = await store(engine, Made("one", at(0), items), Made("two", at(1), items[:1]))
    text = f'sent("{told}")'
    async with engine.connect() as connection:
        seen = await key_registry.find(connection, model, {told, "j." + told[:253] + "…"})
        assert [len(each.types) for each in seen.values()] == [1, 1]
        assert seen[told].families == frozenset()
        assert key_registry.types_of(seen[told]) == ["int (key_too_long)"]
        assert (seen[told].types[0].flag, seen[told].types[0].count) == ("key_too_long", 1)
        asked = await prepare(connection, model, QueryRequest(filter=parse_text(text)))
        assert await count(connection, asked.query, deadline=Deadline.after(60)) == 1
        for known, refusal in ((told, "key_too_long"), (name, "cap of length")):
            with pytest.raises(Invalid, match=refusal):
                await prepare(connection, model, QueryRequest(filter=parse_text(f'"{known}" = 7')))
