"""A model that moves to another project: another policy decides over what is stored of it.

So a move is a change of policy. Where it would delete something, the policy of the project that
the model leaves goes on to decide until a grace is over; to move it back takes that away.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.registrations import Registration
from inference_store.index.tables import registration
from inference_store.inference.events.instants import parse_instant

from . import stored
from .chain import Of
from .chains import deciding, wider
from .rules import RetentionPolicy, never_longer
from .setting import now
from .stored import Standing, Version


async def deciding_project(connection: AsyncConnection, found: Registration) -> str | None:
    """The project whose policy decides over a model now."""
    query = select(deciding()).where(registration.c.model == found.model)
    project: str | None = await connection.scalar(query)
    return project


async def standing_of(connection: AsyncConnection, owners: Iterable[Of]) -> dict[Of, Standing]:
    """How the policies of these owners stand."""
    return {of: await stored.standing(connection, of) for of in owners}


def coming(standing: Mapping[Of, Standing]) -> dict[Of, Version]:
    """What is in force once everything has begun that waits."""
    found = {of: each.pending or each.in_force for of, each in standing.items()}
    return {of: one for of, one in found.items() if one is not None and one.policy is not None}


async def undercut(
    connection: AsyncConnection, found: Registration, project_id: str | None
) -> bool:
    """Whether a minimum age that binds now would bind no more, or be gone against."""
    left = await deciding_project(connection, found)
    before = await standing_of(connection, wider(found.model_id, left))
    ages = _ages(each.in_force for each in before.values())
    if not ages or left == project_id:
        return False
    after = await standing_of(connection, wider(found.model_id, project_id))
    # what waits may be taken back, and what is in force may end
    return any(
        _goes_against(ages, project_id, versions)
        for versions in ({of: each.in_force for of, each in after.items()}, coming(after))
    )


async def moving(
    connection: AsyncConnection,
    found: Registration,
    project_id: str | None,
    *,
    grace_seconds: float = 0.0,
    reason: str | None = None,
) -> dict[str, Any]:
    """What `apply_moved` is given. Back to the project that decides still it moves at once."""
    left = await deciding_project(connection, found)
    waits = grace_seconds > 0 and left != project_id
    at = await now(connection) + timedelta(seconds=grace_seconds)
    return {
        "model_id": found.model_id,
        "project_id": project_id,
        "from_project_id": left,
        "moves_at": at.isoformat() if waits else None,
        "reason": reason,
    }


async def apply_moved(
    connection: AsyncConnection,
    body: Mapping[str, Any],
    at: datetime,  # noqa: ARG001  (the ledger's signature)
    actor: str,  # noqa: ARG001  (the ledger's signature)
) -> Mapping[str, Any]:
    """Move the model; what was said. A restored backup may lack it: it is registered then."""
    moves_at = None if body["moves_at"] is None else parse_instant(body["moves_at"])
    left = None if moves_at is None else body["from_project_id"]
    await registrations.move(
        connection, body["model_id"], body["project_id"], left=left, at=moves_at
    )
    return body


def _goes_against(
    ages: list[str], project_id: str | None, versions: Mapping[Of, Version | None]
) -> bool:
    own = versions.get(Of("project", project_id or ""))
    if own is not None and own.policy is not None and own.policy.undercuts_minimum_age:
        return True
    bind = _ages(versions.values())
    return any(not any(never_longer(age, each) for each in bind) for age in ages)


def _ages(versions: Iterable[Version | None]) -> list[str]:
    """The minimum ages that these say."""
    found: list[RetentionPolicy] = [
        each.policy for each in versions if each is not None and each.policy is not None
    ]
    return [each.minimum_age for each in found if each.minimum_age is not None]
