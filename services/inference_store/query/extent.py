"""Reads a model and its extent, with which every query begins: one statement instead of three."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import ARRAY, DateTime, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.index.distribution import is_distributed_cached
from inference_store.index.prepared_statement import PreparedStatement
from inference_store.index.registrations import (
    MOST_REACHES,
    Registration,
    find,
    get,
    registration_of,
    selected,
)
from inference_store.index.tables import erasing, partition_span, registration
from inference_store.inference.events import uid_floor

from .scan_range import Range, find_ranges, has_marks


@dataclass(frozen=True, slots=True)
class Extent:
    """The spans of a model's inferences, as they were when a request began."""

    spans: Sequence[Range]
    """The open spans, the newest first."""
    has_marks: bool
    """Whether any of its inferences is being erased."""


async def model_with_extent(
    connection: AsyncConnection, model_id: str, *, within: AccessScope = EVERYTHING
) -> tuple[Registration, Extent]:
    """Return a model's registration, and its extent at the same instant.

    Raises NotFound as `get` does.
    """
    if await is_distributed_cached(connection):  # Citus cannot join these tables in one statement
        return await _read_one_by_one(connection, model_id, within)
    row = await find(connection, _build_statement(within), model_id)
    bounds = zip(row["since"], row["until"], strict=True)
    spans = [(uid_floor(lo), uid_floor(hi)) for lo, hi in bounds]
    return registration_of(row), Extent(spans, row["has_marks"])


async def _read_one_by_one(
    connection: AsyncConnection, model_id: str, within: AccessScope
) -> tuple[Registration, Extent]:
    model = await get(connection, model_id, within=within)
    marks = await has_marks(connection, model.model)
    return model, Extent(await find_ranges(connection), marks)


@lru_cache(MOST_REACHES)
def _build_statement(within: AccessScope) -> PreparedStatement:
    here = partition_span.c
    bounds = (
        func.array(
            select(bound).where(here.state == "open").order_by(here.lo.desc()).scalar_subquery(),
            type_=ARRAY(DateTime(timezone=True)),
        ).label(name)
        for name, bound in (("since", here.lo), ("until", here.hi))
    )
    mine = erasing.c.model == registration.c.model
    marks = select(erasing.c.uid).where(mine, erasing.c.scope == "inference").exists()
    return PreparedStatement(selected(within).add_columns(*bounds, marks.label("has_marks")))
