"""Sets, removes and revokes a policy.

A change is described first (`describe_change`, `describe_revocation`: they raise if it is refused),
and applied later (`apply_set`, `apply_revoked`), which is repeatable: a replay applies what was
written down.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.tables import registration
from inference_store.inference.errors import NotFound
from inference_store.inference.events.event import parse_instant

from . import policy_versions
from .effective_policy import PolicyOwner
from .policy_versions import PolicyVersion
from .rules import RetentionPolicy


async def describe_change(
    connection: AsyncConnection,
    owner: PolicyOwner,
    policy: RetentionPolicy | None,
    *,
    expected: int | None = None,
    grace_seconds: float = 0.0,
    reason: str | None = None,
) -> dict[str, Any]:
    """Return the body for `apply_set`. `policy` None: the policy is removed.

    A policy that is in force already begins at once. Raises PreconditionFailed; NotFound if there
    is nothing to remove.
    """
    revision, state = await policy_versions.reserve_revision(connection, owner, expected=expected)
    if policy is None and state.in_force is None and state.pending is None:
        raise NotFound(f"There is no retention policy of {owner}.")
    present = None if state.in_force is None else state.in_force.policy
    began = await read_now(connection)
    wait = timedelta(0) if present == policy else timedelta(seconds=grace_seconds)
    return {
        "level": owner.level,
        "subject": owner.subject,
        "revision": revision,
        "policy": None if policy is None else policy_versions.write_document(policy),
        "effective_at": (began + wait).isoformat(),
        "reason": reason,
    }


async def apply_set(
    connection: AsyncConnection, body: Mapping[str, Any], at: datetime, actor: str
) -> PolicyVersion:
    """Write the version that was decided. Repeatable.

    A restored backup may lack its model, which is registered then.
    """
    text = body["policy"]
    version = PolicyVersion(
        of=PolicyOwner(body["level"], body["subject"]),
        revision=body["revision"],
        policy=None if text is None else policy_versions.read_document(text),
        set_by=actor,
        set_at=at,
        effective_at=parse_instant(body["effective_at"]) or at,
        revoked_at=None,
        revoked_by=None,
        reason=body["reason"],
    )
    if version.of.level == "model" and version.policy is not None:
        await registrations.ensure(connection, body["subject"])
    await policy_versions.write_version(connection, version)
    return version


async def describe_revocation(
    connection: AsyncConnection, owner: PolicyOwner, *, expected: int | None = None
) -> dict[str, Any]:
    """Return the body for `apply_revoked`.

    Raises NotFound if no policy is pending, and PreconditionFailed if the pending one has another
    revision.
    """
    await policy_versions.reserve_revision(connection, owner, expected=expected)
    pending = (await policy_versions.find_state(connection, owner)).pending
    if pending is None:
        raise NotFound(f"No retention policy of {owner} waits to begin.")
    return {"level": owner.level, "subject": owner.subject, "revision": pending.revision}


async def apply_revoked(
    connection: AsyncConnection, body: Mapping[str, Any], at: datetime, actor: str
) -> None:
    """Revoke a version before it begins. Repeatable."""
    owner = PolicyOwner(body["level"], body["subject"])
    await policy_versions.revoke_version(connection, owner, body["revision"], by=actor, at=at)


async def set_policy(
    connection: AsyncConnection, model: int, policy: RetentionPolicy, *, by: str = "operator"
) -> PolicyVersion:
    """Set the policy of a registered model, in force at once, without a check of what it
    deletes."""
    names = select(registration.c.model_id).where(registration.c.model == model)
    owner = PolicyOwner("model", (await connection.execute(names)).scalar_one())
    body = await describe_change(connection, owner, policy)
    return await apply_set(connection, body, await read_now(connection), by)


async def read_now(connection: AsyncConnection) -> datetime:
    """Return when the transaction began, by the database's clock."""
    instant: datetime = (await connection.execute(select(func.now()))).scalar_one()
    return instant
