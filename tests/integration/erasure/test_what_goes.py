"""SQL selects for erasure what a plain reading does, and no more than was previewed."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import ARRAY, Text, cast, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import holds, policies, preview, selection
from inference_store.erasure.holds import INCOMPLETE_FLAGS
from inference_store.erasure.pending_deletions import add_pending
from inference_store.erasure.policies import (
    DEFAULT,
    EffectivePolicy,
    PolicyOwner,
    RetentionPolicy,
    Rule,
    merge_policies,
)
from inference_store.export.erased import MemberLists
from inference_store.index import registrations
from inference_store.index.registrations import Details
from inference_store.index.tables import erasing, hold, inference, registration
from inference_store.index.writing import Indexable
from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline, range_of_time
from inference_store.query.filters.certain import FLAGS, save
from inference_store.query.filters.names import KnownKeys as Keys
from inference_store.query.filters.names import find_known_keys, names_in
from inference_store.query.unstored import evaluate
from tests.integration.query.typed_rows import INSTANTS, KEYS, InferenceMaker, derive_facts
from tests.integration.stored_inferences import NewInference, at, make_indexable, store
from tests.properties import examples

from .plain_reading import PARTS, Gone, Holding, KnownInference, Reading

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
_OWNERS = (
    PolicyOwner("model", "m0"),
    PolicyOwner("model", "m1"),
    PolicyOwner("project", "p"),
    DEFAULT,
)
_LEAVES = (
    *("top_score < 0.4", "top_label = 'person'", "prediction_count > 1", "top_label IS NULL"),
    *("prediction(label = 'car')", "count_predictions(label = 'dog') = 0", "ok", "NOT ok"),
    *("n > 0.5", "n IS NULL", "s LIKE 'a%'", "s IS NULL", "flag", "sent(k)", "\"tags[]\" = 'a'"),
    *("model_id = 'm0'", "data_size > 999", "inference_id LIKE 'a%'", "model_version = '1'"),
    *("unseen = 'x'", "unseen IS NULL", "received_at < TIMESTAMP('2026-11-02T00:00:00Z')"),
    *("http_status = 404", "model_ms > 1", "s = 'a'", "A_CONTAINEDBY(\"tags[]\", ('a', 'b'))"),
    *(
        "top_label IN ('car', 'dog', 'nothing')",
        "metadata.when >= TIMESTAMP('2026-11-02T00:00:00Z')",
    ),
    *("TRUE", "FALSE"),
)
# Holds take these too.
_HELD = (
    *(*_LEAVES, "ok IS NULL", "width > 100", "n = 0.1", "k IS NULL", "k = 'b'", "k IN (1, 2)"),
    *("metadata.k = 1.0", '"deep.er" > 1', "prediction(label = 'car' AND score > 0.2)"),
    *("top_label = 'cafe'", "S_INTERSECTS(location, BBOX(-1, -1, 5, 5))", "uid IS NULL"),
    *("distance(location, POINT(1 1)) < 200000", "n / 0 = 1", "n + width > 3"),
    "CASEI(s) = CASEI('E')",
)


def _combine(leaves: Sequence[str], most: int) -> st.SearchStrategy[str]:
    return st.recursive(
        st.sampled_from(leaves),
        lambda inner: st.one_of(
            st.builds("({} AND {})".format, inner, inner),
            st.builds("({} OR {})".format, inner, inner),
            st.builds("(NOT {})".format, inner),
        ),
        max_leaves=most,
    )


_FILTERS, _HOLD_FILTERS = _combine(_LEAVES, 3), _combine(_HELD, 4)
_TYPES = {"unseen": "string"}
_LEAVE_PROJECT = (
    update(registration)
    .where(registration.c.model_id == "m0")
    .values(project_id=None, left_project_id="p", moves_at=func.now() + timedelta(hours=1))
)


@dataclass(frozen=True)
class Stored:
    """Two models, the first of which has a project; what is known of the inferences of each."""

    inferences: Mapping[int, list[KnownInference]]
    items: Mapping[UUID, Indexable]
    keys: Keys
    connection: AsyncConnection


@pytest.fixture
async def stored(engine: AsyncEngine) -> AsyncIterator[Stored]:
    async with engine.begin() as connection:
        for name, project in (("m0", "p"), ("m1", None)):
            await registrations.put(connection, name, Details(project_id=project))
        of_id = await registrations.find_by_ids(connection, ["m0", "m1"])
    known_by_model: dict[int, list[KnownInference]] = {}
    items: dict[UUID, Indexable] = {}
    for seed in (0, 1):
        samples = InferenceMaker(seed).make_inferences(f"m{seed}", _ROWS)
        model = await store(engine, *samples)
        known_by_model[model] = [
            _make_known(n, sample.uid, derive_facts(sample)) for n, sample in enumerate(samples)
        ]
        for known, sample in zip(known_by_model[model], samples, strict=True):
            item = make_indexable(sample, of_id[f"m{seed}"])
            items[known.uid] = replace(item, flags=known.flags)
        async with engine.begin() as connection:
            for known_inference in known_by_model[model]:
                await _alter(connection, model, known_inference)
    async with engine.connect() as connection:
        names = {name for leaf in _LEAVES for name in names_in(parse_text(leaf))} - {"unseen"}
        keys = await find_known_keys(connection, list(known_by_model), names)
        await connection.rollback()
        yield Stored(known_by_model, items, keys, connection)


def _make_known(number: int, uid: Any, facts: Any) -> KnownInference:
    """Make an inference: by turns in doubt, without a part, and losing one."""
    known_inference = KnownInference(uid, facts)
    doubt = INCOMPLETE_FLAGS[number % len(INCOMPLETE_FLAGS)]
    match number % 10:
        case 0 | 3 | 8:
            return replace(known_inference, flags=(doubt, "not_utf8"))
        case 4:
            return replace(known_inference, gone=frozenset({"input"}), flags=(doubt,))
        case 5:
            return replace(
                known_inference, gone=frozenset({"response"}), marked=frozenset({"input"})
            )
        case 6 if number > 10:
            return replace(known_inference, marked=frozenset({"inference"}))
    return known_inference


async def _alter(connection: AsyncConnection, model: int, known_inference: KnownInference) -> None:
    gone = {"input": "data_deleted_at", "response": "response_deleted_at"}
    values: dict[str, Any] = {gone[part]: _NOW for part in known_inference.gone}
    values |= {"response_storage_key": "b/r", "data_storage_key": "b/d"}
    values["flags"] = cast(list(known_inference.flags), ARRAY(Text))
    here = update(inference).where(
        inference.c.model == model, inference.c.uid == known_inference.uid
    )
    await connection.execute(here.values(values))
    for part in known_inference.marked:
        mark = {"model": model, "uid": known_inference.uid, "scope": part, "erasure": uuid4()}
        await connection.execute(insert(erasing), [mark])


@st.composite
def _policy(draw: st.DrawFn, keys: Keys) -> dict[str, Any] | None:
    texts = draw(st.lists(_FILTERS, max_size=2)) + draw(st.sampled_from([[], [None]]))
    rules = [_draw_rule(draw, text, keys) for text in texts]
    policy: dict[str, Any] = {"rules": rules} if rules else {}
    for name, some in (
        ("minimum_age", ["P1D", "P2D"]),
        ("max_inferences", [1, 7, 20]),
    ):
        if draw(st.integers(0, 3)) == 0:
            policy[name] = draw(st.sampled_from(some))
    if policy and draw(st.integers(0, 3)) == 0:
        policy["undercuts_minimum_age"] = True
    return policy if policy.keys() - {"undercuts_minimum_age"} else None


def _draw_rule(draw: st.DrawFn, text: str | None, keys: Keys) -> dict[str, Any]:
    ages = sorted(
        draw(st.lists(st.sampled_from(list(_AGES)), min_size=3, max_size=3)), key=_find_age
    )
    rule: dict[str, Any] = {"keep_input": ages[0], "keep_inference": ages[2]}
    if draw(st.booleans()):
        rule["keep_response"] = ages[1]
    if text is not None:
        rule["saved"] = save(parse_text(text), keys, declared=_TYPES, source=text).text
    return rule


def _find_age(keep: str) -> timedelta:
    age = _AGES[keep]
    return timedelta.max if age is None else age


async def _hold(stored: Stored, data: st.DataObject) -> Holding:
    """Placed as it is kept: of a filter or of ids, of one model or of all, perhaps over."""
    model = data.draw(st.sampled_from([None, *stored.inferences]))
    ids = data.draw(st.lists(st.sampled_from(["a", "b.", "é", "nobody"]), max_size=2))
    text = data.draw(_HOLD_FILTERS)
    tree = None if ids else parse_text(text)
    hold_filter = await holds.build_filter(
        stored.connection, model, tree, inference_ids=ids, types=_TYPES
    )
    at, days = datetime.now(UTC), data.draw(st.sampled_from([None, None, 1, -1]))
    until = None if days is None else at + timedelta(days=days)
    released = data.draw(st.integers(0, 4)) == 0
    values = {"id": uuid4(), "name": "h", "reason": "r", "model": model, "filter": hold_filter.text}
    values |= {"placed_by": "t", "placed_at": at, "in_force_at": at, "until": until}
    values["released_at"] = at if released else None
    await stored.connection.execute(insert(hold).values(values))
    return Holding(hold_filter.text, model, until, released)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(
    deadline=None,
    max_examples=examples(200),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
async def test_sql_selects_the_same_as_a_plain_reading(stored: Stored, data: st.DataObject) -> None:
    connection = stored.connection
    async with connection.begin() as transaction:
        in_force, coming = [await _set_policies(stored, data, grace) for grace in (0.0, 3600.0)]
        coming = in_force | coming
        moves = data.draw(st.integers(0, 3)) == 0
        if moves:
            await connection.execute(_LEAVE_PROJECT)
        placed = [await _hold(stored, data) for _ in range(data.draw(st.integers(0, 3)))]
        chains = await policies.find_effective_policies(connection)
        for number, (model, inferences) in enumerate(stored.inferences.items()):
            project = (PolicyOwner("project", "p"),) * (number == 0)
            owners = (PolicyOwner("model", f"m{number}"), *project, DEFAULT)
            documents = [policy for of in owners if (policy := in_force.get(of)) is not None]
            left = set(project) if moves else set()
            later = [
                policy for of in owners if of not in left and (policy := coming.get(of)) is not None
            ]
            reading = Reading(model, documents, placed, _NOW, _AGES, inferences, later)
            expected, held = reading.goes(), any(map(reading.held, inferences))
            waits = documents != later
            event(f"goes: {bool(expected)}, held: {held}, policies: {len(documents)}, {waits=}")
            for alone in reading.list_alone():
                assert add_parts(expected) <= add_parts(alone.goes())
            chain = chains.get(model, EffectivePolicy())
            await _check_arrivals(stored, chain, reading)
            assert await _select(connection, model, chain) == expected
        await transaction.rollback()


async def _set_policies(
    stored: Stored, data: st.DataObject, grace_seconds: float
) -> dict[PolicyOwner, dict[str, Any] | None]:
    """Set random policies, or remove some that there are, in force after a grace."""
    drawn: dict[PolicyOwner, dict[str, Any] | None] = {}
    connection, now = stored.connection, await policies.read_now(stored.connection)
    for of in _OWNERS:
        policy = data.draw(_policy(stored.keys))
        state = await policies.find_state(connection, of)
        if policy is None and (state.in_force is None or data.draw(st.booleans())):
            continue
        saved = None if policy is None else RetentionPolicy(**policy)
        body = await policies.describe_change(connection, of, saved, grace_seconds=grace_seconds)
        await policies.apply_set(connection, body, now, "t")
        drawn[of] = policy
    return drawn


def add_parts(gone: Gone) -> Gone:
    return gone | {(uid, part) for uid, scope in gone if scope == "inference" for part in PARTS}


async def _check_arrivals(stored: Stored, chain: EffectivePolicy, reading: Reading) -> None:
    """Check what has expired of those that would be whole if they arrived now."""
    ends, filters = chain.find_end(_NOW), chain.filters
    items = [stored.items[known.uid] for known in reading.inferences]
    answers = await evaluate(stored.connection, items, [*filters.values()], certain=True)
    for known, truths in zip(reading.inferences, answers, strict=True):
        if known.gone or known.marked or reading.held(known):
            continue
        assert truths is not None
        matching = {saved for saved, truth in zip(filters, truths, strict=True) if truth}
        cutoffs = chain.find_cutoffs(matching, _NOW)
        expired = reading.list_expired(known)
        assert set(cutoffs.find_expired(known.received_at)) == set(expired)
        if ends is not None and known.received_at < ends:
            assert expired == ["inference"]


@pytest.mark.timeout(3600)
@settings(
    deadline=None,
    max_examples=examples(400),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
async def test_holds_agree_with_a_plain_reading(stored: Stored, data: st.DataObject) -> None:
    connection = stored.connection
    async with connection.begin() as transaction:
        placed = [await _hold(stored, data) for _ in range(data.draw(st.integers(0, 3)))]
        for model, inferences in stored.inferences.items():
            reading = Reading(model, [], placed, _NOW, _AGES, inferences)
            expected = {known.uid for known in inferences if reading.held(known)}
            in_force = await holds.list_in_force(connection, [model])
            event(f"held: {'some' if expected else 'none'} of {len(in_force)}")
            items = [stored.items[known.uid] for known in inferences]
            judged = await holds.judge(connection, in_force, items)
            assert all(len(answers) == len(in_force) for answers in judged)
            pairs = zip(inferences, judged, strict=True)
            assert expected == {known.uid for known, answers in pairs if any(answers.values())}
            uids = [known.uid for known in inferences]
            found = await holds.find_holds(connection, in_force, model, uids)
            assert found.keys() == expected
            where = range_of_time(model, None, None)
            condition = await holds.build_held_condition(connection, where)
            query = select(inference.c.uid, condition).where(where.of(inference))
            rows = [tuple(row) for row in await connection.execute(query)]
            assert sorted(rows) == sorted((uid, uid in expected) for uid in uids)
        await transaction.rollback()


def test_the_leaves_speak_of_every_key() -> None:
    assert all(any(key.split(".")[0] in leaf for leaf in _HELD) for key in KEYS)


async def test_a_rule_is_not_true_because_the_index_lacks_something(stored: Stored) -> None:
    """A rule of what lacks a key is not of that of which keys may not have been indexed."""
    model, inferences = next(iter(stored.inferences.items()))
    whole = [known for known in inferences if "inference" not in known.marked]
    lacking = {known.uid for known in whole if known.facts.is_missing("s")}
    doubtful = {known.uid for known in whole if set(FLAGS["metadata"]).intersection(known.flags)}
    assert lacking & doubtful
    assert lacking - doubtful
    text = "s IS NULL"
    saved = save(parse_text(text), stored.keys, source=text).text
    rule = Rule(saved=saved, keep_input="PT1S", keep_inference="PT1S")
    chain = merge_policies([(DEFAULT, 1, RetentionPolicy(rules=(rule,)))])
    gone = await _select(stored.connection, model, chain)
    assert {uid for uid, part in gone if part == "inference"} == lacking - doubtful


async def _select(
    connection: AsyncConnection, model: int, chain: EffectivePolicy, now: datetime = _NOW
) -> Gone:
    """Select as a run does: rule by rule and part by part, then what is beyond a limit."""
    gone: Gone = set()
    rules = await selection.compile_rules(connection, chain, now)
    for work in selection.list_work(model, chain, rules):
        gone |= await _mark(connection, work)
    below = await selection.find_limit(connection, model, rules, Deadline.after(60))
    if below is not None:
        limit = selection.LIMITS
        work = selection.Work(model, chain, "inference", now, limit, below=below)
        gone |= await _mark(connection, work)
    return gone


async def _mark(connection: AsyncConnection, work: selection.Work) -> Gone:
    gone: Gone = set()
    after: UUID | None = None
    span = min(INSTANTS) - timedelta(days=9), work.cutoff
    while selected := await selection.find_expired(connection, work, *span, limit=7, after=after):
        marked = [(work.model, uid, work.scope, *keys) for uid, *keys in selected]
        assert await add_pending(connection, uuid4(), marked) == len(selected) <= 7
        gone |= {(row.uid, work.scope) for row in selected}
        after = selected[-1].uid
    return gone


_PARTS = ("input", "response")


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
async def test_no_more_goes_than_was_previewed(stored: Stored, data: st.DataObject) -> None:
    connection = stored.connection
    async with connection.begin() as transaction:
        for of in _OWNERS:
            if (policy := data.draw(_policy(stored.keys))) is not None:
                await _set(connection, of, policy)
        of = data.draw(st.sampled_from(_OWNERS))
        changed = data.draw(_policy(stored.keys)) or {
            "max_inferences": data.draw(st.integers(1, 9))
        }
        before = await policies.find_effective_policies(connection)
        lost = await preview.preview_policy(
            connection, of, RetentionPolicy(**changed), lists=MemberLists(), seconds=300.0
        )
        went_before = await _find_gone(connection, stored, before)
        await _set(connection, of, changed)
        after = await policies.find_effective_policies(connection)
        models = {model for model in stored.inferences if before.get(model) != after.get(model)}
        gone = {row for row in await _find_gone(connection, stored, after) if row[0] in models}
        event(f"goes: {bool(gone)}, cut: {lost.cut}, harmless: {lost.is_harmless}")
        whole = {row for row in gone if row[2] == "inference"}
        if not lost.cut:
            assert len(whole) <= lost.parts["inference"].inferences
            count = sum(part.inferences for part in lost.parts.values())
            assert len({row[:2] for row in gone}) <= count
        if lost.is_harmless:
            assert _add_parts(gone) <= _add_parts(went_before)
        await transaction.rollback()


async def _set(connection: AsyncConnection, of: Any, policy: dict[str, Any]) -> None:
    body = await policies.describe_change(connection, of, RetentionPolicy(**policy))
    await policies.apply_set(connection, body, await policies.read_now(connection), "t")


def _add_parts(gone: set[tuple[int, Any, str]]) -> set[tuple[int, Any, str]]:
    more = {(*row[:2], part) for row in gone if row[2] == "inference" for part in _PARTS}
    return gone | more


async def _find_gone(
    connection: AsyncConnection, stored: Stored, chains: dict[int, EffectivePolicy]
) -> set[tuple[int, Any, str]]:
    """Return what a run takes: model, uid and part; nothing of it stays."""
    now: datetime = (await connection.execute(select(func.now()))).scalar_one()
    savepoint = await connection.begin_nested()
    gone = {
        (model, *row)
        for model in stored.inferences
        for row in await _select(connection, model, chains.get(model, EffectivePolicy()), now)
    }
    await savepoint.rollback()
    return gone


async def test_a_limit_is_of_what_the_rules_leave(engine: AsyncEngine) -> None:
    """The rule takes the newest two, so that the limit of two took none until the rule goes."""
    names = ("old-1", "old-2", "new-1", "new-2")
    of, text = PolicyOwner("model", "m"), "inference_id LIKE 'new%'"
    inferences = [NewInference(name, at(second), model_id="m") for second, name in enumerate(names)]
    model = await store(engine, *inferences)
    async with engine.begin() as connection:
        keys = await find_known_keys(connection, [model], set())
        saved = save(parse_text(text), keys, declared={}, source=text).text
        rule = {"saved": saved, "keep_input": "PT1S", "keep_inference": "PT1S"}
        await _set(connection, of, {"rules": [rule], "max_inferences": 2})
        limit = RetentionPolicy(max_inferences=2)
        lost = await preview.preview_policy(
            connection, of, limit, lists=MemberLists(), seconds=60.0
        )
    assert (lost.parts["inference"].inferences, lost.fresh, lost.is_harmless) == (2, 2, False)
