"""Policies as they are stored: every version, who set it, and when it begins.

A version never changes, except that it is marked as revoked if that happens before it begins. The
newest version that has begun and was not revoked is in force; one without rules means that there is
no policy.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select, tuple_
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import policy, policy_version
from inference_store.inference.errors import PreconditionFailed

from .effective_policy import PolicyOwner
from .rules import RetentionPolicy, dump_policy


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """One version of a policy. `policy` None: it was removed."""

    of: PolicyOwner
    revision: int
    policy: RetentionPolicy | None
    set_by: str
    set_at: datetime
    effective_at: datetime
    revoked_at: datetime | None
    revoked_by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class PolicyState:
    """A policy's revision (0: there never was one), what is in force, and what begins later."""

    revision: int
    in_force: PolicyVersion | None
    pending: PolicyVersion | None


@lru_cache(maxsize=4096)
def read_document(text: str) -> RetentionPolicy:
    """Return a policy from its stored text."""
    return RetentionPolicy.model_validate(json.loads(text))


def write_document(saved_policy: RetentionPolicy) -> str:
    """Return a policy as it is stored; `saved` filters are texts, so that no number in them
    changes."""
    return json.dumps(dump_policy(saved_policy), sort_keys=True)


async def find_in_force(
    connection: AsyncConnection, owners: Collection[PolicyOwner] | None = None
) -> dict[PolicyOwner, PolicyVersion]:
    """Return what is in force now, of these owners or of all; a removed policy is left out."""
    here = policy_version.c
    begun = here.revoked_at.is_(None) & (here.effective_at <= func.now())
    query = _select_newest().where(begun)
    if owners is not None:
        query = query.where(_match_owners(owners))
    versions = [_read_version(row) for row in await connection.execute(query)]
    return {version.of: version for version in versions if version.policy is not None}


async def find_pending(
    connection: AsyncConnection, owners: Collection[PolicyOwner] | None = None
) -> dict[PolicyOwner, PolicyVersion]:
    """Return what waits to begin, of these owners or of all; removals too."""
    here = policy_version.c
    query = _select_newest().where(here.revoked_at.is_(None), here.effective_at > func.now())
    if owners is not None:
        query = query.where(_match_owners(owners))
    versions = [_read_version(row) for row in await connection.execute(query)]
    return {version.of: version for version in versions}


def apply_pending(
    in_force: Mapping[PolicyOwner, PolicyVersion], pending: Mapping[PolicyOwner, PolicyVersion]
) -> dict[PolicyOwner, PolicyVersion]:
    """Return what is in force once every pending change has begun, without what is removed then."""
    versions = {**in_force, **pending}
    return {owner: version for owner, version in versions.items() if version.policy is not None}


async def find_state(
    connection: AsyncConnection, owner: PolicyOwner, *, lock: bool = False
) -> PolicyState:
    """Return the state of a policy. `lock`: nobody else sets it until the transaction ends."""
    head = select(policy.c.revision).where(*_match_owner(policy, owner))
    revision = await connection.scalar(head.with_for_update() if lock else head)
    in_force = await find_in_force(connection, [owner])
    pending = await find_pending(connection, [owner])
    return PolicyState(revision or 0, in_force.get(owner), pending.get(owner))


async def list_versions(
    connection: AsyncConnection, owner: PolicyOwner, *, before: int | None = None, limit: int = 100
) -> list[PolicyVersion]:
    """Return every version, the newest first; `before`: the revision of the last one of a page."""
    query = select(policy_version).where(*_match_owner(policy_version, owner))
    if before is not None:
        query = query.where(policy_version.c.revision < before)
    query = query.order_by(policy_version.c.revision.desc()).limit(limit)
    return [_read_version(row) for row in await connection.execute(query)]


async def reserve_revision(
    connection: AsyncConnection, owner: PolicyOwner, *, expected: int | None = None
) -> tuple[int, PolicyState]:
    """Return the revision of the next version, and the present state; locked until the end.

    `expected`: the revision that the policy must have now. Raises PreconditionFailed.
    """
    inserted = insert(policy).values(level=owner.level, subject=owner.subject, revision=0)
    await connection.execute(inserted.on_conflict_do_nothing())
    state = await find_state(connection, owner, lock=True)
    if expected is not None and state.revision != expected:
        raise PreconditionFailed(
            f"the retention policy of {owner} has revision {state.revision}, not {expected}"
        )
    return state.revision + 1, state


async def write_version(connection: AsyncConnection, version: PolicyVersion) -> None:
    """Write a version; a version that has not begun is revoked by it. Repeatable."""
    values = {"level": version.of.level, "subject": version.of.subject}
    head = insert(policy).values(**values, revision=version.revision)
    newest = func.greatest(policy.c.revision, head.excluded.revision)
    await connection.execute(
        head.on_conflict_do_update(index_elements=["level", "subject"], set_={"revision": newest})
    )
    await _revoke_waiting(connection, version.of, version.revision, version.set_by, version.set_at)
    row = values | {
        "revision": version.revision,
        "document": None if version.policy is None else write_document(version.policy),
        "set_by": version.set_by,
        "set_at": version.set_at,
        "effective_at": version.effective_at,
        "reason": version.reason,
    }
    await connection.execute(insert(policy_version).values(row).on_conflict_do_nothing())


async def revoke_version(
    connection: AsyncConnection, owner: PolicyOwner, revision: int, *, by: str, at: datetime
) -> None:
    """Revoke a version before it begins. Repeatable."""
    here = policy_version.c
    where = (
        *_match_owner(policy_version, owner),
        here.revision == revision,
        here.revoked_at.is_(None),
    )
    values = {"revoked_at": at, "revoked_by": by}
    await connection.execute(policy_version.update().where(*where).values(values))


async def _revoke_waiting(
    connection: AsyncConnection, owner: PolicyOwner, revision: int, by: str, at: datetime
) -> None:
    here = policy_version.c
    waiting = (
        *_match_owner(policy_version, owner),
        here.revision < revision,
        here.revoked_at.is_(None),
        here.effective_at > at,
    )
    values = {"revoked_at": at, "revoked_by": by}
    await connection.execute(policy_version.update().where(*waiting).values(values))


def _select_newest() -> Select[Any]:
    here = policy_version.c
    query = select(policy_version).ext(distinct_on(here.level, here.subject))
    return query.order_by(here.level, here.subject, here.revision.desc())


def _match_owner(table: Any, owner: PolicyOwner) -> list[ColumnElement[bool]]:
    return [table.c.level == owner.level, table.c.subject == owner.subject]


def _match_owners(owners: Collection[PolicyOwner]) -> ColumnElement[bool]:
    here = policy_version.c
    pairs: Sequence[tuple[str, str]] = [(owner.level, owner.subject) for owner in owners]
    return tuple_(here.level, here.subject).in_(pairs)


def _read_version(row: Any) -> PolicyVersion:
    return PolicyVersion(
        of=PolicyOwner(row.level, row.subject),
        revision=row.revision,
        policy=None if row.document is None else read_document(row.document),
        set_by=row.set_by,
        set_at=row.set_at,
        effective_at=row.effective_at,
        revoked_at=row.revoked_at,
        revoked_by=row.revoked_by,
        reason=row.reason,
    )
