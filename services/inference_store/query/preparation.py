"""Turns a request into a Query: names become integers, values get types."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.key_registry import Models, of_models
from inference_store.index.tables import label, model_label
from inference_store.inference.nearest import LONGEST, MOST_COMPARED, list_warnings
from inference_store.query.deadline import ScanRange, has_marks, range_of_time

from .conditions import compile_certain, compile_condition, compile_wanted, list_labels, read_names
from .conditions.condition import NOTHING, All, Condition, Negated, Received, combine_all
from .cql2.tree import Node
from .filters import from_conditions
from .filters.check import check
from .filters.from_conditions import MetadataEntry
from .filters.names import KnownKeys, find_known_keys, names_in
from .filters.typed import And, Predicate, comparisons_in
from .lookup import Extent
from .plan import Query

UnknownKeys = Literal["refuse", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRequest:
    """A question about the inferences of models; every given condition must hold.

    Times are half-open.
    """

    filter: Node | None = None
    filter_text: str | None = None
    """The text of the filter, if it was sent as text: errors point at a place in it."""
    metadata: Sequence[MetadataEntry] = ()
    since: datetime | None = None
    until: datetime | None = None
    inference_ids: Sequence[str] | None = None
    data_hashes: Sequence[str] | None = None
    ok: bool | None = None
    labels: Sequence[str] | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    predicted: bool = False
    newest_first: bool = True
    unknown_keys: UnknownKeys = "refuse"


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
    short = here.where(func.char_length(label.c.name) <= LONGEST).distinct().limit(MOST_COMPARED)
    known = sorted((await connection.execute(short)).scalars())
    return list_warnings("No prediction of this model has the label", missing, known)


async def check_request(
    connection: AsyncConnection, models: Models, request: QueryRequest
) -> tuple[Sequence[Predicate], tuple[str, ...]]:
    """Check the request's conditions, for one model or several together.

    Returns the predicates that must hold, and warnings for the caller.

    Raises UnknownKey, ImpossibleComparison, Invalid, NotKept.
    """
    names = set() if request.filter is None else names_in(request.filter)
    for entry in request.metadata:
        names |= {entry.key, f"{entry.key}[]"}  # the elements, if it is an array
    keys = await find_known_keys(connection, models, names)
    predicates: list[Predicate] = []
    warnings: dict[str, None] = {}
    for node, text in _list_conditions(request, keys):
        checked = check(node, keys, source=text, unknown_keys=request.unknown_keys)
        predicates.append(checked.predicate)
        warnings |= dict.fromkeys(checked.warnings)
    labels = await warn_of_unknown_labels(connection, models, list_labels(tuple(predicates), "="))
    return predicates, (*warnings, *labels)


def _list_conditions(request: QueryRequest, keys: KnownKeys) -> Iterator[tuple[Node, str | None]]:
    for entry in request.metadata:
        yield from_conditions.metadata_node(entry, keys), None
    if request.inference_ids is not None:
        yield from_conditions.of_ids(request.inference_ids), None
    if request.data_hashes is not None:
        yield from_conditions.one_of("data_hash", request.data_hashes, "data_hash"), None
    if request.ok is not None:
        yield from_conditions.succeeded(request.ok), None
    if request.predicted:
        yield from_conditions.predicted(request.labels, request.scores), None
    if request.filter is not None:
        yield request.filter, request.filter_text


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """The query, and the warnings for the caller."""

    query: Query
    warnings: tuple[str, ...] = ()


async def prepare(
    connection: AsyncConnection, models: Models, request: QueryRequest, extent: Extent | None = None
) -> PreparedQuery:
    """Resolve the names of a request. Raises UnknownKey, ImpossibleComparison, Invalid, NotKept.

    With several models a name is known if any of them has it. `extent`: of the one model, if it is
    known.
    """
    predicates, warnings = await check_request(connection, models, request)
    first, *others = [models] if isinstance(models, int) else models or [0]
    scan_range = range_of_time(first, request.since, request.until)
    if others:
        scan_range = replace(scan_range, others=tuple(others))
    query = await build_query(connection, scan_range, predicates, extent=extent)
    query = replace(query, newest_first=request.newest_first, nothing=query.nothing or not first)
    return PreparedQuery(query, warnings)


async def build_query(
    connection: AsyncConnection,
    scan_range: ScanRange,
    predicates: Sequence[Predicate],
    *,
    matches: Literal["possible", "certain", "doubtful"] = "possible",
    extent: Extent | None = None,
) -> Query:
    """Return the query that matches all of the predicates; time conditions narrow its range.

    `certain`: whatever the index lacks; `doubtful`: possible, and not certain. `extent`: of the
    model, if it is known.
    """
    whole = And(tuple(predicates))
    names = await read_names(connection, whole)
    condition = compile_condition(whole, names)
    if matches != "possible":
        possible, condition = condition, compile_certain(whole, names)
        if matches == "doubtful":
            doubts = combine_all([possible, Negated(condition)])
            condition = NOTHING if possible == condition else doubts
    conditions: list[Condition] = []
    for part in condition.parts if isinstance(condition, All) else (condition,):
        if isinstance(part, Received):
            scan_range = part.narrow(scan_range)
        else:
            conditions.append(part)
    return Query(
        scan_range,
        tuple(conditions),
        marks=extent.has_marks if extent else await has_marks(connection, scan_range.models),
        nothing=condition == NOTHING,
        size=comparisons_in(whole),
        spans=extent.spans if extent else None,
        wanted=compile_wanted(whole, names),
    )
