"""Inferences in full, by uid: the row, and what of metadata and predictions is asked for."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import CTE, ColumnElement, Select, Table, and_, any_, bindparam, func, or_, select
from sqlalchemy.dialects.postgresql import ARRAY, INTEGER, TEXT
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.distribution import is_distributed_cached
from inference_store.index.prepared import Prepared
from inference_store.index.tables import erasing, inference, inference_alias, label, prediction
from inference_store.inference.metadata import encode_entries

METADATA, PREDICTIONS = "metadata", "predictions"
_MOST_AHEAD = 200
_NO_ENTRIES: Final = encode_entries(())
_PREDICTED: Final = (
    label.c.name.label("label"),
    *(c.label(c.key) for c in prediction.columns if c.key not in {"model", "uid", "label"}),
)
"""What is read of a prediction."""
_PREDICTED_NAMES: Final = tuple(str(each.name) for each in _PREDICTED)


# A named tuple, as Hit: thousands are made for an answer, each at a third of a dataclass's cost.
class Inference(NamedTuple):
    """One inference. `row` has its columns by name; `metadata`, `predictions` None: not read."""

    row: Any
    top_label: str | None
    aliases: tuple[str, ...]
    input_erased: bool
    """Its input is gone, or is being deleted."""
    response_erased: bool
    """Its response is gone, or is being deleted."""
    metadata: bytes | None = None
    """Its entries, as they are stored."""
    predictions: tuple[Mapping[str, Any], ...] | None = None

    @property
    def uid(self) -> UUID:
        """Its uid."""
        uid: UUID = self.row["uid"]
        return uid


async def read(
    connection: AsyncConnection, model: int, uids: Sequence[UUID], *, include: Collection[str] = ()
) -> list[Inference]:
    """The inferences by these uids, in their order; one that is gone meanwhile is left out."""
    if not uids:
        return []
    # Citus passes no rows inside of rows from node to node.
    apart = PREDICTIONS in include and await is_distributed_cached(connection)
    together = PREDICTIONS in include and not apart
    statement = (_one if len(uids) == 1 else _many)(METADATA in include, together)
    wanted = {"model": model, "uids": uids, "uid": uids[0]}
    found = {row["uid"]: row for row in await statement.fetch(connection, wanted)}
    predicted = await _predictions(connection, wanted) if apart else None
    return [
        _inference(found[uid], include, None if predicted is None else predicted.get(uid, ()))
        for uid in uids
        if uid in found
    ]


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is read of inferences by the statement that finds them. `found`: by their uids."""

    include: Collection[str]
    found: dict[UUID, Inference] = field(default_factory=dict)

    def statement(self, *, newest_first: bool) -> Prepared:
        """The first inferences of a model in order of time: `most` of [lo, hi)."""
        return _first(METADATA in self.include, PREDICTIONS in self.include, newest_first)

    def take(self, rows: Sequence[Any]) -> list[UUID]:
        """Keep what that statement found: the uids."""
        self.found.update((row["uid"], _inference(row, self.include, None)) for row in rows)
        return [row["uid"] for row in rows]


async def make_ahead(
    connection: AsyncConnection, include: Collection[str], wanted: int
) -> Ahead | None:
    """How so many are read as they are found; None: they are read afterwards."""
    if wanted > _MOST_AHEAD or await is_distributed_cached(connection):
        return None
    return Ahead(include)


def _inference(row: Any, include: Collection[str], predicted: Sequence[Any] | None) -> Inference:
    marks = row["marks"] or ()
    if PREDICTIONS in include and predicted is None:
        predicted = [
            dict(zip(_PREDICTED_NAMES, each, strict=True)) for each in row[PREDICTIONS] or ()
        ]
    return Inference(
        row=row,
        top_label=row["top_label_name"],
        aliases=tuple(row["aliases"] or ()),
        input_erased="input" in marks or row["data_deleted_at"] is not None,
        response_erased="response" in marks or row["response_deleted_at"] is not None,
        metadata=(row[METADATA] or _NO_ENTRIES) if METADATA in include else None,
        predictions=None if predicted is None else tuple(predicted),
    )


async def _predictions(
    connection: AsyncConnection, wanted: Mapping[str, Any]
) -> dict[UUID, list[Mapping[str, Any]]]:
    found: dict[UUID, list[Mapping[str, Any]]] = {}
    for row in await _of_predictions().fetch(connection, wanted):
        items = dict(row)
        found.setdefault(items.pop("uid"), []).append(items)
    return found


@cache
def _one(with_metadata: bool, with_predictions: bool) -> Prepared:
    """The row of one inference, with what other tables say of it."""
    beside = _each(_is, with_predictions)
    return Prepared(_rows(with_metadata, *beside).where(_is(inference)))


