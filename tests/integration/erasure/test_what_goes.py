"""What SQL selects for erasure is what a plain reading of the rules says, all of it together.

Random policies of models, a project and all, with filters, three ages, minimum ages and limits;
random holds, of which some have ended; inferences of every sort: some not wholly indexed, some
without a size, some that have lost a part already or are losing it.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import ARRAY, Text, cast, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import holds, policies
from inference_store.erasure.holds.meaning import DOUBTFUL
from inference_store.erasure.mark import marks
from inference_store.erasure.policies import DEFAULT, Chain, Of, RetentionPolicy, Scope
from inference_store.erasure.select import limits, selection
from inference_store.index import registrations
from inference_store.index.registrations import Details
from inference_store.index.tables import erasing, hold, inference
from inference_store.query.bounded import Deadline
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.known import Known as Keys
from inference_store.query.filters.known import known
from inference_store.query.filters.names import names_in
from inference_store.query.filters.saved import save
from inference_store.retention.work import list_work
from tests.integration.query.typed_rows import INSTANTS, Maker, facts_of
from tests.integration.stored import store
from tests.properties import examples

from .plain_reading import Gone, Holding, Known, Reading

_ROWS = 30
_NOW = max(INSTANTS) + timedelta(seconds=1)
_AGES: Mapping[str, timedelta | None] = {
    "PT1S": timedelta(seconds=1),
    "P1D": timedelta(days=1),
    "P1DT0.000001S": timedelta(days=1, microseconds=1),
    "P2D": timedelta(days=2),
    "P3D": timedelta(days=3),
    "P5D": timedelta(days=5),
    "forever": None,
}
_OWNERS = (Of("model", "m0"), Of("model", "m1"), Of("project", "p"), DEFAULT)
_LEAVES = (
    *("top_score < 0.4", "top_label = 'person'", "prediction_count > 1", "top_label IS NULL"),
    *("prediction(label = 'car')", "count_predictions(label = 'dog') = 0", "ok", "NOT ok"),
    *("n > 0.5", "n IS NULL", "s LIKE 'a%'", "s IS NULL", "flag", "sent(k)", "\"tags[]\" = 'a'"),
    *("model_id = 'm0'", "data_size > 999", "inference_id LIKE 'a%'", "model_version = '1'"),
    *("unseen = 'x'", "unseen IS NULL", "received_at < TIMESTAMP('2026-11-02T00:00:00Z')"),
    *("TRUE", "FALSE"),
)
_FILTERS = st.recursive(
    st.sampled_from(_LEAVES),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("(NOT {})".format, inner),
    ),
    max_leaves=3,
)
_TYPES = {"unseen": "string"}


@dataclass(frozen=True)
class Stored:
    """Two models, the first of which has a project; what is known of the inferences of each."""

    inferences: Mapping[int, list[Known]]
    keys: Keys
    connection: AsyncConnection


@pytest.fixture
async def stored(engine: AsyncEngine) -> AsyncIterator[Stored]:
    async with engine.begin() as connection:
        for name, project in (("m0", "p"), ("m1", None)):
            await registrations.put(connection, name, Details(project_id=project))
    found: dict[int, list[Known]] = {}
    for seed in (0, 1):
        made = Maker(seed).made(f"m{seed}", _ROWS)
        model = await store(engine, *made)
        found[model] = [_known(n, each.uid, facts_of(each)) for n, each in enumerate(made)]
        async with engine.begin() as connection:
            for one in found[model]:
                await _alter(connection, model, one)
    async with engine.connect() as connection:
        names = {name for leaf in _LEAVES for name in names_in(parse_text(leaf))} - {"unseen"}
        keys = await known(connection, list(found), names)
        await connection.rollback()
        yield Stored(found, keys, connection)


def _known(number: int, uid: Any, facts: Any) -> Known:
    """By turns: in doubt, of no known size, without a part, and losing one."""
    one = Known(uid, facts, size=(None, 10, 1000)[number % 3])
    doubt = DOUBTFUL[number % len(DOUBTFUL)]
    match number % 10:
        case 0 | 3 | 8:
            return replace(one, flags=(doubt, "not_utf8"))
        case 4:
            return replace(one, gone=frozenset({"input"}), flags=(doubt,))
        case 5:
            return replace(one, gone=frozenset({"response"}), marked=frozenset({"input"}))
        case 6 if number > 10:
            return replace(one, marked=frozenset({"inference"}))
    return one


async def _alter(connection: AsyncConnection, model: int, one: Known) -> None:
    gone = {"input": "data_deleted_at", "response": "response_deleted_at"}
    values: dict[str, Any] = {gone[part]: _NOW for part in one.gone}
    values |= {"response_storage_key": "b/r", "data_storage_key": "b/d", "stored_bytes": one.size}
    values["flags"] = cast(list(one.flags), ARRAY(Text))
    here = update(inference).where(inference.c.model == model, inference.c.uid == one.uid)
    await connection.execute(here.values(values))
    for part in one.marked:
        mark = {"model": model, "uid": one.uid, "scope": part, "erasure": uuid4()}
        await connection.execute(insert(erasing), [mark])


@st.composite
def _policy(draw: st.DrawFn, keys: Keys) -> dict[str, Any] | None:
    texts = draw(st.lists(_FILTERS, max_size=2)) + draw(st.sampled_from([[], [None]]))
    rules = [_rule(draw, text, keys) for text in texts]
    policy: dict[str, Any] = {"rules": rules} if rules else {}
    for name, some in (
        ("minimum_age", ["P1D", "P2D"]),
        ("max_inferences", [1, 7, 20]),
        ("max_bytes", [1, 2000, 9000]),
    ):
        if draw(st.integers(0, 3)) == 0:
            policy[name] = draw(st.sampled_from(some))
    if policy and draw(st.integers(0, 3)) == 0:
        policy["undercuts_minimum_age"] = True
    return policy if policy.keys() - {"undercuts_minimum_age"} else None


def _rule(draw: st.DrawFn, text: str | None, keys: Keys) -> dict[str, Any]:
    ages = sorted(draw(st.lists(st.sampled_from(list(_AGES)), min_size=3, max_size=3)), key=_age)
    rule: dict[str, Any] = {"keep_input": ages[0], "keep_inference": ages[2]}
    if draw(st.booleans()):
        rule["keep_response"] = ages[1]
    if text is not None:
        rule["saved"] = save(parse_text(text), keys, declared=_TYPES, source=text).text
    return rule


def _age(keep: str) -> timedelta:
    age = _AGES[keep]
    return timedelta.max if age is None else age


async def _hold(stored: Stored, data: st.DataObject) -> Holding:
    """Placed as it is kept: of a filter or of ids, of one model or of all, perhaps over."""
    model = data.draw(st.sampled_from([None, *stored.inferences]))
    ids = data.draw(st.lists(st.sampled_from(["a", "b.", "é", "nobody"]), max_size=2))
    text = data.draw(_FILTERS)
    by_filter = holds.Asked(filter=parse_text(text), types=_TYPES)
    asked = holds.Asked(inference_ids=ids) if ids else by_filter
    made = await holds.make(stored.connection, model, asked)
    at, days = datetime.now(UTC), data.draw(st.sampled_from([None, None, 1, -1]))
    until = None if days is None else at + timedelta(days=days)
    released = data.draw(st.integers(0, 4)) == 0
    values = {"id": uuid4(), "name": "h", "reason": "r", "model": model, "filter": made.text}
    values |= {"placed_by": "t", "placed_at": at, "in_force_at": at, "until": until}
    values["released_at"] = at if released else None
    await stored.connection.execute(insert(hold).values(values))
    return Holding(made.text, model, until, released)


@pytest.mark.timeout(3600)
@settings(
    deadline=None,
    max_examples=examples(200),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
async def test_sql_selects_what_a_plain_reading_says(stored: Stored, data: st.DataObject) -> None:
    connection = stored.connection
    async with connection.begin() as transaction:
        said = {}
        for of in _OWNERS:
            policy = data.draw(_policy(stored.keys))
            if policy is not None:
                said[of] = policy
                body = await policies.setting(connection, of, RetentionPolicy(**policy))
                await policies.apply_set(connection, body, _NOW, "t")
        placed = [await _hold(stored, data) for _ in range(data.draw(st.integers(0, 3)))]
        chains = await policies.by_model(connection)
        for number, (model, inferences) in enumerate(stored.inferences.items()):
            owners = (Of("model", f"m{number}"), *((Of("project", "p"),) * (number == 0)), DEFAULT)
            documents = [said[of] for of in owners if of in said]
            reading = Reading(model, documents, placed, _NOW, _AGES, inferences)
            expected, held = reading.goes(), any(map(reading.held, inferences))
            event(f"goes: {bool(expected)}, held: {held}, policies: {len(documents)}")
            chain = chains.get(model, Chain())
            assert await _selected(connection, model, chain) == expected
        await transaction.rollback()


async def _selected(
    connection: AsyncConnection, model: int, chain: Chain, now: datetime = _NOW
) -> Gone:
    """As a run does: rule by rule and part by part, then what is beyond a limit."""
    gone: Gone = set()
    where: dict[str, Any] = {"model": model, "lo": min(INSTANTS) - timedelta(days=9), "limit": 99}
    for work in list_work(model, chain, await selection.decided(connection, chain), now):
        more: dict[str, Any] = {"scope": work.scope, "hi": work.cutoff, "by": work.by}
        gone |= await _marked(connection, **where, **more)
    below = await limits.beyond(connection, model, chain, now=now, deadline=Deadline.after(60))
    if below is not None:
        more = {"scope": "inference", "hi": now, "below": below}
        gone |= await _marked(connection, **where, **more)
    return gone


async def _marked(connection: AsyncConnection, *, scope: Scope, **where: Any) -> Gone:
    found = await selection.expired(connection, scope=scope, **where)
    await marks.add(
        connection, uuid4(), [(where["model"], uid, scope, *keys) for uid, *keys in found]
    )
    return {(each.uid, scope) for each in found}
