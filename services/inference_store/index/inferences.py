"""Finds stored inferences so that Postgres reads, and locks, only their partitions."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal, TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, Table, and_, any_, literal, or_, select
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import erasing, inference

Identity: TypeAlias = tuple[int, UUID]


def among(table: Table, model: int, uids: Sequence[UUID]) -> ColumnElement[bool]:
    """Match the rows of these inferences; `uids` must not be empty."""
    listed = any_(literal(list(uids), ARRAY(UUID_TYPE(as_uuid=True))))
    # with bounds as well: pruning by them is cheap, by a long list it is not
    return and_(
        table.c.model == model,
        table.c.uid >= min(uids),
        table.c.uid <= max(uids),
        table.c.uid == listed,
    )


def by_model(identities: Iterable[Identity]) -> list[tuple[int, list[UUID]]]:
    """Return the uids of each model, both in order, which is the order of all row locks."""
    ordered = sorted(set(identities))
    return [
        (model, [uid for _, uid in group])
        for model, group in groupby(ordered, lambda identity: identity[0])
    ]


def marked_by(erasure: UUID, model: int, uids: Sequence[UUID]) -> ColumnElement[bool]:
    """Match these marks of an erasure, found by their uids.

    With `=` Postgres may read all marks of the erasure for each batch.
    """
    return among(erasing, model, uids) & erasing.c.erasure.is_not_distinct_from(erasure)


_KEYS = (
    inference.c.data_storage_key,
    inference.c.response_storage_key,
    inference.c.metadata_storage_key,
)
_UIDS = ARRAY(UUID_TYPE(as_uuid=True))
Part: TypeAlias = Literal["input", "response"]


async def stored(
    connection: AsyncConnection, identities: Iterable[tuple[int, UUID]]
) -> set[tuple[int, UUID]]:
    """Return the given (model, uid) pairs that are stored."""
    identities_stored: set[tuple[int, UUID]] = set()
    for model, uids in by_model(identities):
        query = select(inference.c.uid).where(among(inference, model, uids))
        rows = await connection.execute(query)
        identities_stored |= {(model, uid) for uid in rows.scalars()}
    return identities_stored


async def without_parts(
    connection: AsyncConnection, identities: Iterable[Identity]
) -> dict[tuple[Identity, Part], set[str | None]]:
    """Return the erased parts of inferences, each with the objects of the other parts.

    They include parts that an eraser has claimed, and that may be erased already. Call it after
    `fence_shared`.
    """
    others_by_part: dict[tuple[Identity, Part], set[str | None]] = {}
    here = inference.c
    columns = (here.uid, here.data_deleted_at, here.response_deleted_at, *_KEYS)
    gone = or_(here.data_deleted_at.is_not(None), here.response_deleted_at.is_not(None))
    for model, uids in by_model(identities):
        # the claims first: the rows then show claims that end in between
        going = await _going(connection, model, uids)
        claimed = here.uid == any_(literal(sorted({uid for uid, _ in going}), _UIDS))
        query = select(*columns).where(among(inference, model, uids), or_(gone, claimed))
        for uid, input_gone, response_gone, *keys in await connection.execute(query):
            data, response, metadata = keys
            if input_gone is not None or (uid, "input") in going:
                others_by_part[(model, uid), "input"] = {response, metadata}
            if response_gone is not None or (uid, "response") in going:
                others_by_part[(model, uid), "response"] = {data, metadata}
    return others_by_part


async def _going(
    connection: AsyncConnection, model: int, uids: Sequence[UUID]
) -> set[tuple[UUID, str]]:
    """Return claimed parts. Parts that are only marked are deleted after this transaction."""
    here = erasing.c
    query = select(here.uid, here.scope).where(
        among(erasing, model, uids), here.scope != "inference", here.claimed_at.is_not(None)
    )
    return {(row.uid, row.scope) for row in await connection.execute(query)}
