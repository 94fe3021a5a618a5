"""Setting, removing and revoking a policy.

A change is decided first (`setting`, `revoking`: raise what refuses it), and applied after
(`apply_set`, `apply_revoked`), which may be done again: a replay applies what was written down.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.tables import registration
from inference_store.inference.errors import NotFound
from inference_store.inference.events.instants import parse_instant

from . import stored
from .chain import Of
from .rules import RetentionPolicy
from .stored import Version


async def setting(
    connection: AsyncConnection,
    of: Of,
    policy: RetentionPolicy | None,
    *,
    expected: int | None = None,
    grace_seconds: float = 0.0,
    reason: str | None = None,
) -> dict[str, Any]:
    """What `apply_set` is given. `policy` None: there is to be none.

    What is in force already begins at once. Raises PreconditionFailed; NotFound where there is
    nothing to remove.
    """
    revision, standing = await stored.next_revision(connection, of, expected=expected)
    if policy is None and standing.in_force is None and standing.pending is None:
        raise NotFound(f"There is no retention policy of {of}.")
    present = None if standing.in_force is None else standing.in_force.policy
    began = await now(connection)
    wait = timedelta(0) if present == policy else timedelta(seconds=grace_seconds)
    return {
        "level": of.level,
        "subject": of.subject,
        "revision": revision,
        "policy": None if policy is None else stored.write_document(policy),
        "effective_at": (began + wait).isoformat(),
        "reason": reason,
    }


async def apply_set(
    connection: AsyncConnection, body: Mapping[str, Any], at: datetime, actor: str
) -> Version:
    """Write the version that was decided. Repeatable. A restored backup may lack its model, which
    is registered then."""
    text = body["policy"]
    version = Version(
        of=Of(body["level"], body["subject"]),
        revision=body["revision"],
        policy=None if text is None else stored.read_document(text),
        set_by=actor,
        set_at=at,
        effective_at=parse_instant(body["effective_at"]) or at,
        revoked_at=None,
        revoked_by=None,
        reason=body["reason"],
    )
    if version.of.level == "model" and version.policy is not None:
        await registrations.ensure(connection, body["subject"])
    await stored.write(connection, version)
    return version


async def revoking(
    connection: AsyncConnection, of: Of, *, expected: int | None = None
) -> dict[str, Any]:
    """What `apply_revoked` is given. Raises NotFound where none waits to begin, and
    PreconditionFailed where the one that waits has another revision."""
    await stored.next_revision(connection, of, expected=expected)
    pending = (await stored.standing(connection, of)).pending
    if pending is None:
        raise NotFound(f"No retention policy of {of} waits to begin.")
    return {"level": of.level, "subject": of.subject, "revision": pending.revision}


async def apply_revoked(
    connection: AsyncConnection, body: Mapping[str, Any], at: datetime, actor: str
) -> None:
    """Take back a version before it begins. Repeatable."""
    of = Of(body["level"], body["subject"])
    await stored.revoke(connection, of, body["revision"], by=actor, at=at)


async def put(
    connection: AsyncConnection, model: int, policy: RetentionPolicy, *, by: str = "operator"
) -> Version:
    """Set the policy of a registered model, in force at once, without a look at what it takes."""
    names = select(registration.c.model_id).where(registration.c.model == model)
    of = Of("model", (await connection.execute(names)).scalar_one())
    body = await setting(connection, of, policy)
    return await apply_set(connection, body, await now(connection), by)


async def now(connection: AsyncConnection) -> datetime:
    """When the transaction began, by the database's clock."""
    found: datetime = (await connection.execute(select(func.now()))).scalar_one()
    return found
