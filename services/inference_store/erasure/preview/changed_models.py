"""Finds the models that a change of policy affects, with what applies to each before and after."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import policies
from inference_store.erasure.policies import (
    EffectivePolicy,
    PolicyOwner,
    PolicyVersion,
    RetentionPolicy,
)
from inference_store.index.tables import registration

_NOTHING = EffectivePolicy()


@dataclass(frozen=True, slots=True)
class ChangedModel:
    """A model with the effective policy after the change, and the one before it.

    `beside`: the model is listed already, and is checked once more with less of what is pending.
    """

    model: int
    model_id: str
    after: EffectivePolicy
    before: EffectivePolicy
    beside: bool = False


async def find_changed_by_policy(
    connection: AsyncConnection,
    changed_owner: PolicyOwner,
    policy: RetentionPolicy | None,
    now: datetime,
) -> tuple[list[ChangedModel], list[PolicyVersion]]:
    """Return the models that change if this policy replaces that of `changed_owner`, and what else
    is pending for them.

    `after` is as if everything pending had begun. A model is checked again as if nothing of it had,
    because it may be revoked, and with both projects between which it moves.
    """
    in_force = await policies.find_in_force(connection)
    pending = await policies.find_pending(connection)
    coming = policies.apply_pending(in_force, pending)
    sets = [
        (_replace(versions, changed_owner, policy, now), versions)
        for versions in (coming, in_force)
    ]
    changed_models: list[ChangedModel] = []
    owners_seen: set[PolicyOwner] = set()
    for row in await connection.execute(_select_affected(changed_owner)):
        owners = [
            policies.list_owners(row.model_id, project)
            for project in dict.fromkeys((row.deciding, row.project_id))
        ]
        chains = [
            (_build_effective_policy(of, after), _build_effective_policy(of, before))
            for of in owners
            for after, before in sets
        ]
        afters = [after for after, before in chains if after != before]
        if not afters:
            continue
        owners_seen |= {owner for of in owners for owner in of}
        now_in_force = policies.build_effective_policy(owners[0], in_force)
        now_coming = policies.build_effective_policy(owners[-1], coming)
        before = policies.add_coming(now_in_force, now_coming) or _NOTHING
        changed_models += [
            ChangedModel(row.model, row.model_id, after, before, beside=number > 0)
            for number, after in enumerate(afters)
            if after not in afters[:number]
        ]
    others = owners_seen - {changed_owner}
    return changed_models, [version for owner, version in pending.items() if owner in others]


def _select_affected(changed_owner: PolicyOwner) -> Select[Any]:
    here, deciding = registration.c, policies.build_deciding_project().label("deciding")
    query = select(here.model, here.model_id, here.project_id, deciding).order_by(here.model)
    if changed_owner.level == "model":
        return query.where(here.model_id == changed_owner.subject)
    if changed_owner.level == "project":
        subject = changed_owner.subject
        return query.where(or_(here.project_id == subject, deciding.element == subject))
    return query


def _replace(
    versions: Mapping[PolicyOwner, PolicyVersion],
    owner: PolicyOwner,
    policy: RetentionPolicy | None,
    now: datetime,
) -> dict[PolicyOwner, PolicyVersion]:
    """Return these policies with another one of this owner, or without one."""
    replaced = {other: version for other, version in versions.items() if other != owner}
    if policy is not None:
        replaced[owner] = PolicyVersion(owner, 0, policy, "", now, now, None, None, None)
    return replaced


def _build_effective_policy(
    owners: tuple[PolicyOwner, ...], versions: Mapping[PolicyOwner, PolicyVersion]
) -> EffectivePolicy:
    return policies.build_effective_policy(owners, versions) or _NOTHING
