"""Inferences in full, by uid: the row, and what of metadata and predictions is asked for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import any_, select
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.metadata import Entry, decode_entries
from inference_store.store.tables import erasing, inference, inference_alias, label, prediction

from .operand import many

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
    wanted = many(uids, UUID_TYPE(as_uuid=True))
    columns = [c for c in inference.columns if c.name != METADATA or METADATA in include]
    rows = await connection.execute(
        select(*columns, label.c.name.label("top_label_name"))
        .outerjoin(label, label.c.label == inference.c.top_label)
        .where(inference.c.model == model, inference.c.uid == any_(wanted))
    )
    found = {row["uid"]: dict(row) for row in rows.mappings()}
    aliases = await _aliases(connection, model, wanted)
    inputs = await _marked(connection, model, wanted, "input")
    responses = await _marked(connection, model, wanted, "response")
    predictions = await _predictions(connection, model, wanted) if PREDICTIONS in include else None
    return [
        Inference(
            row=found[uid],
            top_label=found[uid]["top_label_name"],
            aliases=tuple(aliases.get(uid, ())),
            input_erased=uid in inputs or found[uid]["data_deleted_at"] is not None,
            response_erased=uid in responses or found[uid]["response_deleted_at"] is not None,
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


async def _aliases(connection: AsyncConnection, model: int, uids: Any) -> dict[UUID, list[str]]:
    table = inference_alias.c
    query = select(table.uid, table.alias).where(table.model == model, table.uid == any_(uids))
    found: dict[UUID, list[str]] = {}
    for row in await connection.execute(query.order_by(table.alias)):
        found.setdefault(row.uid, []).append(row.alias)
    return found


async def _marked(connection: AsyncConnection, model: int, uids: Any, scope: str) -> set[UUID]:
    table = erasing.c
    query = select(table.uid).where(
        table.model == model, table.uid == any_(uids), table.scope == scope
    )
    return set((await connection.execute(query)).scalars())


async def _predictions(
    connection: AsyncConnection, model: int, uids: Any
) -> dict[UUID, list[Mapping[str, Any]]]:
    named = [c.label(c.key) for c in prediction.columns if c.key not in {"model", "uid", "label"}]
    query = (
        select(prediction.c.uid, label.c.name.label("label"), *named)
        .outerjoin(label, label.c.label == prediction.c.label)
        .where(prediction.c.model == model, prediction.c.uid == any_(uids))
        .order_by(prediction.c.uid, prediction.c.rank, prediction.c.ordinal)
    )
    found: dict[UUID, list[Mapping[str, Any]]] = {}
    for row in (await connection.execute(query)).mappings():
        # the column "end" comes under a name that is not quite a str
        items = {str(name): value for name, value in row.items() if name != "uid"}
        found.setdefault(row["uid"], []).append(items)
    return found
