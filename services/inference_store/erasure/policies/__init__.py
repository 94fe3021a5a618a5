"""Retention policies: how long data is kept, by the rules of a model, its project and the store.

Here are their versions, and which apply to which models now. A version never changes, except that
it is marked as revoked if that happens before it begins. The newest version that has begun and was
not revoked is in force; one without rules means that there is no policy.

A change is described first (`describe_change`, `describe_revocation`: they raise if it is refused),
and applied later (`apply_set`, `apply_revoked`), which is repeatable: a replay applies what was
written down.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import structlog
from sqlalchemy import ColumnElement, case, func, select, tuple_
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.runs import count_failure
from inference_store.index import registrations
from inference_store.index.tables import policy_version, registration
from inference_store.inference.errors import (
    Fault,
    Invalid,
    NotFound,
    StoreError,
    require_revision,
)
from inference_store.query.cql2 import Node, to_text
from inference_store.query.filters.certain import names_project, save
from inference_store.query.filters.names import find_known_keys, names_in

from .effective_policy import DEFAULT as DEFAULT
from .effective_policy import LEVELS as LEVELS
from .effective_policy import MOST_RULES as MOST_RULES
from .effective_policy import SCOPES as SCOPES
from .effective_policy import Ages as Ages
from .effective_policy import Bounds as Bounds
from .effective_policy import EffectivePolicy as EffectivePolicy
from .effective_policy import EffectiveRule as EffectiveRule
from .effective_policy import ErasureScope as ErasureScope
from .effective_policy import Keep as Keep
from .effective_policy import LevelName as LevelName
from .effective_policy import PolicyOwner as PolicyOwner
from .effective_policy import RetentionLimit as RetentionLimit
from .effective_policy import RetentionPolicy as RetentionPolicy
from .effective_policy import Rule as Rule
from .effective_policy import find_earlier as find_earlier
from .effective_policy import is_never_longer
from .effective_policy import merge_policies as merge_policies

_log = structlog.get_logger()


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
    return json.dumps(saved_policy.model_dump(exclude_none=True), sort_keys=True)


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


async def find_state(connection: AsyncConnection, owner: PolicyOwner) -> PolicyState:
    """Return the state of a policy."""
    newest = select(func.max(policy_version.c.revision)).where(*_match_owner(owner))
    revision = await connection.scalar(newest)
    in_force = await find_in_force(connection, [owner])
    pending = await find_pending(connection, [owner])
    return PolicyState(revision or 0, in_force.get(owner), pending.get(owner))


async def list_versions(
    connection: AsyncConnection, owner: PolicyOwner, *, before: int | None = None, limit: int = 100
) -> list[PolicyVersion]:
    """Return every version, the newest first; `before`: the revision of the last one of a page."""
    query = select(policy_version).where(*_match_owner(owner))
    if before is not None:
        query = query.where(policy_version.c.revision < before)
    query = query.order_by(policy_version.c.revision.desc()).limit(limit)
    return [_read_version(row) for row in await connection.execute(query)]


async def _find_expected(
    connection: AsyncConnection, owner: PolicyOwner, expected: int | None
) -> PolicyState:
    """Return the state of a policy, which nobody else sets in the ledger's turn.

    `expected`: the revision that it must have now. Raises PreconditionFailed.
    """
    state = await find_state(connection, owner)
    require_revision(f"The retention policy of {owner}", state.revision, expected)
    return state


async def _revoke(
    connection: AsyncConnection,
    owner: PolicyOwner,
    condition: ColumnElement[bool],
    by: str,
    at: datetime,
) -> None:
    where = (*_match_owner(owner), policy_version.c.revoked_at.is_(None), condition)
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


def _match_owner(owner: PolicyOwner) -> list[ColumnElement[bool]]:
    here = policy_version.c
    return [here.level == owner.level, here.subject == owner.subject]


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
    state = await _find_expected(connection, owner, expected)
    if policy is None and state.in_force is None and state.pending is None:
        raise NotFound(f"There is no retention policy of {owner}.")
    present = None if state.in_force is None else state.in_force.policy
    began = await read_now(connection)
    wait = timedelta(0) if present == policy else timedelta(seconds=grace_seconds)
    return {
        "level": owner.level,
        "subject": owner.subject,
        "revision": state.revision + 1,
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
    owner, here = PolicyOwner(body["level"], body["subject"]), policy_version.c
    if owner.level == "model" and body["policy"] is not None:
        await registrations.ensure(connection, owner.subject)
    # a version that has not begun is revoked by it
    waits = (here.revision < body["revision"]) & (here.effective_at > at)
    await _revoke(connection, owner, waits, actor, at)
    row = {
        "level": owner.level,
        "subject": owner.subject,
        "revision": body["revision"],
        "document": body["policy"],
        "set_by": actor,
        "set_at": at,
        "effective_at": datetime.fromisoformat(body["effective_at"]),
        "reason": body["reason"],
    }
    await connection.execute(insert(policy_version).values(row).on_conflict_do_nothing())
    query = select(policy_version).where(*_match_owner(owner), here.revision == body["revision"])
    return _read_version((await connection.execute(query)).one())


async def describe_revocation(
    connection: AsyncConnection, owner: PolicyOwner, *, expected: int | None = None
) -> dict[str, Any]:
    """Return the body for `apply_revoked`.

    Raises NotFound if no policy is pending, and PreconditionFailed if the pending one has another
    revision.
    """
    pending = (await _find_expected(connection, owner, expected)).pending
    if pending is None:
        raise NotFound(f"No retention policy of {owner} waits to begin.")
    return {"level": owner.level, "subject": owner.subject, "revision": pending.revision}


async def apply_revoked(
    connection: AsyncConnection, body: Mapping[str, Any], at: datetime, actor: str
) -> None:
    """Revoke a version before it begins. Repeatable."""
    owner = PolicyOwner(body["level"], body["subject"])
    await _revoke(connection, owner, policy_version.c.revision == body["revision"], actor, at)


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
                remedy = "give the project a policy of its own, or name the models by `model_id`"
                message = "A rule cannot depend on `project_id`, which a model may leave."
                raise Invalid(message, faults=[Fault(f"rules[{number}].filter", remedy)])
            warnings |= dict.fromkeys(filter.checked.warnings)
            rule |= {"filter": requested.source or to_text(requested.filter), "saved": filter.text}
        resolved.append(Rule(**rule))
    fields = bounds.model_dump(include=set(Bounds.model_fields))
    return ResolvedPolicy(RetentionPolicy(rules=tuple(resolved), **fields), tuple(warnings))


# Which policies apply to which models now.

_Versions: TypeAlias = Mapping[PolicyOwner, PolicyVersion]


def build_deciding_project() -> ColumnElement[str | None]:
    """Return the column of the project whose policy decides about a model: for a while after a
    move, the one that it left."""
    here = registration.c
    return case((here.moves_at > func.now(), here.left_project_id), else_=here.project_id)


def list_owners(model_id: str, project_id: str | None) -> tuple[PolicyOwner, ...]:
    """Return the owners whose policies apply to a model, the nearest first."""
    project = () if project_id is None else (PolicyOwner("project", project_id),)
    return (PolicyOwner("model", model_id), *project, DEFAULT)


class ModelOwners(NamedTuple):
    """The owners whose policies apply to a model, the nearest first, which is the model itself:
    now, and once it has moved; `moves_at`: when another one decides, or has begun to."""

    model: int
    current: tuple[PolicyOwner, ...]
    coming: tuple[PolicyOwner, ...]
    moves_at: datetime | None


async def find_owners(
    connection: AsyncConnection, *conditions: ColumnElement[bool]
) -> list[ModelOwners]:
    """Return those of the models whose registrations satisfy the conditions, in their order."""
    here, deciding = registration.c, build_deciding_project().label("deciding")
    query = select(here.model, here.model_id, here.project_id, here.moves_at, deciding)
    rows = await connection.execute(query.where(*conditions).order_by(here.model))
    return [
        ModelOwners(model, list_owners(id, deciding_id), list_owners(id, project_id), moves_at)
        for model, id, project_id, moves_at, deciding_id in rows
    ]


async def find_effective_policies(
    connection: AsyncConnection, models: Collection[int] | None = None
) -> dict[int, EffectivePolicy]:
    """Return what applies to these models, or to all; a model whose data is all kept is left
    out."""
    chosen = () if models is None else (registration.c.model.in_(sorted(models)),)
    of_models = await find_owners(connection, *chosen)
    owners = {owner for of in of_models for owner in (*of.current, *of.coming)}
    in_force, coming = await _find_versions(connection, None if models is None else owners)
    effective = {
        of.model: add_coming(
            build_effective_policy(of.current, in_force), build_effective_policy(of.coming, coming)
        )
        for of in of_models
    }
    return {model: applies for model, applies in effective.items() if applies is not None}


async def _find_versions(
    connection: AsyncConnection, owners: Collection[PolicyOwner] | None
) -> tuple[_Versions, _Versions]:
    """Return what is in force, of these owners or of all, and what is once everything pending has
    begun."""
    in_force = await find_in_force(connection, owners)
    pending = await find_pending(connection, owners)
    return in_force, apply_pending(in_force, pending)


def add_coming(
    current: EffectivePolicy | None, coming: EffectivePolicy | None
) -> EffectivePolicy | None:
    """Return what applies now, with what applies once everything pending has begun; None: all is
    kept."""
    if current is None or current == coming:
        return current
    return replace(current, coming=coming or EffectivePolicy())


def build_effective_policy(
    owners: Iterable[PolicyOwner], versions: Mapping[PolicyOwner, PolicyVersion]
) -> EffectivePolicy | None:
    """Return the effective policy of these owners; None: none of them has a policy that can be
    read."""
    present = [versions[owner] for owner in owners if owner in versions]
    texts = [
        (version.of, version.revision, write_document(version.policy))
        for version in present
        if version.policy is not None
    ]
    return _merge_texts(tuple(texts)) if texts else None


@lru_cache(maxsize=4096)
def _merge_texts(policies: tuple[tuple[PolicyOwner, int, str], ...]) -> EffectivePolicy | None:
    """Return None if a filter cannot be read: nothing may be deleted then, and it is logged
    once."""
    try:
        return merge_policies(
            [(owner, revision, read_document(text)) for owner, revision, text in policies]
        )
    except (StoreError, ValueError, KeyError, TypeError) as error:
        count_failure("policy_unreadable")
        whose = ", ".join(str(owner) for owner, _, _ in policies)
        _log.error("policy unreadable", action="policy_unreadable", of=whose, error=str(error))
        return None


# Moves a model to another project: another policy decides about what is stored of it.
#
# So a move is a change of policy. If another policy may delete something there, the policy of the
# project that the model leaves still decides until the grace period is over; to move the model back
# undoes the move.


async def find_deciding_project(
    connection: AsyncConnection, model: registrations.Registration
) -> str | None:
    """Return the project whose policy decides about a model now."""
    query = select(build_deciding_project()).where(registration.c.model == model.model)
    return (await connection.execute(query)).scalar()


async def is_minimum_undercut(
    connection: AsyncConnection, model: registrations.Registration, project_id: str | None
) -> bool:
    """Return whether a minimum age that applies now would no longer apply, or be undercut."""
    deciding_id = await find_deciding_project(connection, model)
    before, _ = await _find_versions(connection, list_owners(model.model_id, deciding_id))
    ages = _list_ages(before.values())
    if not ages or deciding_id == project_id:
        return False
    # a pending change may be revoked, and what is in force may end
    after = await _find_versions(connection, list_owners(model.model_id, project_id))
    return any(_goes_against(ages, project_id, versions) for versions in after)


async def describe_move(
    connection: AsyncConnection,
    model: registrations.Registration,
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
        before = list_owners(model.model_id, deciding_id)
        after = list_owners(model.model_id, project_id)
        waits = _may_delete_more(
            before, after, *await _find_versions(connection, {*before, *after}), now
        )
    at = now + timedelta(seconds=grace_seconds)
    return {
        "model_id": model.model_id,
        "project_id": project_id,
        "from_project_id": deciding_id,
        "moves_at": at.isoformat() if waits else None,
        "reason": reason,
    }


async def apply_moved(
    connection: AsyncConnection, body: Mapping[str, Any], _: datetime, __: str
) -> Mapping[str, Any]:
    """Move the model, and return the body. A restored backup may lack the model: it is registered
    then."""
    moves_at = None if body["moves_at"] is None else datetime.fromisoformat(body["moves_at"])
    left_project_id = None if moves_at is None else body["from_project_id"]
    await registrations.move(
        connection, body["model_id"], body["project_id"], left=left_project_id, at=moves_at
    )
    return body


def _may_delete_more(
    before: Sequence[PolicyOwner],
    after: Sequence[PolicyOwner],
    in_force: _Versions,
    coming: _Versions,
    now: datetime,
) -> bool:
    """Return whether other rules or limits may delete something there, now or once all have begun:
    that may be a minute after the move."""
    applies = build_effective_policy(before, in_force)
    return any(
        effective is not None
        and effective != applies
        and (effective.limit is not None or effective.find_latest(now) is not None)
        for effective in (
            build_effective_policy(after, versions) for versions in (in_force, coming)
        )
    )


def _goes_against(ages: list[str], project_id: str | None, versions: _Versions) -> bool:
    own = versions.get(PolicyOwner("project", project_id or ""))
    if own is not None and own.policy is not None and own.policy.undercuts_minimum_age:
        return True
    bind = _list_ages(versions.values())
    return any(not any(is_never_longer(age, minimum) for minimum in bind) for age in ages)


def _list_ages(versions: Iterable[PolicyVersion]) -> list[str]:
    policies = [version.policy for version in versions if version.policy is not None]
    return [policy.minimum_age for policy in policies if policy.minimum_age is not None]
