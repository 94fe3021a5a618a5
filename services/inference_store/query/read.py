"""Reads whole inferences, by uid: the row, and the requested metadata and predictions."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import (
    CTE,
    Boolean,
    ColumnElement,
    Select,
    Table,
    and_,
    any_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    null,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, INTEGER, TEXT, aggregate_order_by
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.distribution import is_distributed_cached
from inference_store.index.prepared_statement import PreparedStatement
from inference_store.index.tables import (
    erasing,
    inference,
    inference_alias,
    label,
    prediction,
    truth,
    truth_set,
)
from inference_store.inference.metadata import encode_entries

METADATA, PREDICTIONS, MATCHED = "metadata", "predictions", "matched"
GROUND_TRUTH: Final = "ground_truth"
_MOST_AHEAD = 200
_NONE: Final[ColumnElement[Any]] = literal_column("'[]'::json")
_NO_ENTRIES: Final = encode_entries(())
_PREDICTED: Final = (
    label.c.name.label("label"),
    *(c.label(c.key) for c in prediction.columns if c.key not in {"model", "uid", "label"}),
    cast(null(), Boolean).label(MATCHED),
)
"""The columns that are read of a prediction; what a question adds to them is NULL."""
PREDICTION_FIELDS: Final = tuple(str(column.name) for column in _PREDICTED)
_ORDINAL: Final = PREDICTION_FIELDS.index("ordinal")


# A named tuple, as Hit: thousands are made for an answer, each at a third of a dataclass's cost.
class Inference(NamedTuple):
    """One inference. `row` has its columns by name; `metadata`, `prediction_values` None: not
    read."""

    row: Any
    top_label: str | None
    aliases: tuple[str, ...]
    input_erased: bool
    """Its input is gone, or is being deleted."""
    response_erased: bool
    """Its response is gone, or is being deleted."""
    metadata: bytes | None = None
    """Its entries, as they are stored."""
    prediction_values: Sequence[Sequence[Any]] | None = None
    """The values of each prediction, in the order of PREDICTION_FIELDS."""
    truth: str | None = None
    """What sources say, as JSON: a list of sets."""

    @property
    def predictions(self) -> list[dict[str, Any]] | None:
        """The predictions, their values by name."""
        if self.prediction_values is None:
            return None
        return [
            dict(zip(PREDICTION_FIELDS, values, strict=True)) for values in self.prediction_values
        ]

    @property
    def uid(self) -> UUID:
        """Its uid."""
        uid: UUID = self.row["uid"]
        return uid

    def mark(self, matched: Collection[tuple[UUID, int]] | None) -> "Inference":
        """Return it with `matched` of each prediction: whether its uid and ordinal are there. None:
        nobody asked for predictions."""
        if matched is None:
            return self
        uid = self.uid
        marked = [
            (*values[:-1], (uid, values[_ORDINAL]) in matched)
            for values in self.prediction_values or ()
        ]
        return self._replace(prediction_values=marked)


async def read(
    connection: AsyncConnection, model: int, uids: Sequence[UUID], *, include: Collection[str] = ()
) -> list[Inference]:
    """Return the inferences with these uids, in order, without those deleted meanwhile."""
    if not uids:
        return []
    # Citus passes no rows inside of rows from node to node
    apart = PREDICTIONS in include and await is_distributed_cached(connection)
    together = PREDICTIONS in include and not apart
    statement = (_build_one if len(uids) == 1 else _build_many)(METADATA in include, together)
    parameters = {"model": model, "uids": uids, "uid": uids[0]}
    rows = {row["uid"]: row for row in await statement.fetch(connection, parameters)}
    predicted = await _read_predictions(connection, parameters) if apart else None
    found = [
        _make_inference(rows[uid], include, None if predicted is None else predicted.get(uid, ()))
        for uid in uids
        if uid in rows
    ]
    return await _add_truth(connection, found, include, {"models": [model], "uids": uids})


async def read_of_several(
    connection: AsyncConnection,
    models: Sequence[int],
    uids: Sequence[UUID],
    *,
    include: Collection[str] = (),
) -> list[Inference]:
    """Return the inferences with these uids, of whichever of the models, in no order."""
    if await is_distributed_cached(connection):  # each model's are on a node of their own
        return [
            one for model in models for one in await read(connection, model, uids, include=include)
        ]
    statement = _build_many(METADATA in include, PREDICTIONS in include, several=True)
    parameters = {"models": models, "uids": uids}
    rows = await statement.fetch(connection, parameters)
    found = [_make_inference(row, include, None) for row in rows]
    return await _add_truth(connection, found, include, parameters)


@dataclass(frozen=True, slots=True)
class Ahead:
    """The columns that the statement that finds inferences reads as well.

    `inferences`: by their uids.
    """

    include: Collection[str]
    inferences: dict[UUID, Inference] = field(default_factory=dict)

    def statement(self, *, newest_first: bool) -> PreparedStatement:
        """Return the statement for the first inferences of a model in order of time: `most` of [lo,
        hi)."""
        return _build_first(METADATA in self.include, PREDICTIONS in self.include, newest_first)

    def take(self, rows: Sequence[Any]) -> list[UUID]:
        """Store the rows of that statement, and return their uids."""
        self.inferences.update(
            (row["uid"], _make_inference(row, self.include, None)) for row in rows
        )
        return [row["uid"] for row in rows]


async def make_ahead(
    connection: AsyncConnection, include: Collection[str], limit: int
) -> Ahead | None:
    """Return the columns to read with the hits; None: they are read afterwards."""
    if limit > _MOST_AHEAD or GROUND_TRUTH in include or await is_distributed_cached(connection):
        return None
    return Ahead(include)


def _make_inference(
    row: Any, include: Collection[str], predicted: Sequence[Any] | None
) -> Inference:
    marks = row["marks"] or ()
    if PREDICTIONS in include and predicted is None:
        predicted = row[PREDICTIONS] or ()
    return Inference(
        row=row,
        top_label=row["top_label_name"],
        aliases=tuple(row["aliases"] or ()),
        input_erased="input" in marks or row["data_deleted_at"] is not None,
        response_erased="response" in marks or row["response_deleted_at"] is not None,
        metadata=(row[METADATA] or _NO_ENTRIES) if METADATA in include else None,
        prediction_values=predicted,
    )


async def _add_truth(
    connection: AsyncConnection,
    inferences: list[Inference],
    include: Collection[str],
    parameters: Mapping[str, Any],
) -> list[Inference]:
    if GROUND_TRUTH not in include:
        return inferences
    rows = await _build_truth().fetch(connection, parameters)
    by_uid = {row["uid"]: row["sets"] for row in rows}
    return [one._replace(truth=by_uid.get(one.uid, "[]")) for one in inferences]


@cache
def _build_truth() -> PreparedStatement:
    """Build the statement for ground truth, as the JSON that answers have."""
    here, item = truth_set.c, truth.c
    corners = func.json_build_array(item.xmin, item.ymin, item.xmax, item.ymax)
    box = case((item.xmin.is_not(None), corners))
    one = _build_object(label=label.c.name, box=box, text=item.text, value=item.value)
    items = select(func.coalesce(func.json_agg(aggregate_order_by(one, item.ordinal)), _NONE))
    items = items.select_from(truth.outerjoin(label, label.c.label == item.label)).where(
        item.model == here.model, item.uid == here.uid, item.source == here.source
    )
    utc = func.timezone(literal_column("'UTC'"), here.at)
    said = _build_object(
        source=here.source,
        complete=here.complete,
        revision=here.revision,
        by=here.by,
        at=func.to_char(utc, literal_column("""'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'""")),
        items=items.correlate(truth_set).scalar_subquery(),
    )
    sets = cast(func.json_agg(aggregate_order_by(said, here.source)), TEXT).label("sets")
    query = select(here.uid, sets).where(_match_some_of_several(truth_set))
    return PreparedStatement(query.group_by(here.uid))


def _build_object(**members: ColumnElement[Any]) -> ColumnElement[Any]:
    parts: list[ColumnElement[Any]] = []
    for name, value in members.items():
        parts += literal_column(f"'{name}'"), value
    return func.json_build_object(*parts)


async def _read_predictions(
    connection: AsyncConnection, parameters: Mapping[str, Any]
) -> dict[UUID, list[Sequence[Any]]]:
    predictions: dict[UUID, list[Sequence[Any]]] = {}
    for uid, *values in await _build_predictions().fetch(connection, parameters):
        predictions.setdefault(uid, []).append(values)
    return predictions


@cache
def _build_one(with_metadata: bool, with_predictions: bool) -> PreparedStatement:
    beside = _select_parts(_match_one, with_predictions)
    return PreparedStatement(_select_rows(with_metadata, *beside).where(_match_one(inference)))


@cache
def _build_first(
    with_metadata: bool, with_predictions: bool, newest_first: bool
) -> PreparedStatement:
    """Build the statement for the first rows of a range of uids.

    The parts in other tables are looked up for each row: there are few rows, and they are not
    known when the statement is planned.
    """
    uid = inference.c.uid

    def same(table: Table) -> ColumnElement[bool]:
        return and_(_match_range(table), table.c.uid == uid)

    query = _select_rows(with_metadata, *_select_parts(same, with_predictions)).where(
        _match_range(inference)
    )
    ordered = query.order_by(uid.desc() if newest_first else uid)
    return PreparedStatement(ordered.limit(bindparam("most", type_=INTEGER())))


def _select_parts(
    where: Callable[[Table], ColumnElement[bool]], with_predictions: bool
) -> list[ColumnElement[Any]]:
    alias, here = inference_alias.c.alias, prediction.c
    beside = [
        _collect(select(alias).where(where(inference_alias)).order_by(alias), "aliases"),
        _collect(select(erasing.c.scope).where(where(erasing), _is_part_mark()), "marks"),
    ]
    if with_predictions:
        rows = _select_predictions(func.row(*_PREDICTED).label("one")).where(where(prediction))
        beside.append(_collect(rows.order_by(here.rank, here.ordinal), PREDICTIONS))
    return beside


@cache
def _build_many(
    with_metadata: bool, with_predictions: bool, *, several: bool = False
) -> PreparedStatement:
    """Build the statement for several inferences, of one model or of `several`.

    The parts in other tables are read once, not for each.
    """
    match = _match_some_of_several if several else _match_some
    alias, here = inference_alias.c, prediction.c
    aliases = select(alias.uid, alias.alias.label("one")).where(match(inference_alias))
    marks = select(erasing.c.uid, erasing.c.scope.label("one")).where(
        match(erasing), _is_part_mark()
    )
    beside = {"aliases": aliases.order_by(alias.uid, alias.alias), "marks": marks}
    if with_predictions:
        rows = _select_predictions(here.uid, func.row(*_PREDICTED).label("one"))
        rows = rows.where(match(prediction))
        beside[PREDICTIONS] = rows.order_by(here.uid, here.rank, here.ordinal)
    lists = {name: _collect_by_uid(parts, name) for name, parts in beside.items()}
    query = _select_rows(
        with_metadata, *(collected.c.all.label(name) for name, collected in lists.items())
    )
    for collected in lists.values():
        query = query.outerjoin(collected, collected.c.uid == inference.c.uid)
    return PreparedStatement(query.where(match(inference)))


def _select_rows(with_metadata: bool, *beside: ColumnElement[Any]) -> Select[Any]:
    columns = [c for c in inference.columns if c.name != METADATA or with_metadata]
    name = select(label.c.name).where(label.c.label == inference.c.top_label).correlate(inference)
    top_label = name.scalar_subquery().label("top_label_name")
    return select(*columns, top_label, *beside).select_from(inference)


def _collect_by_uid(rows: Select[Any], name: str) -> CTE:
    """Collect the rows of a SELECT for each uid, in order, into an array.

    It is materialized, so that it is read once however few inferences are expected.
    """
    items = rows.subquery()
    lists = select(items.c.uid, func.array_agg(items.c.one).label("all")).group_by(items.c.uid)
    return lists.cte(name).prefix_with("MATERIALIZED")


def _collect(of: Select[Any], name: str) -> ColumnElement[Any]:
    texts = of.correlate(inference).scalar_subquery()
    return func.array(texts, type_=ARRAY(TEXT())).label(name)


@cache
def _build_predictions() -> PreparedStatement:
    here = prediction.c
    rows = _select_predictions(here.uid, *_PREDICTED).where(_match_some(prediction))
    return PreparedStatement(rows.order_by(here.uid, here.rank, here.ordinal))


def _select_predictions(*columns: ColumnElement[Any]) -> Select[Any]:
    with_labels = prediction.outerjoin(label, label.c.label == prediction.c.label)
    return select(*columns).select_from(with_labels)


def _is_part_mark() -> ColumnElement[bool]:
    return or_(erasing.c.scope == "input", erasing.c.scope == "response")


def _match_one(table: Table) -> ColumnElement[bool]:
    return and_(_match_model(table), table.c.uid == bindparam("uid", type_=UUID_TYPE(as_uuid=True)))


def _match_some(table: Table) -> ColumnElement[bool]:
    return and_(_match_model(table), _match_uids(table))


def _match_some_of_several(table: Table) -> ColumnElement[bool]:
    models = bindparam("models", type_=ARRAY(INTEGER()))
    return and_(table.c.model == any_(models), _match_uids(table))


def _match_uids(table: Table) -> ColumnElement[bool]:
    uids = bindparam("uids", type_=ARRAY(UUID_TYPE(as_uuid=True)))
    matched: ColumnElement[bool] = table.c.uid == any_(uids)
    return matched


def _match_range(table: Table) -> ColumnElement[bool]:
    lo, hi = (bindparam(name, type_=UUID_TYPE(as_uuid=True)) for name in ("lo", "hi"))
    return and_(_match_model(table), table.c.uid >= lo, table.c.uid < hi)


def _match_model(table: Table) -> ColumnElement[bool]:
    model: ColumnElement[bool] = table.c.model == bindparam("model", type_=INTEGER())
    return model


BLOBS: Final = ("data", "response", "metadata")
STORAGE_KEYS: Final = {blob: f"{blob}_storage_key" for blob in BLOBS}


def get_storage_key(inference: Inference, blob: str) -> str | None:
    """Return the key of a blob; None if there is none, or none any more."""
    if (inference.input_erased or inference.response_erased) and is_erased(inference, blob):
        return None
    key: str | None = inference.row[STORAGE_KEYS[blob]]
    return key


def is_erased(inference: Inference, blob: str) -> bool:
    """Return whether a blob was deleted, or is about to be, while the inference stays."""
    if blob == "data":
        return inference.input_erased
    return blob == "response" and inference.response_erased


def is_input_too(inference: Inference) -> bool:
    """Return whether the event named one object as the response and as a part of the request."""
    response = get_storage_key(inference, "response")
    request = {get_storage_key(inference, "data"), get_storage_key(inference, "metadata")}
    return response is not None and response in request
