"""Turns a requested policy into one that can be stored: its filters are resolved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import registration
from inference_store.inference.errors import Fault, Invalid
from inference_store.query.cql2 import Node, to_text
from inference_store.query.filters.certain import names_project
from inference_store.query.filters.names import find_known_keys, names_in
from inference_store.query.filters.saved import save

from .effective_policy import PolicyOwner
from .rules import Ages, Bounds, RetentionPolicy, Rule


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
