"""Making the filter of a hold: resolved when it is placed, the same for ever.

A hold by ids is a filter too, so that it also keeps what comes later under one of them.
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
from inference_store.query.filters.known import Known, known
from inference_store.query.filters.names import names_in
from inference_store.query.labels import list_labels, warn_of_unknown_labels

from .hold import ERASED


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Exactly one of a filter and ids. `types`: of keys that nothing has yet, by name."""

    filter: Node | None = None
    filter_text: str | None = None
    inference_ids: Sequence[str] | None = None
    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Made:
    """The filter as it is kept, and what whoever places it should know."""

    text: str
    warnings: tuple[str, ...]


async def make(connection: AsyncConnection, model: int | None, asked: Asked) -> Made:
    """The hold's filter, for a model or for all. Raises what `filters.saved.save` does, Invalid."""
    if asked.filter is None:
        return Made(saved.save(from_conditions.of_ids(asked.inference_ids or ()), Known()).text, ())
    models = [model] if model is not None else await _all_models(connection)
    keys = await known(connection, models, names_in(asked.filter))
    made = saved.save(asked.filter, keys, declared=asked.types, source=asked.filter_text)
    predicate = made.checked.predicate
    _refuse_project(predicate)
    labels = await warn_of_unknown_labels(connection, models, list_labels([predicate]))
    return Made(made.text, (*made.checked.warnings, *labels))


def spelt(text: str) -> str:
    """A kept filter as CQL2-Text; what stands for one that an erasure took."""
    if text.startswith(ERASED):
        return text
    return to_text(parse_json(read_exactly(text)["filter"]))


def _refuse_project(predicate: typed.Predicate) -> None:
    """A model may leave its project, and would take what is held with it."""
    if names_project(predicate):
        fault = Fault("filter", "name the models, by `model_id`, instead of `project_id`")
        raise Invalid("A hold cannot depend on a project, which a model may leave.", faults=[fault])


async def _all_models(connection: AsyncConnection) -> list[int]:
    return list((await connection.execute(select(registration.c.model))).scalars())
