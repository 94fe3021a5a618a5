"""Finds which policies apply to which models now."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, TypeAlias

import structlog
from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.policies.effective_policy import is_never_longer
from inference_store.erasure.runs import count_failure
from inference_store.index import registrations
from inference_store.index.registrations import Registration
from inference_store.index.tables import registration
from inference_store.inference.errors import StoreError
from inference_store.inference.events.event import parse_instant

from . import policy_versions
from .effective_policy import DEFAULT, EffectivePolicy, PolicyOwner, merge_policies
from .policy_versions import PolicyVersion, read_now

_log = structlog.get_logger()
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


async def find_effective_policies(
    connection: AsyncConnection, models: Collection[int] | None = None
) -> dict[int, EffectivePolicy]:
    """Return what applies to these models, or to all; a model whose data is all kept is left
    out."""
    here = registration.c
    deciding = build_deciding_project().label("deciding")
    query = select(here.model, here.model_id, here.project_id, deciding)
    if models is not None:
        query = query.where(here.model.in_(sorted(models)))
    rows = (await connection.execute(query)).all()
    owners = None if models is None else _collect_owners(rows)
    in_force, coming = await _find_versions(connection, owners)
    effective = {
        row.model: add_coming(
            build_effective_policy(list_owners(row.model_id, row.deciding), in_force),
            build_effective_policy(list_owners(row.model_id, row.project_id), coming),
        )
        for row in rows
    }
    return {
        model: effective_policy
        for model, effective_policy in effective.items()
        if effective_policy is not None
    }


async def _find_versions(
    connection: AsyncConnection, owners: Collection[PolicyOwner] | None
) -> tuple[_Versions, _Versions]:
    """Return what is in force, of these owners or of all, and what is once everything pending has
    begun."""
    in_force = await policy_versions.find_in_force(connection, owners)
    pending = await policy_versions.find_pending(connection, owners)
    return in_force, policy_versions.apply_pending(in_force, pending)


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
    if not present:
        return None
    texts = [
        policy_versions.write_document(version.policy)
        for version in present
        if version.policy is not None
    ]
    return _merge_texts(
        tuple(
            (current.of, current.revision, text)
            for current, text in zip(present, texts, strict=True)
        )
    )


@lru_cache(maxsize=4096)
def _merge_texts(policies: tuple[tuple[PolicyOwner, int, str], ...]) -> EffectivePolicy | None:
    """Return None if a filter cannot be read: nothing may be deleted then, and it is logged
    once."""
    try:
        return merge_policies(
            [
                (owner, revision, policy_versions.read_document(text))
                for owner, revision, text in policies
            ]
        )
    except (StoreError, ValueError, KeyError, TypeError) as error:
        count_failure("policy_unreadable")
        whose = ", ".join(str(owner) for owner, _, _ in policies)
        _log.error("policy unreadable", action="policy_unreadable", of=whose, error=str(error))
        return None


def _collect_owners(rows: Iterable[Any]) -> set[PolicyOwner]:
    return {
        owner
        for row in rows
        for project in (row.deciding, row.project_id)
        for owner in list_owners(row.model_id, project)
    }


# Moves a model to another project: another policy decides about what is stored of it.
#
# So a move is a change of policy. If another policy may delete something there, the policy of the
# project that the model leaves still decides until the grace period is over; to move the model back
# undoes the move.


async def find_deciding_project(connection: AsyncConnection, model: Registration) -> str | None:
    """Return the project whose policy decides about a model now."""
    query = select(build_deciding_project()).where(registration.c.model == model.model)
    project: str | None = await connection.scalar(query)
    return project


async def is_minimum_undercut(
    connection: AsyncConnection, model: Registration, project_id: str | None
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
    model: Registration,
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
    connection: AsyncConnection,
    body: Mapping[str, Any],
    at: datetime,  # noqa: ARG001  (the ledger's signature)
    actor: str,  # noqa: ARG001  (the ledger's signature)
) -> Mapping[str, Any]:
    """Move the model, and return the body. A restored backup may lack the model: it is registered
    then."""
    moves_at = None if body["moves_at"] is None else parse_instant(body["moves_at"])
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
