"""Warns about labels that no prediction has: a filter with one is valid, and finds nothing.

It is no error, as for a key: a model may return the label tomorrow.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.key_registry import Models, of_models
from inference_store.index.tables import label, model_label
from inference_store.inference.nearest import (
    LONGEST,
    MOST_COMPARED,
    list_warnings,
    nearest,
    shortened,
)
from inference_store.query.filters.typed import (
    Among,
    Column,
    Compared,
    Constant,
    Predicate,
    Property,
)


def list_labels(predicates: Sequence[Predicate]) -> list[str]:
    """Return the labels that typed filters compare by `=` and IN, each once."""
    names = (name for predicate in predicates for name in _iterate_labels(predicate))
    return list(dict.fromkeys(names))


def _iterate_labels(thing: Any) -> Iterator[str]:
    match thing:
        case Compared(op="=", left=Column("label") | Property("top_label"), right=Constant() as c):
            yield str(c.value)
        case Among(of=Column("label") | Property("top_label"), items=items):
            yield from (str(item.value) for item in items)
        case tuple():
            for part in thing:
                yield from _iterate_labels(part)
        case _ if is_dataclass(thing):
            for field in fields(thing):
                yield from _iterate_labels(getattr(thing, field.name))


async def warn_of_unknown_labels(
    connection: AsyncConnection, models: Models, names: Collection[str]
) -> list[str]:
    """Return a warning for each label that none of the models has ever returned."""
    if not names:
        return []
    here = select(label.c.name).join(model_label, model_label.c.label == label.c.label)
    here = here.where(of_models(model_label.c.model, models))
    rows = await connection.execute(here.where(label.c.name.in_(sorted(names))))
    missing = sorted(set(names) - set(rows.scalars()))
    if not missing:
        return []
    short = here.where(func.char_length(label.c.name) <= LONGEST)
    names_of_models = sorted(
        (await connection.execute(short.distinct().limit(MOST_COMPARED))).scalars()
    )
    return list_warnings(missing, lambda name: _make_warning(name, names_of_models))


def _make_warning(name: str, names: Sequence[str]) -> str:
    near = nearest(name, names, limit=3)
    suggestion = f" The nearest are {', '.join(near)}." if near else ""
    return f"No prediction of this model has the label {shortened(name)}.{suggestion}"
