"""Builds the filter of a hold: it is resolved when the hold is placed, and never changes.

A hold by ids is a filter too, so that it also protects what comes later under one of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import registration
from inference_store.inference.errors import Fault, Invalid
from inference_store.inference.json_text import read_exactly
from inference_store.query.cql2 import parse_json, to_text
from inference_store.query.cql2.tree import Node
from inference_store.query.filters import from_conditions, saved, typed
from inference_store.query.filters.certain import names_project
from inference_store.query.filters.names import KnownKeys, find_known_keys, names_in
from inference_store.query.preparation import list_labels, warn_of_unknown_labels

from .hold import ERASED


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldCriteria:
    """Exactly one of a filter and ids. `types`: by name, of keys that nothing has yet."""

    filter: Node | None = None
    filter_text: str | None = None
    inference_ids: Sequence[str] | None = None
    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HoldFilter:
    """The filter as it is stored, and warnings for whoever places the hold."""

    text: str
    warnings: tuple[str, ...]


async def build_filter(
    connection: AsyncConnection, model: int | None, request: HoldCriteria
) -> HoldFilter:
    """Return the hold's filter, for a model or for all. Raises as `filters.saved.save` does;
    Invalid."""
    if request.filter is None:
        return HoldFilter(
            saved.save(from_conditions.of_ids(request.inference_ids or ()), KnownKeys()).text, ()
        )
    models = [model] if model is not None else await _list_models(connection)
    keys = await find_known_keys(connection, models, names_in(request.filter))
    filter = saved.save(request.filter, keys, declared=request.types, source=request.filter_text)
    predicate = filter.checked.predicate
    _refuse_project(predicate)
    labels = await warn_of_unknown_labels(connection, models, list_labels([predicate]))
    return HoldFilter(filter.text, (*filter.checked.warnings, *labels))


def format_filter(text: str) -> str:
    """Return a stored filter as CQL2-Text; a filter that an erasure removed as it is stored."""
    if text.startswith(ERASED):
        return text
    return to_text(parse_json(read_exactly(text)["filter"]))


def list_declared_types(text: str) -> dict[str, str]:
    """Return the types of the keys that no inference had when the hold was placed or changed, by
    name: those that a stored filter counts no values of. Empty if an erasure removed the filter."""
    if text.startswith(ERASED):
        return {}
    keys = read_exactly(text)["keys"]
    return {name: kind for name, rows in keys.items() for kind in rows if int(rows[kind]) == 0}


def _refuse_project(predicate: typed.Predicate) -> None:
    """Refuse a filter on the project: a model may leave its project, and take held inferences with
    it."""
    if names_project(predicate):
        fault = Fault("filter", "name the models, by `model_id`, instead of `project_id`")
        raise Invalid("A hold cannot depend on a project, which a model may leave.", faults=[fault])


async def _list_models(connection: AsyncConnection) -> list[int]:
    return list((await connection.execute(select(registration.c.model))).scalars())
