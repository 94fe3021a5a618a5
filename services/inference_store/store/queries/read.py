"""Inferences in full, by uid: the row, and what of metadata and predictions is asked for."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    and_,
    any_,
    bindparam,
    func,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY, INTEGER, TEXT
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.metadata import Entry, decode_entries
from inference_store.store.prepared import Prepared
from inference_store.store.tables import erasing, inference, inference_alias, label, prediction

METADATA, PREDICTIONS = "metadata", "predictions"


@dataclass(frozen=True, slots=True)
class Inference:
    """One inference. `row` has its columns by name; `metadata`, `predictions` None: not read."""

    row: Any
    top_label: str | None
    aliases: tuple[str, ...]
    input_erased: bool
    """Its input is gone, or is being deleted."""
    response_erased: bool
    """Its response is gone, or is being deleted."""
    metadata: tuple[Entry, ...] | None = None
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
    wanted = {"model": model, "uids": uids}
    alone = len(uids) == 1
    rows = await _rows(METADATA in include, alone).fetch(connection, wanted)
    found = {row["uid"]: row for row in rows}
    beside = _beside_one(rows) if alone else await _beside(connection, wanted)
    predictions = await _predictions(connection, wanted) if PREDICTIONS in include else None
    return [
        Inference(
            row=found[uid],
            top_label=found[uid]["top_label_name"],
            aliases=tuple(beside.get((uid, "alias"), ())),
            input_erased=(uid, "input") in beside or found[uid]["data_deleted_at"] is not None,
            response_erased=(uid, "response") in beside
            or found[uid]["response_deleted_at"] is not None,
            metadata=_entries(found[uid], include),
            predictions=None if predictions is None else tuple(predictions.get(uid, ())),
        )
        for uid in uids
        if uid in found
    ]


def _entries(row: Any, include: Collection[str]) -> tuple[Entry, ...] | None:
    if METADATA not in include:
        return None
    return () if row[METADATA] is None else decode_entries(row[METADATA])


_Beside: TypeAlias = Mapping[tuple[UUID, str], Sequence[str]]
"""What other tables say of each inference: its aliases, and which parts are being deleted."""


def _beside_one(rows: Sequence[Any]) -> _Beside:
    return {
        (row["uid"], what): texts
        for row in rows
        for what, texts in (("alias", row["aliases"]), *((scope, ()) for scope in row["marks"]))
    }


async def _beside(connection: AsyncConnection, wanted: Mapping[str, Any]) -> _Beside:
    found: defaultdict[tuple[UUID, str], list[str]] = defaultdict(list)
    for uid, what, text in await _about().fetch(connection, wanted):
        found[uid, what].append(text)
    return found


async def _predictions(
    connection: AsyncConnection, wanted: Mapping[str, Any]
) -> dict[UUID, list[Mapping[str, Any]]]:
    found: dict[UUID, list[Mapping[str, Any]]] = {}
    for row in await _of_predictions().fetch(connection, wanted):
        items = dict(row)
        found.setdefault(items.pop("uid"), []).append(items)
    return found


@cache
def _rows(with_metadata: bool, alone: bool) -> Prepared:
    """`alone`: of one inference, with what `_about` has: for many that would be asked of each."""
    columns = [c for c in inference.columns if c.name != METADATA or with_metadata]
    alias = inference_alias.c.alias
    aliases = select(alias).where(_wanted(inference_alias)).order_by(alias)
    marks = select(erasing.c.scope).where(*_of_parts())
    beside = [_array(aliases, "aliases"), _array(marks, "marks")] if alone else []
    return Prepared(
        select(*columns, label.c.name.label("top_label_name"), *beside)
        .outerjoin(label, label.c.label == inference.c.top_label)
        .where(_wanted(inference))
    )


@cache
def _about() -> Prepared:
    alias, mark = inference_alias.c, erasing.c
    aliases = select(alias.uid, literal("alias").label("what"), alias.alias.label("text"))
    marks = select(mark.uid, mark.scope, literal(""))
    found = union_all(aliases.where(_wanted(inference_alias)), marks.where(*_of_parts()))
    return Prepared(found.order_by("text"))


def _of_parts() -> tuple[ColumnElement[bool], ...]:
    """The marks of inputs and responses that are being deleted."""
    scope = erasing.c.scope
    return _wanted(erasing), or_(scope == "input", scope == "response")


def _array(of: Select[Any], name: str) -> ColumnElement[Any]:
    """What a SELECT of texts finds, as one column."""
    return func.array(of.scalar_subquery(), type_=ARRAY(TEXT())).label(name)


@cache
def _of_predictions() -> Prepared:
    named = [c.label(c.key) for c in prediction.columns if c.key not in {"model", "uid", "label"}]
    return Prepared(
        select(prediction.c.uid, label.c.name.label("label"), *named)
        .outerjoin(label, label.c.label == prediction.c.label)
        .where(_wanted(prediction))
        .order_by(prediction.c.uid, prediction.c.rank, prediction.c.ordinal)
    )


def _wanted(table: Table) -> ColumnElement[bool]:
    """Rows of the inferences that `model` and `uids`, the statement's parameters, name."""
    uids = bindparam("uids", type_=ARRAY(UUID_TYPE(as_uuid=True)))
    return and_(table.c.model == bindparam("model", type_=INTEGER()), table.c.uid == any_(uids))
