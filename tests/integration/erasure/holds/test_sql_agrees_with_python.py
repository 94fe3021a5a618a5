"""Holds are evaluated twice, in SQL and in Python: here they must agree.

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
from inference_store.erasure.holds.evaluation import INCOMPLETE_FLAGS
from inference_store.index.tables import hold, inference
from inference_store.query.cql2 import parse
from inference_store.query.filters.facts import Facts
from tests.integration.query.typed_rows import KEYS, InferenceMaker, derive_facts
from tests.integration.stored_inferences import store
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
        inner.map(lambda text: f"(NOT {text})"),
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
    """The contents of the database, by model."""

    known_by_model: dict[int, dict[UUID, Known]]
    connection: AsyncConnection


@pytest.fixture
async def stored(engine: AsyncEngine) -> AsyncIterator[Stored]:
    known_by_model: dict[int, dict[UUID, Known]] = {}
    for seed in range(_MODELS):
        samples = InferenceMaker(seed).make_inferences(f"model-{seed}", _ROWS)
        model = await store(engine, *samples)
        doubtful = {
            sample.uid: INCOMPLETE_FLAGS[n % len(INCOMPLETE_FLAGS)]
            for n, sample in enumerate(samples[::5])
        }
        async with engine.begin() as connection:
            for uid, flag in doubtful.items():
                here = update(inference).where(inference.c.model == model, inference.c.uid == uid)
                await connection.execute(here.values(flags=cast([flag], ARRAY(Text))))
        known_by_model[model] = {
            sample.uid: Known(
                derive_facts(sample),
                [doubtful[sample.uid]] if sample.uid in doubtful else [],
            )
            for sample in samples
        }
    async with engine.connect() as connection:
        yield Stored(known_by_model, connection)


@pytest.mark.timeout(3600)
@settings(
    deadline=None,
    max_examples=examples(400),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
async def test_sql_agrees_with_python(stored: Stored, data: st.DataObject) -> None:
    connection = stored.connection
    models = [*stored.known_by_model, None]
    async with connection.begin() as transaction:
        rows = []
        for _ in range(data.draw(st.integers(0, 3))):
            model, state = data.draw(st.sampled_from(models)), data.draw(st.sampled_from(_STATES))
            rows.append(await _hold(connection, model, state, data.draw(_FILTERS)))
        await _check_agreement(connection, stored, [row for row in rows if row is not None])
        await transaction.rollback()


async def _check_agreement(
    connection: AsyncConnection, stored: Stored, placed: list[holds.Hold]
) -> None:
    in_force = [placed_hold for placed_hold in placed if placed_hold.state(_NOW) == "in_force"]
    for model, known_by_uid in stored.known_by_model.items():
        touching = [placed_hold for placed_hold in in_force if placed_hold.model in (None, model)]
        expected = {
            uid
            for uid, known_inference in known_by_uid.items()
            if any(
                holds.is_held(placed_hold, known_inference.facts, known_inference.flags)
                for placed_hold in touching
            )
        }
        predicate = await holds.build_held_condition(connection, model)
        assert (predicate is None) == (not touching)
        event(f"held: {'some' if expected else 'none'} of {len(touching)}")
        held_condition = literal(False) if predicate is None else predicate
        query = select(inference.c.uid, held_condition).where(inference.c.model == model)
        held_by_uid = dict(tuple(row) for row in await connection.execute(query))
        assert held_by_uid.keys() == known_by_uid.keys()
        assert None not in held_by_uid.values()
        assert {uid for uid, held in held_by_uid.items() if held} == expected
        holds_in_force = await holds.list_in_force(connection, [model])
        assert (
            await holds.find_holds(connection, holds_in_force, model, list(known_by_uid))
        ).keys() == expected


async def _hold(
    connection: AsyncConnection, model: int | None, state: str, filter: str
) -> holds.Hold | None:
    criteria = holds.HoldCriteria(filter=parse(filter), types={"unseen": "string"})
    hold_filter = await holds.build_filter(connection, model, criteria)
    values: dict[str, Any] = {"id": uuid4(), "name": filter, "reason": "r", "model": model}
    values |= {"filter": hold_filter.text, "placed_by": "t", "placed_at": _NOW, "in_force_at": _NOW}
    days = {"until": 1, "ended": -1}.get(state)
    values["until"] = None if days is None else _NOW + timedelta(days=days)
    values["released_at"] = _NOW if state == "released" else None
    await connection.execute(insert(hold).values(values))
    return await holds.find_hold(connection, values["id"])


def test_the_atoms_speak_of_every_key() -> None:
    assert all(any(key.split(".")[0] in atom for atom in _ATOMS) for key in KEYS if key != "when")
