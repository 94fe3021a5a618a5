"""Policies as they are kept: every version, who set it, and from when on it is in force.

A version is never changed; only that it was revoked before it began is written to it. In force is
the newest one that has begun and was not revoked; one without rules says that there is none.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select, tuple_
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import policy, policy_version
from inference_store.inference.errors import PreconditionFailed

from .chain import Of
from .rules import RetentionPolicy, document_of


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a policy. `policy` None: it was removed."""

    of: Of
    revision: int
    policy: RetentionPolicy | None
    set_by: str
    set_at: datetime
    effective_at: datetime
    revoked_at: datetime | None
    revoked_by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """A policy's revision (0: there never was one), what is in force, and what begins later."""

    revision: int
    in_force: Version | None
    pending: Version | None


@lru_cache(maxsize=4096)
def read_document(text: str) -> RetentionPolicy:
    """A policy as it was written."""
    return RetentionPolicy.model_validate(json.loads(text))


def write_document(found: RetentionPolicy) -> str:
    """A policy as it is kept; `saved` filters are texts, so that no number in them changes."""
    return json.dumps(document_of(found), sort_keys=True)


async def in_force(
    connection: AsyncConnection, of: Collection[Of] | None = None
) -> dict[Of, Version]:
    """What is in force now, of these or of all; what was removed is not there."""
    here = policy_version.c
    begun = here.revoked_at.is_(None) & (here.effective_at <= func.now())
    query = _newest().where(begun)
    if of is not None:
        query = query.where(_among(of))
    found = [_version(row) for row in await connection.execute(query)]
    return {each.of: each for each in found if each.policy is not None}


async def ahead(connection: AsyncConnection) -> dict[Of, Version]:
    """What is in force once all has begun that waits; what is removed then is not there."""
    query = _newest().where(policy_version.c.revoked_at.is_(None))
    found = [_version(row) for row in await connection.execute(query)]
    return {each.of: each for each in found if each.policy is not None}


async def standing(connection: AsyncConnection, of: Of, *, lock: bool = False) -> Standing:
    """How a policy stands. `lock`: nobody else sets it until the transaction ends."""
    head = select(policy.c.revision).where(*_of(policy, of))
    revision = await connection.scalar(head.with_for_update() if lock else head)
    here = policy_version.c
    later = _newest().where(*_of(policy_version, of), here.revoked_at.is_(None))
    waiting = (await connection.execute(later.where(here.effective_at > func.now()))).first()
    pending = None if waiting is None else _version(waiting)
    return Standing(revision or 0, (await in_force(connection, [of])).get(of), pending)


async def history(
    connection: AsyncConnection, of: Of, *, before: int | None = None, limit: int = 100
) -> list[Version]:
    """Every version, the newest first; `before`: the revision of the last one of a page."""
    query = select(policy_version).where(*_of(policy_version, of))
    if before is not None:
        query = query.where(policy_version.c.revision < before)
    query = query.order_by(policy_version.c.revision.desc()).limit(limit)
    return [_version(row) for row in await connection.execute(query)]


async def next_revision(
    connection: AsyncConnection, of: Of, *, expected: int | None = None
) -> tuple[int, Standing]:
    """The revision that the next version has, and how it stands now; locked until the end.

    `expected`: the one that it must have now. Raises PreconditionFailed.
    """
    made = insert(policy).values(level=of.level, subject=of.subject, revision=0)
    await connection.execute(made.on_conflict_do_nothing())
    found = await standing(connection, of, lock=True)
    if expected is not None and found.revision != expected:
        raise PreconditionFailed(
            f"the retention policy of {of} has revision {found.revision}, not {expected}"
        )
    return found.revision + 1, found


async def write(connection: AsyncConnection, version: Version) -> None:
    """Write a version, repeatable: one that waited to begin is revoked by it."""
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


async def revoke(
    connection: AsyncConnection, of: Of, revision: int, *, by: str, at: datetime
) -> None:
    """Take back a version before it begins. Repeatable."""
    here = policy_version.c
    where = (*_of(policy_version, of), here.revision == revision, here.revoked_at.is_(None))
    values = {"revoked_at": at, "revoked_by": by}
    await connection.execute(policy_version.update().where(*where).values(values))


async def _revoke_waiting(
    connection: AsyncConnection, of: Of, revision: int, by: str, at: datetime
) -> None:
    here = policy_version.c
    waiting = (
        *_of(policy_version, of),
        here.revision < revision,
        here.revoked_at.is_(None),
        here.effective_at > at,
    )
    values = {"revoked_at": at, "revoked_by": by}
    await connection.execute(policy_version.update().where(*waiting).values(values))


def _newest() -> Select[Any]:
    here = policy_version.c
    query = select(policy_version).ext(distinct_on(here.level, here.subject))
    return query.order_by(here.level, here.subject, here.revision.desc())


def _of(table: Any, of: Of) -> list[ColumnElement[bool]]:
    return [table.c.level == of.level, table.c.subject == of.subject]


def _among(of: Collection[Of]) -> ColumnElement[bool]:
    here = policy_version.c
    pairs: Sequence[tuple[str, str]] = [(each.level, each.subject) for each in of]
    return tuple_(here.level, here.subject).in_(pairs)


def _version(row: Any) -> Version:
    return Version(
        of=Of(row.level, row.subject),
        revision=row.revision,
        policy=None if row.document is None else read_document(row.document),
        set_by=row.set_by,
        set_at=row.set_at,
        effective_at=row.effective_at,
        revoked_at=row.revoked_at,
        revoked_by=row.revoked_by,
        reason=row.reason,
    )
