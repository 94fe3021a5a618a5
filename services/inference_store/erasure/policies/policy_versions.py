"""Policies as they are stored and set: every version, who set it, and when it begins.

A version never changes, except that it is marked as revoked if that happens before it begins. The
newest version that has begun and was not revoked is in force; one without rules means that there is
no policy.

A change is described first (`describe_change`, `describe_revocation`: they raise if it is refused),
and applied later (`apply_set`, `apply_revoked`), which is repeatable: a replay applies what was
written down.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, func, select, tuple_
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.policies.effective_policy import (
    Ages,
    Bounds,
    RetentionPolicy,
    Rule,
    dump_policy,
)
from inference_store.index import registrations
from inference_store.index.tables import policy, policy_version, registration
from inference_store.inference.errors import Fault, Invalid, NotFound, PreconditionFailed
from inference_store.inference.events.event import parse_instant
from inference_store.query.cql2 import Node, to_text
from inference_store.query.filters.certain import names_project, save
from inference_store.query.filters.names import find_known_keys, names_in

from .effective_policy import PolicyOwner


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
    has_begun = policy_version.c.effective_at <= func.now()
    versions = await _find_newest(connection, has_begun, owners)
    return {owner: version for owner, version in versions.items() if version.policy is not None}


async def find_pending(
    connection: AsyncConnection, owners: Collection[PolicyOwner] | None = None
) -> dict[PolicyOwner, PolicyVersion]:
    """Return what waits to begin, of these owners or of all; removals too."""
    return await _find_newest(connection, policy_version.c.effective_at > func.now(), owners)


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
    here = policy_version.c
    waits = (here.revision < version.revision) & (here.effective_at > version.set_at)
    await _revoke(connection, version.of, waits, version.set_by, version.set_at)
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
    await _revoke(connection, owner, policy_version.c.revision == revision, by, at)


async def _revoke(
    connection: AsyncConnection,
    owner: PolicyOwner,
    condition: ColumnElement[bool],
    by: str,
    at: datetime,
) -> None:
    where = (*_match_owner(policy_version, owner), policy_version.c.revoked_at.is_(None), condition)
    values = {"revoked_at": at, "revoked_by": by}
    await connection.execute(policy_version.update().where(*where).values(values))


async def _find_newest(
    connection: AsyncConnection,
    condition: ColumnElement[bool],
    owners: Collection[PolicyOwner] | None,
) -> dict[PolicyOwner, PolicyVersion]:
    here = policy_version.c
    query = select(policy_version).ext(distinct_on(here.level, here.subject))
    query = query.order_by(here.level, here.subject, here.revision.desc())
    query = query.where(here.revoked_at.is_(None), condition)
    if owners is not None:
        pairs = [(owner.level, owner.subject) for owner in owners]
        query = query.where(tuple_(here.level, here.subject).in_(pairs))
    versions = [_read_version(row) for row in await connection.execute(query)]
    return {version.of: version for version in versions}


def _match_owner(table: Any, owner: PolicyOwner) -> list[ColumnElement[bool]]:
    return [table.c.level == owner.level, table.c.subject == owner.subject]


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
    revision, state = await reserve_revision(connection, owner, expected=expected)
    if policy is None and state.in_force is None and state.pending is None:
        raise NotFound(f"There is no retention policy of {owner}.")
    present = None if state.in_force is None else state.in_force.policy
    began = await read_now(connection)
    wait = timedelta(0) if present == policy else timedelta(seconds=grace_seconds)
    return {
        "level": owner.level,
        "subject": owner.subject,
        "revision": revision,
        "policy": None if policy is None else write_document(policy),
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
        policy=None if text is None else read_document(text),
        set_by=actor,
        set_at=at,
        effective_at=parse_instant(body["effective_at"]) or at,
        revoked_at=None,
        revoked_by=None,
        reason=body["reason"],
    )
    if version.of.level == "model" and version.policy is not None:
        await registrations.ensure(connection, body["subject"])
    await write_version(connection, version)
    return version


async def describe_revocation(
    connection: AsyncConnection, owner: PolicyOwner, *, expected: int | None = None
) -> dict[str, Any]:
    """Return the body for `apply_revoked`.

    Raises NotFound if no policy is pending, and PreconditionFailed if the pending one has another
    revision.
    """
    await reserve_revision(connection, owner, expected=expected)
    pending = (await find_state(connection, owner)).pending
    if pending is None:
        raise NotFound(f"No retention policy of {owner} waits to begin.")
    return {"level": owner.level, "subject": owner.subject, "revision": pending.revision}


async def apply_revoked(
    connection: AsyncConnection, body: Mapping[str, Any], at: datetime, actor: str
) -> None:
    """Revoke a version before it begins. Repeatable."""
    owner = PolicyOwner(body["level"], body["subject"])
    await revoke_version(connection, owner, body["revision"], by=actor, at=at)


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


@dataclass(frozen=True, slots=True)
class RequestedRule:
    """A rule with the tree of its filter, and the types of keys that nothing has yet."""

    ages: Ages
    filter: Node | None = None
    source: str | None = None
    """The filter's text, if it was sent as text."""
    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResolvedPolicy:
    """A policy that can be stored, and warnings for its author."""

    policy: RetentionPolicy
    warnings: tuple[str, ...]


async def list_models(connection: AsyncConnection, owner: PolicyOwner) -> list[int]:
    """Return the models that a policy may apply to, by their integers."""
    here = registration.c
    query = select(here.model).order_by(here.model)
    if owner.level == "model":
        query = query.where(here.model_id == owner.subject)
    elif owner.level == "project":
        query = query.where(here.project_id == owner.subject)
    return list((await connection.execute(query)).scalars())


def warn_of_empty_project(owner: PolicyOwner, models: Sequence[int]) -> list[str]:
    """Return a warning if a project has no model: its name may be mistyped, or its policy first."""
    if owner.level != "project" or models:
        return []
    return [
        f"No model is in the project {owner.subject!r} yet: GET /v1/projects lists those in use."
    ]


async def resolve_policy(
    connection: AsyncConnection, owner: PolicyOwner, rules: Sequence[RequestedRule], bounds: Bounds
) -> ResolvedPolicy:
    """Resolve every rule's filter by the keys that the models have now.

    Raises as `save`: InvalidFilter, ImpossibleComparison, NotKept, Invalid. Raises Invalid for a
    filter that names the project too: a move would change its matches without a grace period.
    """
    models = await list_models(connection, owner)
    resolved: list[Rule] = []
    warnings = dict.fromkeys(warn_of_empty_project(owner, models))
    for number, requested in enumerate(rules):
        rule: dict[str, Any] = requested.ages.model_dump(include=set(Ages.model_fields))
        if requested.filter is not None:
            keys = await find_known_keys(connection, models, names_in(requested.filter))
            filter = save(requested.filter, keys, declared=requested.types, source=requested.source)
            if names_project(filter.checked.predicate):
                raise _depends_on_project(number)
            warnings |= dict.fromkeys(filter.checked.warnings)
            rule |= {"filter": requested.source or to_text(requested.filter), "saved": filter.text}
        resolved.append(Rule(**rule))
    fields = bounds.model_dump(include=set(Bounds.model_fields))
    return ResolvedPolicy(RetentionPolicy(rules=tuple(resolved), **fields), tuple(warnings))


def _depends_on_project(number: int) -> Invalid:
    message = "give the project a policy of its own, or name the models by `model_id`"
    fault = Fault(f"rules[{number}].filter", message)
    return Invalid("A rule cannot depend on `project_id`, which a model may leave.", faults=[fault])
