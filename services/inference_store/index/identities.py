"""Selects inferences so that Postgres reads, and locks, only their partitions."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, Table, and_, any_, literal
from sqlalchemy import UUID as UUID_TYPE

from inference_store.index.tables import erasing

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
