"""Watched views: which number of a saved view is a metric, and what it is now."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, Field, field_serializer
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.saved_views import SavedView, read_time
from inference_store.inference.errors import ImpossibleComparison
from inference_store.inference.field_docs import Body, ShortText, WrongField
from inference_store.inference.iso_durations import read_duration

from .aggregates.aggregation import Aggregation, MeasureBody, Measured
from .aggregates.operands import find_names
from .aggregates.run import aggregate, resolve_measure
from .cql2 import Clock, parse
from .deadline import Deadline
from .preparation import QueryRequest, prepare

_LEAST: Final = timedelta(minutes=1)
_MOST: Final = timedelta(days=1)
_SEVERAL: Final = frozenset({"histogram", "top", "distinct"})
"""Functions whose values are not one number."""


def _check_every(text: str) -> str:
    duration = read_duration(text)
    if duration is None or duration.months or not _LEAST <= duration.exact <= _MOST:
        raise ValueError("it must be an ISO 8601 duration from PT1M to P1D, such as PT5M")
    return text


def _check_one_number(measure: MeasureBody) -> MeasureBody:
    if measure.function in _SEVERAL:
        raise WrongField("function", f"{measure.function} is not one number, as a metric must be")
    if measure.function == "percentiles" and len(measure.at) > 1:
        raise WrongField("at", "a metric is one number: give one percentage, such as [95]")
    return measure


Every: TypeAlias = Annotated[ShortText, Field(examples=["PT5M"]), AfterValidator(_check_every)]


class Watch(Body):
    """A metric that a saved view is: `inference_store_saved_query`."""

    every: Every
    """How often it is read: an ISO 8601 duration from `PT1M` to `P1D`."""
    of: Annotated[Measured, AfterValidator(_check_one_number)] = Field(
        default=MeasureBody(function="count")
    )
    """Which number: `count`, or a measure of an aggregate that is one number."""

    @field_serializer("of")
    def _write(self, of: MeasureBody) -> dict[str, Any]:
        written = of.model_dump(by_alias=True, exclude_unset=True)
        if "at" in written:
            written["at"] = [float(at) for at in of.at]
        return written


async def check_watch(connection: AsyncConnection, model: int, stored: Mapping[str, Any]) -> Watch:
    """Return a watch whose names are known. Raises Invalid, UnknownKey, ImpossibleComparison."""
    watch = Watch.model_validate(stored)
    of = watch.of.of
    if of is None:
        return watch
    names = await find_names(connection, model, [of], "refuse")
    operand = resolve_measure(names, watch.of, "watch.of")
    is_of_number = operand is not None and operand.kind == "number"
    if watch.of.function in {"min", "max"} and operand is not None and not is_of_number:
        wrong = f"a metric is a number; {of.name!r} is a {operand.kind}"
        raise ImpossibleComparison.of("watch.of.of", wrong, ["number"])
    return watch


async def read_watched(
    connection: AsyncConnection, view: SavedView, deadline: Deadline, *, now: datetime
) -> float:
    """Return the number of a view that is watched; NaN: it has none, for lack of values.

    Raises Invalid, UnknownKey, ImpossibleComparison, NotKept, NotFound, OutOfTime.
    """
    assert view.watch is not None
    model = await registrations.get(connection, view.model_id)
    watch = await check_watch(connection, model.model, view.watch.model_dump())
    since, until = (None, None) if view.time is None else read_time(view.time, now)
    tree = None if view.filter is None else parse(view.filter, lang="cql2-text", clock=Clock(now))
    question = QueryRequest(filter=tree, filter_text=view.filter, since=since, until=until)
    query = (await prepare(connection, model.model, question)).query
    measures = Aggregation(measures=[watch.of])
    answer = await aggregate(connection, [model], query, measures, deadline=deadline)
    value = answer.groups[0].measures[watch.of.name]
    if watch.of.function == "percentiles":
        value = value["values"][0]["value"]
    return float("nan") if value is None else float(Decimal(value))
