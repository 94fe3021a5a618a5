"""Finds which policies apply to which models now."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import structlog
from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.verify.failure_reasons import count_failure
from inference_store.index.tables import registration
from inference_store.inference.errors import StoreError

from . import policy_versions
from .effective_policy import DEFAULT, EffectivePolicy, PolicyOwner, merge_policies
from .policy_versions import PolicyVersion

_log = structlog.get_logger()


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
    in_force = await policy_versions.find_in_force(connection, owners)
    pending = await policy_versions.find_pending(connection, owners)
    coming = policy_versions.apply_pending(in_force, pending)
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
