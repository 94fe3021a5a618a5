"""Inferences in full, by uid: the row, and what of metadata and predictions is asked for."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Select,
    Table,
    and_,
    any_,
    bindparam,
    literal,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY, INTEGER
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.metadata import Entry, decode_entries
from inference_store.store.tables import erasing, inference, inference_alias, label, prediction

METADATA, PREDICTIONS = "metadata", "predictions"


@dataclass(frozen=True, slots=True)
class Inference:
    """One inference. `row` has its columns by name; `metadata`, `predictions` None: not read."""

    row: Mapping[str, Any]
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
    wanted = {"model": model, "uids": list(uids)}
    rows = await connection.execute(_rows(METADATA in include), wanted)
    found = {row["uid"]: dict(row) for row in rows.mappings()}
    beside = await _beside(connection, wanted)
    predictions = await _predictions(connection, wanted) if PREDICTIONS in include else None
    return [
        Inference(
            row=found[uid],
            top_label=found[uid]["top_label_name"],
            aliases=tuple(beside[uid, "alias"]),
            input_erased=(uid, "input") in beside or found[uid]["data_deleted_at"] is not None,
            response_erased=(uid, "response") in beside
            or found[uid]["response_deleted_at"] is not None,
            metadata=_entries(found[uid], include),
            predictions=None if predictions is None else tuple(predictions.get(uid, ())),
        )
        for uid in uids
        if uid in found
    ]


def _entries(row: Mapping[str, Any], include: Collection[str]) -> tuple[Entry, ...] | None:
    if METADATA not in include:
        return None
    return () if row[METADATA] is None else decode_entries(row[METADATA])


async def _beside(
    connection: AsyncConnection, wanted: Mapping[str, Any]
) -> defaultdict[tuple[UUID, str], list[str]]:
    """What other tables say: aliases, and which parts are being deleted."""
    found: defaultdict[tuple[UUID, str], list[str]] = defaultdict(list)
    for uid, what, text in await connection.execute(_about(), wanted):
        found[uid, what].append(text)
    return found


async def _predictions(
    connection: AsyncConnection, wanted: Mapping[str, Any]
) -> dict[UUID, list[Mapping[str, Any]]]:
    found: dict[UUID, list[Mapping[str, Any]]] = {}
    for row in (await connection.execute(_of_predictions(), wanted)).mappings():
        # the column "end" comes under a name that is not quite a str
        items = {str(name): value for name, value in row.items() if name != "uid"}
        found.setdefault(row["uid"], []).append(items)
    return found


# Built once: to build a statement and to find it among the compiled ones takes as long as to ask.


@cache
def _rows(with_metadata: bool) -> Select[Any]:
    columns = [c for c in inference.columns if c.name != METADATA or with_metadata]
    return (
        select(*columns, label.c.name.label("top_label_name"))
        .outerjoin(label, label.c.label == inference.c.top_label)
        .where(_wanted(inference))
    )


@cache
def _about() -> CompoundSelect[Any]:
    alias, mark = inference_alias.c, erasing.c
    aliases = select(alias.uid, literal("alias").label("what"), alias.alias.label("text"))
    marks = select(mark.uid, mark.scope, literal(""))
    marks = marks.where(_wanted(erasing), mark.scope.in_(("input", "response")))
    return union_all(aliases.where(_wanted(inference_alias)), marks).order_by("text")


@cache
def _of_predictions() -> Select[Any]:
    named = [c.label(c.key) for c in prediction.columns if c.key not in {"model", "uid", "label"}]
    return (
        select(prediction.c.uid, label.c.name.label("label"), *named)
        .outerjoin(label, label.c.label == prediction.c.label)
        .where(_wanted(prediction))
        .order_by(prediction.c.uid, prediction.c.rank, prediction.c.ordinal)
    )


def _wanted(table: Table) -> ColumnElement[bool]:
    """Rows of the inferences that `model` and `uids`, the statement's parameters, name."""
    uids = bindparam("uids", type_=ARRAY(UUID_TYPE(as_uuid=True)))
    return and_(table.c.model == bindparam("model", type_=INTEGER()), table.c.uid == any_(uids))
