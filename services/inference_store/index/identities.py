"""Saying "these inferences" so that Postgres looks, and locks, in their partitions alone."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, Table, and_, any_, literal
from sqlalchemy import UUID as UUID_TYPE

from inference_store.index.tables import erasing

Identity: TypeAlias = tuple[int, UUID]


def among(table: Table, model: int, uids: Sequence[UUID]) -> ColumnElement[bool]:
    """The rows of these inferences; `uids` are not empty."""
    listed = any_(literal(list(uids), ARRAY(UUID_TYPE(as_uuid=True))))
    # the bounds are said too: pruning by them costs nothing, by a long list it does
    return and_(
        table.c.model == model,
        table.c.uid >= min(uids),
        table.c.uid <= max(uids),
        table.c.uid == listed,
    )


def by_model(identities: Iterable[Identity]) -> list[tuple[int, list[UUID]]]:
    """The uids of each model, both in order: whoever locks rows locks them in this one."""
    ordered = sorted(set(identities))
    return [
        (model, [uid for _, uid in group]) for model, group in groupby(ordered, lambda one: one[0])
    ]


def marked_by(erasure: UUID, model: int, uids: Sequence[UUID]) -> ColumnElement[bool]:
    """These marks of an erasure, found by their uids.

    By `=` Postgres may read all marks of the erasure to find those of a batch, batch after batch.
    """
    return among(erasing, model, uids) & erasing.c.erasure.is_not_distinct_from(erasure)
