"""Finds the models that a change of policy affects, with what applies to each before and after."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import or_, select
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

    `beside`: the model is listed already, and is checked once more with the project that it moves
    to.
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
) -> list[ChangedModel]:
    """Return the models that change if this policy replaces that of `changed_owner`.

    A model that moves between projects is checked with both of them: the change begins at its own
    time, and the move at another.
    """
    here, deciding = registration.c, policies.build_deciding_project().label("deciding")
    query = select(here.model, here.model_id, here.project_id, deciding).order_by(here.model)
    if changed_owner.level == "model":
        query = query.where(here.model_id == changed_owner.subject)
    elif changed_owner.level == "project":
        query = query.where(
            or_(here.project_id == changed_owner.subject, deciding.element == changed_owner.subject)
        )
    before = await policies.find_in_force(connection)
    after = {owner: version for owner, version in before.items() if owner != changed_owner}
    if policy is not None:
        after[changed_owner] = PolicyVersion(
            changed_owner, 0, policy, "", now, now, None, None, None
        )
    changed_models: list[ChangedModel] = []
    for row in await connection.execute(query):
        for project in dict.fromkeys((row.deciding, row.project_id)):
            owners = policies.list_owners(row.model_id, project)
            chains = _build_effective_policy(owners, after), _build_effective_policy(owners, before)
            beside = bool(changed_models) and changed_models[-1].model == row.model
            if chains[0] != chains[1]:
                changed_models.append(ChangedModel(row.model, row.model_id, *chains, beside))
    return changed_models


def _build_effective_policy(
    owners: tuple[PolicyOwner, ...], versions: Mapping[PolicyOwner, PolicyVersion]
) -> EffectivePolicy:
    return policies.build_effective_policy(owners, versions) or _NOTHING
