"""Which models a change of policy is of, with what applies to each now, and what would then."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import policies
from inference_store.erasure.policies import Chain, Of, RetentionPolicy, Version
from inference_store.index.registrations import Registration
from inference_store.index.tables import registration

_NOTHING = Chain()


@dataclass(frozen=True, slots=True)
class Changed:
    """A model with the chain that would be, and the one that is. `beside`: it is there already,
    and is looked at once more with the project that it goes to."""

    model: int
    model_id: str
    after: Chain
    before: Chain
    beside: bool = False


async def by_policy(
    connection: AsyncConnection, of: Of, policy: RetentionPolicy | None, now: datetime
) -> list[Changed]:
    """By this policy in the place of the one of `of`.

    What moves between projects is looked at with both of them: the change begins when it does,
    and the move then.
    """
    here, deciding = registration.c, policies.deciding().label("deciding")
    query = select(here.model, here.model_id, here.project_id, deciding).order_by(here.model)
    if of.level == "model":
        query = query.where(here.model_id == of.subject)
    elif of.level == "project":
        query = query.where(or_(here.project_id == of.subject, deciding.element == of.subject))
    before = await policies.in_force(connection)
    after = {owner: each for owner, each in before.items() if owner != of}
    if policy is not None:
        after[of] = Version(of, 0, policy, "", now, now, None, None, None)
    found: list[Changed] = []
    for row in await connection.execute(query):
        for project in dict.fromkeys((row.deciding, row.project_id)):
            owners = policies.wider(row.model_id, project)
            chains = _chain(owners, after), _chain(owners, before)
            beside = bool(found) and found[-1].model == row.model
            if chains[0] != chains[1]:
                found.append(Changed(row.model, row.model_id, *chains, beside))
    return found


async def by_move(
    connection: AsyncConnection, one: Registration, project_id: str | None
) -> tuple[list[Changed], bool]:
    """By this project in the place of the one whose policy decides now; and whether a policy that
    would apply then waits to begin: it is looked at as if it had."""
    left = await policies.deciding_project(connection, one)
    owners = policies.wider(one.model_id, project_id)
    standing = await policies.standing_of(connection, owners)
    ahead = _chain(owners, policies.coming(standing))
    apply_now = policies.wider(one.model_id, left)
    present = _chain(apply_now, await policies.in_force(connection, apply_now))
    waits = any(each.pending is not None for each in standing.values())
    if left == project_id or ahead == present:
        return [], waits and left != project_id
    return [Changed(one.model, one.model_id, ahead, present)], waits


def _chain(owners: tuple[Of, ...], versions: Mapping[Of, Version]) -> Chain:
    return policies.chain(owners, versions) or _NOTHING
