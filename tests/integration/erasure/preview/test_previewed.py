"""A policy never deletes more than its preview said."""

from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import policies, preview
from inference_store.erasure.policies import EffectivePolicy, PolicyOwner, RetentionPolicy
from inference_store.export.erased import MemberLists
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.certain import save
from inference_store.query.filters.names import find_known_keys
from tests.integration.erasure.test_what_goes import _OWNERS, Stored, _policy, _select, stored
from tests.integration.stored_inferences import NewInference, at, store
from tests.properties import examples

__all__ = ["stored"]
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
    """Add each part of the inferences that go whole."""
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
