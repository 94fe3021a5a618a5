"""A policy as it is asked for, made into one that is kept: its filters resolved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import registration
from inference_store.inference.errors import Fault, Invalid
from inference_store.query.cql2 import Node, to_text
from inference_store.query.filters.certain import names_project
from inference_store.query.filters.known import known
from inference_store.query.filters.names import names_in
from inference_store.query.filters.saved import save

from .chain import Of
from .rules import Ages, Bounds, RetentionPolicy, Rule


@dataclass(frozen=True, slots=True)
class AskedRule:
    """A rule with the tree of its filter, and the types of keys that nothing has yet."""

    ages: Ages
    filter: Node | None = None
    source: str | None = None
    """The filter's text, where it was text."""
    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A policy that can be kept, and what its author should know."""

    policy: RetentionPolicy
    warnings: tuple[str, ...]


async def models_of(connection: AsyncConnection, of: Of) -> list[int]:
    """The models that a policy may apply to, by their integers."""
    here = registration.c
    query = select(here.model).order_by(here.model)
    if of.level == "model":
        query = query.where(here.model_id == of.subject)
    elif of.level == "project":
        query = query.where(here.project_id == of.subject)
    return list((await connection.execute(query)).scalars())


async def resolve(
    connection: AsyncConnection, of: Of, rules: Sequence[AskedRule], bounds: Bounds
) -> Resolved:
    """Resolve every rule's filter against what the models have of its keys now.

    Raises what `save` does: InvalidFilter, ImpossibleComparison, NotKept, Invalid; and Invalid for
    a filter that names the project: a move would change what it is TRUE of, without a grace.
    """
    models = await models_of(connection, of)
    kept: list[Rule] = []
    warnings: dict[str, None] = {}
    for place, asked in enumerate(rules):
        rule: dict[str, Any] = asked.ages.model_dump(include=set(Ages.model_fields))
        if asked.filter is not None:
            seen = await known(connection, models, names_in(asked.filter))
            done = save(asked.filter, seen, declared=asked.types, source=asked.source)
            if names_project(done.checked.predicate):
                raise _depends_on_project(place)
            warnings |= dict.fromkeys(done.checked.warnings)
            rule |= {"filter": asked.source or to_text(asked.filter), "saved": done.text}
        kept.append(Rule(**rule))
    fields = bounds.model_dump(include=set(Bounds.model_fields))
    return Resolved(RetentionPolicy(rules=tuple(kept), **fields), tuple(warnings))


def _depends_on_project(place: int) -> Invalid:
    message = "give the project a policy of its own, or name the models by `model_id`"
    fault = Fault(f"rules[{place}].filter", message)
    return Invalid("A rule cannot depend on `project_id`, which a model may leave.", faults=[fault])
