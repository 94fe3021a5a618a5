"""Moves a model to another project: another policy decides about what is stored of it.

So a move is a change of policy. If another policy may delete something there, the policy of the
project that the model leaves still decides until the grace period is over; to move the model back
undoes the move.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.registrations import Registration
from inference_store.index.tables import registration
from inference_store.inference.events.event import parse_instant

from . import policy_versions
from .changes import read_now
from .effective_policies import build_deciding_project, build_effective_policy, list_owners
from .effective_policy import PolicyOwner
from .policy_versions import PolicyState, PolicyVersion
from .rules import RetentionPolicy, is_never_longer


async def find_deciding_project(connection: AsyncConnection, model: Registration) -> str | None:
    """Return the project whose policy decides about a model now."""
    query = select(build_deciding_project()).where(registration.c.model == model.model)
    project: str | None = await connection.scalar(query)
    return project


async def find_policy_states(
    connection: AsyncConnection, owners: Iterable[PolicyOwner]
) -> dict[PolicyOwner, PolicyState]:
    """Return the states of these owners' policies."""
    return {owner: await policy_versions.find_state(connection, owner) for owner in owners}


def list_coming(states: Mapping[PolicyOwner, PolicyState]) -> dict[PolicyOwner, PolicyVersion]:
    """Return what is in force once every pending change has begun."""
    versions = {owner: state.pending or state.in_force for owner, state in states.items()}
    return {
        owner: version
        for owner, version in versions.items()
        if version is not None and version.policy is not None
    }


async def is_minimum_undercut(
    connection: AsyncConnection, model: Registration, project_id: str | None
) -> bool:
    """Return whether a minimum age that applies now would no longer apply, or be undercut."""
    deciding_id = await find_deciding_project(connection, model)
    before = await find_policy_states(connection, list_owners(model.model_id, deciding_id))
    ages = _list_ages(state.in_force for state in before.values())
    if not ages or deciding_id == project_id:
        return False
    after = await find_policy_states(connection, list_owners(model.model_id, project_id))
    # a pending change may be revoked, and what is in force may end
    return any(
        _goes_against(ages, project_id, versions)
        for versions in (
            {owner: state.in_force for owner, state in after.items()},
            list_coming(after),
        )
    )


async def describe_move(
    connection: AsyncConnection,
    model: Registration,
    project_id: str | None,
    *,
    grace_seconds: float = 0.0,
    reason: str | None = None,
) -> dict[str, Any]:
    """Return the body for `apply_moved`.

    If the model returns to the project that still decides, or nothing can be deleted by other
    policies there, it moves at once.
    """
    deciding_id, now = await find_deciding_project(connection, model), await read_now(connection)
    waits = grace_seconds > 0 and deciding_id != project_id
    if waits:
        before = await find_policy_states(connection, list_owners(model.model_id, deciding_id))
        after = await find_policy_states(connection, list_owners(model.model_id, project_id))
        waits = _may_delete_more(before, after, now)
    at = now + timedelta(seconds=grace_seconds)
    return {
        "model_id": model.model_id,
        "project_id": project_id,
        "from_project_id": deciding_id,
        "moves_at": at.isoformat() if waits else None,
        "reason": reason,
    }


async def apply_moved(
    connection: AsyncConnection,
    body: Mapping[str, Any],
    at: datetime,  # noqa: ARG001  (the ledger's signature)
    actor: str,  # noqa: ARG001  (the ledger's signature)
) -> Mapping[str, Any]:
    """Move the model, and return the body. A restored backup may lack the model: it is registered
    then."""
    moves_at = None if body["moves_at"] is None else parse_instant(body["moves_at"])
    left_project_id = None if moves_at is None else body["from_project_id"]
    await registrations.move(
        connection, body["model_id"], body["project_id"], left=left_project_id, at=moves_at
    )
    return body


def _may_delete_more(
    before: Mapping[PolicyOwner, PolicyState],
    after: Mapping[PolicyOwner, PolicyState],
    now: datetime,
) -> bool:
    """Return whether other rules or limits may delete something there, now or once all have begun:
    that may be a minute after the move."""
    applies = build_effective_policy(before, _list_in_force(before))
    return any(
        effective is not None
        and effective != applies
        and (effective.limit is not None or effective.find_latest(now) is not None)
        for effective in (
            build_effective_policy(after, versions)
            for versions in (_list_in_force(after), list_coming(after))
        )
    )


def _list_in_force(
    states: Mapping[PolicyOwner, PolicyState],
) -> dict[PolicyOwner, PolicyVersion]:
    return {owner: state.in_force for owner, state in states.items() if state.in_force is not None}


def _goes_against(
    ages: list[str], project_id: str | None, versions: Mapping[PolicyOwner, PolicyVersion | None]
) -> bool:
    own = versions.get(PolicyOwner("project", project_id or ""))
    if own is not None and own.policy is not None and own.policy.undercuts_minimum_age:
        return True
    bind = _list_ages(versions.values())
    return any(not any(is_never_longer(age, minimum) for minimum in bind) for age in ages)


def _list_ages(versions: Iterable[PolicyVersion | None]) -> list[str]:
    """Return the minimum ages that these policies set."""
    policies: list[RetentionPolicy] = [
        version.policy for version in versions if version is not None and version.policy is not None
    ]
    return [policy.minimum_age for policy in policies if policy.minimum_age is not None]
