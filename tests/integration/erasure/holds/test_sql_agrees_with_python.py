"""What holds keep stands twice, in SQL and in Python: here they must agree.

Inferences of every sort, some of which the index does not have whole, and random holds of a model,
of another and of all; in force, ended and released.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import ARRAY, Text, cast, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import holds
from inference_store.erasure.holds.meaning import DOUBTFUL
from inference_store.index.tables import hold, inference
from inference_store.query.cql2 import parse
from inference_store.query.filters.facts import Facts
from tests.integration.query.typed_rows import KEYS, Maker, facts_of
from tests.integration.stored import store
from tests.properties import examples

_MODELS, _ROWS = 2, 40
_NOW = datetime.now(UTC)
_ATOMS = [
    *("ok", "NOT ok", "ok IS NULL", "width > 100", "http_status = 404", "model_version = '1'"),
    *("n > 0", "n = 0.1", "s = 'a'", "s LIKE 'a%'", "flag", "\"tags[]\" = 'a'", "sent(k)"),
    *("k IS NULL", "k = 'b'", "k IN (1, 2)", "metadata.k = 1.0", '"deep.er" > 1', "unseen = 'x'"),
    *("prediction(label = 'person')", "prediction(label = 'car' AND score > 0.2)"),
    *("count_predictions(label = 'dog') = 0", "prediction_count = 1", "top_label = 'cafe'"),
    *("S_INTERSECTS(location, BBOX(-1, -1, 5, 5))", "distance(location, POINT(1 1)) < 200000"),
    *("inference_id LIKE 'a%'", "uid IS NULL", "TRUE", "FALSE", "n / 0 = 1", "n + width > 3"),
    *("received_at >= TIMESTAMP('2026-11-02T00:00:00Z')", "CASEI(s) = CASEI('E')"),
]
_FILTERS = st.recursive(
    st.sampled_from(_ATOMS),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: f"({two[0]} AND {two[1]})"),
        st.tuples(inner, inner).map(lambda two: f"({two[0]} OR {two[1]})"),
        inner.map(lambda one: f"(NOT {one})"),
    ),
    max_leaves=4,
)
_STATES = ("in_force", "until", "ended", "released")


@dataclass(frozen=True)
class Known:
    """One inference: what a Python reading knows of it."""

    facts: Facts
    flags: Sequence[str]


@dataclass(frozen=True)
class Stored:
    """What is in the database, by model."""

    known: dict[int, dict[UUID, Known]]
    connection: AsyncConnection


@pytest.fixture
async def stored(engine: AsyncEngine) -> AsyncIterator[Stored]:
    known: dict[int, dict[UUID, Known]] = {}
    for seed in range(_MODELS):
        made = Maker(seed).made(f"model-{seed}", _ROWS)
        model = await store(engine, *made)
        doubtful = {each.uid: DOUBTFUL[n % len(DOUBTFUL)] for n, each in enumerate(made[::5])}
        async with engine.begin() as connection:
            for uid, flag in doubtful.items():
                here = update(inference).where(inference.c.model == model, inference.c.uid == uid)
                await connection.execute(here.values(flags=cast([flag], ARRAY(Text))))
        known[model] = {
            each.uid: Known(facts_of(each), [doubtful[each.uid]] if each.uid in doubtful else [])
            for each in made
        }
    async with engine.connect() as connection:
        yield Stored(known, connection)


@pytest.mark.timeout(3600)
@settings(
    deadline=None,
    max_examples=examples(400),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
async def test_sql_agrees_with_python(stored: Stored, data: st.DataObject) -> None:
    connection = stored.connection
    models = [*stored.known, None]
    async with connection.begin() as transaction:
        rows = []
        for _ in range(data.draw(st.integers(0, 3))):
            model, state = data.draw(st.sampled_from(models)), data.draw(st.sampled_from(_STATES))
            rows.append(await _hold(connection, model, state, data.draw(_FILTERS)))
        await _agree(connection, stored, [each for each in rows if each is not None])
        await transaction.rollback()


async def _agree(connection: AsyncConnection, stored: Stored, placed: list[holds.Hold]) -> None:
    in_force = [each for each in placed if each.state(_NOW) == "in_force"]
    for model, known in stored.known.items():
        touching = [each for each in in_force if each.model in (None, model)]
        expected = {
            uid
            for uid, one in known.items()
            if any(holds.held(each, one.facts, one.flags) for each in touching)
        }
        predicate = await holds.predicate(connection, model)
        assert (predicate is None) == (not touching)
        event(f"held: {'some' if expected else 'none'} of {len(touching)}")
        kept = literal(False) if predicate is None else predicate
        query = select(inference.c.uid, kept).where(inference.c.model == model)
        found = dict(tuple(row) for row in await connection.execute(query))
        assert found.keys() == known.keys()
        assert None not in found.values()
        assert {uid for uid, held in found.items() if held} == expected
        asked = await holds.in_force(connection, [model])
        assert (await holds.holding(connection, asked, model, list(known))).keys() == expected


async def _hold(
    connection: AsyncConnection, model: int | None, state: str, filter: str
) -> holds.Hold | None:
    asked = holds.Asked(filter=parse(filter), types={"unseen": "string"})
    made = await holds.make(connection, model, asked)
    values: dict[str, Any] = {"id": uuid4(), "name": filter, "reason": "r", "model": model}
    values |= {"filter": made.text, "placed_by": "t", "placed_at": _NOW, "in_force_at": _NOW}
    days = {"until": 1, "ended": -1}.get(state)
    values["until"] = None if days is None else _NOW + timedelta(days=days)
    values["released_at"] = _NOW if state == "released" else None
    await connection.execute(insert(hold).values(values))
    return await holds.find(connection, values["id"])


def test_the_atoms_speak_of_every_key() -> None:
    assert all(any(key.split(".")[0] in atom for atom in _ATOMS) for key in KEYS if key != "when")