@cache
def _first(with_metadata: bool, with_predictions: bool, newest_first: bool) -> Prepared:
    """The first rows of a range of uids. What other tables say is looked up for each: few are
    wanted, and which is not known when the statement is planned."""
    uid = inference.c.uid

    def same(table: Table) -> ColumnElement[bool]:
        return and_(_within(table), table.c.uid == uid)

    query = _rows(with_metadata, *_each(same, with_predictions)).where(_within(inference))
    ordered = query.order_by(uid.desc() if newest_first else uid)
    return Prepared(ordered.limit(bindparam("most", type_=INTEGER())))


def _each(
    where: Callable[[Table], ColumnElement[bool]], with_predictions: bool
) -> list[ColumnElement[Any]]:
    """What other tables say of one inference, a column each."""
    alias, here = inference_alias.c.alias, prediction.c
    beside = [
        _array(select(alias).where(where(inference_alias)).order_by(alias), "aliases"),
        _array(select(erasing.c.scope).where(where(erasing), _of_a_part()), "marks"),
    ]
    if with_predictions:
        rows = _predicted(func.row(*_PREDICTED).label("one")).where(where(prediction))
        beside.append(_array(rows.order_by(here.rank, here.ordinal), PREDICTIONS))
    return beside


@cache
def _many(with_metadata: bool, with_predictions: bool) -> Prepared:
    """The rows of several. What other tables say is read once, not once for each."""
    alias, here = inference_alias.c, prediction.c
    aliases = select(alias.uid, alias.alias.label("one")).where(_among(inference_alias))
    marks = select(erasing.c.uid, erasing.c.scope.label("one")).where(_among(erasing), _of_a_part())
    beside = {"aliases": aliases.order_by(alias.uid, alias.alias), "marks": marks}
    if with_predictions:
        rows = _predicted(here.uid, func.row(*_PREDICTED).label("one")).where(_among(prediction))
        beside[PREDICTIONS] = rows.order_by(here.uid, here.rank, here.ordinal)
    lists = {name: _by_uid(each, name) for name, each in beside.items()}
    query = _rows(with_metadata, *(each.c.all.label(name) for name, each in lists.items()))
    for each in lists.values():
        query = query.outerjoin(each, each.c.uid == inference.c.uid)
    return Prepared(query.where(_among(inference)))


def _rows(with_metadata: bool, *beside: ColumnElement[Any]) -> Select[Any]:
    columns = [c for c in inference.columns if c.name != METADATA or with_metadata]
    name = select(label.c.name).where(label.c.label == inference.c.top_label).correlate(inference)
    top_label = name.scalar_subquery().label("top_label_name")
    return select(*columns, top_label, *beside).select_from(inference)


def _by_uid(rows: Select[Any], name: str) -> CTE:
    """What a SELECT finds for each uid, in its order: an array each. Materialized, it is read once
    however few inferences are expected."""
    found = rows.subquery()
    lists = select(found.c.uid, func.array_agg(found.c.one).label("all")).group_by(found.c.uid)
    return lists.cte(name).prefix_with("MATERIALIZED")


def _array(of: Select[Any], name: str) -> ColumnElement[Any]:
    """What a SELECT of texts finds, as one column."""
    found = of.correlate(inference).scalar_subquery()
    return func.array(found, type_=ARRAY(TEXT())).label(name)


@cache
def _of_predictions() -> Prepared:
    here = prediction.c
    rows = _predicted(here.uid, *_PREDICTED).where(_among(prediction))
    return Prepared(rows.order_by(here.uid, here.rank, here.ordinal))


def _predicted(*columns: ColumnElement[Any]) -> Select[Any]:
    named = prediction.outerjoin(label, label.c.label == prediction.c.label)
    return select(*columns).select_from(named)


def _of_a_part() -> ColumnElement[bool]:
    """A mark is of an input or of a response that is being deleted."""
    return or_(erasing.c.scope == "input", erasing.c.scope == "response")


def _is(table: Table) -> ColumnElement[bool]:
    """Rows of the inference that `model` and `uid`, the statement's parameters, name."""
    return and_(_of_model(table), table.c.uid == bindparam("uid", type_=UUID_TYPE(as_uuid=True)))


def _among(table: Table) -> ColumnElement[bool]:
    """Rows of the inferences that `model` and `uids` name."""
    uids = bindparam("uids", type_=ARRAY(UUID_TYPE(as_uuid=True)))
    return and_(_of_model(table), table.c.uid == any_(uids))


def _within(table: Table) -> ColumnElement[bool]:
    """Rows of the inferences that `model`, `lo` and `hi` name: a half-open range of uids."""
    lo, hi = (bindparam(name, type_=UUID_TYPE(as_uuid=True)) for name in ("lo", "hi"))
    return and_(_of_model(table), table.c.uid >= lo, table.c.uid < hi)


def _of_model(table: Table) -> ColumnElement[bool]:
    model: ColumnElement[bool] = table.c.model == bindparam("model", type_=INTEGER())
    return model
