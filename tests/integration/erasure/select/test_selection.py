"""Policies are evaluated twice, in SQL and in Python: here they must agree.

Rows of every sort are stored once as the ingester writes them, some of which the index does not
have whole. For random policies of a model, its project and all, what sweeps mark is compared with
the plain reading of the rules.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import ARRAY, Text, cast, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.holds.evaluation import INCOMPLETE_FLAGS
from inference_store.erasure.mark.pending_deletions import add_pending
from inference_store.erasure.policies import (
    DEFAULT,
    EffectivePolicy,
    ErasureScope,
    PolicyOwner,
    RetentionPolicy,
    Rule,
    merge_policies,
)
from inference_store.erasure.select import selection
from inference_store.index.tables import erasing, inference
from inference_store.inference.errors import StoreError
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.certain import FLAGS
from inference_store.query.filters.facts import Facts
from inference_store.query.filters.known_keys import KnownKeys, find_known_keys
from inference_store.query.filters.names import names_in
from inference_store.query.filters.saved import save
from tests.integration.query.typed_rows import INSTANTS, InferenceMaker, derive_facts
from tests.integration.stored_inferences import store
from tests.properties import examples

_ROWS = 60
_SCOPES: tuple[ErasureScope, ...] = ("inference", "response", "input")
_NOW = max(INSTANTS) + timedelta(seconds=1)
_LEAVES = (
    "top_score < 0.4",
    "top_score IS NULL",
    "ok = TRUE",
    "NOT ok",
    "http_status = 404",
    "top_label = 'person'",
    "top_label IN ('car', 'dog', 'nothing')",
    "prediction_count > 1",
    "data_size > 999",
    "metadata.n > 0.5",
    "metadata.s LIKE 'a%'",
    "metadata.s IS NULL",
    "NOT (metadata.s = 'a')",
    "sent(s)",
    "\"tags[]\" = 'a'",
    "NOT (\"tags[]\" = 'a')",
    "A_CONTAINEDBY(\"tags[]\", ('a', 'b'))",
    "prediction(label = 'person')",
    "count_predictions(label = 'person') = 0",
    "metadata.flag = TRUE",
    "metadata.when >= TIMESTAMP('2026-11-02T00:00:00Z')",
    "metadata.deep.er = 'ab'",
    "metadata.nobody = 3",
    "metadata.nobody IS NULL",
    "model_ms > 1",
    "received_at < TIMESTAMP('2026-11-02T00:00:00Z')",
    "model_version = '1'",
    "inference_id LIKE 'a%'",
    "TRUE",
    "FALSE",
)
_FILTERS = st.recursive(
    st.sampled_from(_LEAVES),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("(NOT {})".format, inner),
    ),
    max_leaves=4,
)
_AGES = ("PT1S", "P1D", "P1DT0.000001S", "P2D", "P3D", "P1M", "forever")
_RELAXED = settings(
    deadline=None,
    max_examples=examples(200),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Stored:
    """The contents of the database: a model, the facts of each inference, and its keys."""

    model: int
    facts: Mapping[UUID, Facts]
    flags: Mapping[UUID, str]
    known_keys: KnownKeys
    connection: AsyncConnection


@pytest.fixture
async def stored(engine: AsyncEngine) -> AsyncIterator[Stored]:
    samples = InferenceMaker(7).make_inferences("m", _ROWS)
    model = await store(engine, *samples)
    names = {name for leaf in _LEAVES for name in names_in(parse_text(leaf))}
    async with engine.connect() as connection:
        at = inference.update().values(response_storage_key="s3://b/r", data_storage_key="s3://b/d")
        await connection.execute(at)
        flags = {
            sample.uid: INCOMPLETE_FLAGS[n % len(INCOMPLETE_FLAGS)]
            for n, sample in enumerate(samples[::3])
        }
        for uid, flag in flags.items():
            statement = inference.update().where(inference.c.model == model, inference.c.uid == uid)
            await connection.execute(statement.values(flags=cast([flag], ARRAY(Text))))
        keys = await find_known_keys(connection, model, names)
        facts = {sample.uid: derive_facts(sample) for sample in samples}
        yield Stored(model, facts, flags, keys, connection)


@st.composite
def _rules(draw: st.DrawFn, keys: KnownKeys) -> list[Rule]:
    rules = []
    for _ in range(draw(st.integers(0, 3))):
        text = draw(_FILTERS)
        try:
            saved = save(parse_text(text), keys, source=text).text
        except StoreError:
            event("refused")
            continue
        rules.append(_draw_rule(draw, saved))
    if draw(st.booleans()):
        rules.append(_draw_rule(draw, None))
    return rules


def _draw_rule(draw: st.DrawFn, saved: str | None) -> Rule:
    places = [draw(st.integers(0, len(_AGES) - 1)) for _ in range(3)]
    longest = max(places)
    ages = [_AGES[places[0]], _AGES[places[1]], _AGES[longest]]
    return Rule(saved=saved, keep_input=ages[0], keep_response=ages[1], keep_inference=ages[2])


def _draw_chain(data: st.DataObject, keys: KnownKeys) -> EffectivePolicy:
    policies = []
    for of in (PolicyOwner("model", "m"), PolicyOwner("project", "p"), DEFAULT):
        rules = data.draw(_rules(keys))
        minimum = data.draw(st.sampled_from([None, None, "P1D", "P2D"]))
        more: dict[str, Any] = {
            "minimum_age": minimum,
            "undercuts_minimum_age": data.draw(st.sampled_from([False, False, True])),
        }
        if rules or minimum is not None:
            policies.append((of, 1, RetentionPolicy(rules=tuple(rules), **more)))
    return merge_policies(policies)


@pytest.mark.long
@pytest.mark.timeout(3600)
@_RELAXED
@given(data=st.data())
async def test_sql_selects_the_same_as_python(stored: Stored, data: st.DataObject) -> None:
    chain, connection = _draw_chain(data, stored.known_keys), stored.connection
    expected: set[tuple[UUID, ErasureScope]] = set()
    for uid, facts in stored.facts.items():
        [received] = facts.properties["received_at"]
        cutoffs = chain.find_cutoffs(facts, _NOW, [stored.flags.get(uid, "not_utf8")])
        expected |= {(uid, part) for part in cutoffs.find_expired(received)}
    event(f"parts that go: {len(expected) // 30 * 30} and more")
    async with connection.begin_nested() as savepoint:
        rules = await selection.compile_rules(connection, chain)
        for scope in _SCOPES:
            for number, rule in enumerate(chain.rules):
                await _mark(stored, rules, number, scope, rule.cutoffs(_NOW).of(scope), data)
        rows = await connection.execute(select(erasing.c.uid, erasing.c.scope))
        selected = {(row.uid, row.scope) for row in rows}
        await savepoint.rollback()
    assert selected == expected
    ends = chain.find_end(_NOW)
    if ends is not None:
        for uid, facts in stored.facts.items():
            if facts.properties["received_at"][0] < ends:
                assert (uid, "inference") in expected


async def _mark(
    stored: Stored,
    rules: selection.CompiledRules,
    number: int,
    scope: ErasureScope,
    cutoff: Any,
    data: st.DataObject,
) -> None:
    """Mark batch by batch, as a sweep does."""
    after, limit = None, data.draw(st.sampled_from([7, 100]))
    while cutoff is not None:
        selected = await selection.find_expired(
            stored.connection,
            model=stored.model,
            scope=scope,
            lo=min(INSTANTS) - timedelta(days=1),
            hi=cutoff,
            limit=limit,
            by=None if rules.is_unconditional(number) else (rules, number),
            after=after,
        )
        if not selected:
            return
        assert len(selected) <= limit
        marked = [(stored.model, uid, scope, *keys) for uid, *keys in selected]
        assert await add_pending(stored.connection, uuid4(), marked) == len(selected)
        after = selected[-1].uid


async def test_leaves_out_marked_and_deleted_parts(stored: Stored) -> None:
    connection, (first, second, *_) = stored.connection, sorted(stored.facts)
    mark = {"model": stored.model, "scope": "inference", "erasure": uuid4(), "uid": first}
    await connection.execute(insert(erasing), [mark])
    gone = inference.update().where(inference.c.uid == second)
    await connection.execute(gone.values(response_deleted_at=_NOW, data_deleted_at=_NOW))
    counts: dict[ErasureScope, int] = {
        "response": _ROWS - 2,
        "input": _ROWS - 2,
        "inference": _ROWS - 1,
    }
    for scope, count in counts.items():
        selected = await selection.find_expired(
            connection,
            model=stored.model,
            scope=scope,
            lo=min(INSTANTS) - timedelta(days=1),
            hi=_NOW,
            limit=1000,
        )
        assert len(selected) == count


async def test_a_rule_is_not_true_because_the_index_lacks_something(stored: Stored) -> None:
    """A rule of what lacks a key is not of that of which keys may not have been indexed."""
    connection = stored.connection
    doubtful = {uid for uid, flag in stored.flags.items() if flag in FLAGS["metadata"]}
    lacking = {uid for uid, sample_facts in stored.facts.items() if sample_facts.is_missing("s")}
    assert lacking & doubtful
    assert lacking - doubtful
    text = "metadata.s IS NULL"
    saved = save(parse_text(text), stored.known_keys, source=text).text
    rule = Rule(saved=saved, keep_input="PT1S", keep_inference="PT1S")
    chain = merge_policies([(DEFAULT, 1, RetentionPolicy(rules=(rule,)))])
    selected = await selection.find_expired(
        connection,
        model=stored.model,
        scope="inference",
        lo=min(INSTANTS) - timedelta(days=1),
        hi=_NOW,
        limit=1000,
        by=(await selection.compile_rules(connection, chain), 0),
    )
    assert {sample_facts.uid for sample_facts in selected} == lacking - doubtful
