"""Inferences by the id that a client knows them by: its own, an alias, or `uid:<uuid>`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Select, select, union, union_all
from sqlalchemy.dialects.postgresql import TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.errors import Invalid, NotFound
from inference_store.store.events.uid import received_at_of
from inference_store.store.partitions import spans
from inference_store.store.tables import inference, inference_alias

from .bounded import Deadline, fetch
from .operand import one
from .scope import HIGHEST, LOWEST, Scope, groups, has_marks, pieces, unmarked

UID_PREFIX = "uid:"
# An id that a client repeats for ever is counted no further.
MOST_COUNTED = 1_000
MOST_SECONDS = 10.0
"""A look-up by name takes no longer, however many partitions there are."""


@dataclass(frozen=True, slots=True)
class Same:
    """The inferences of one id, newest first."""

    uids: tuple[UUID, ...]

    @property
    def newest(self) -> UUID:
        """The one that the id alone means."""
        return self.uids[0]


async def by_id(
    connection: AsyncConnection,
    model: int,
    inference_id: str,
    *,
    most: int = MOST_COUNTED,
    seconds: float = MOST_SECONDS,
) -> Same:
    """The inferences of that id, up to `most`.

    Raises NotFound, Invalid for a malformed uid, OutOfTime.
    """
    uid = uid_in(inference_id)
    found = (
        await _by_uid(connection, model, uid)
        if uid is not None
        else await _by_name(connection, model, inference_id, most, Deadline.after(seconds))
    )
    if not found:
        raise NotFound(f"The model has no inference {inference_id!r}.")
    return Same(tuple(found))


def uid_in(inference_id: str) -> UUID | None:
    """The uid that `uid:<uuid>` names; None for a client's id. Raises Invalid."""
    if not inference_id.startswith(UID_PREFIX):
        return None
    try:
        return UUID(inference_id.removeprefix(UID_PREFIX))
    except ValueError:
        raise Invalid(f"{inference_id!r} is not `uid:` and a UUID.") from None


async def _by_uid(connection: AsyncConnection, model: int, uid: UUID) -> Sequence[UUID]:
    """The uid itself if it is there; its time says where to look."""
    try:
        at = received_at_of(uid)
        around = await spans(connection, lo=at, hi=at + timedelta(microseconds=1))
    except OverflowError:
        return []
    if not around or at >= datetime(9999, 1, 1, tzinfo=UTC):
        return []
    scope = Scope(model, uid, UUID(int=min(uid.int + 1, HIGHEST.int)))
    rows = select(inference.c.uid).where(scope.of(inference))
    if await has_marks(connection, model):
        rows = rows.where(unmarked(scope, inference.c.uid))
    return list((await connection.execute(rows)).scalars())


async def _by_name(
    connection: AsyncConnection, model: int, name: str, most: int, deadline: Deadline
) -> Sequence[UUID]:
    marks = await has_marks(connection, model)
    found: list[UUID] = []
    everything = Scope(model, LOWEST, HIGHEST)
    for group in groups(await pieces(connection, everything, newest_first=True)):
        parts = [_named(scope, name, most, marks=marks) for scope in group]
        statement = union_all(*parts) if len(parts) > 1 else parts[0]
        # within a savepoint: the locks of a group are gone before the next one is looked at
        rows = await fetch(connection, statement, deadline, what="look up an id")
        found += sorted((row[0] for row in rows), reverse=True)
        if len(found) >= most:
            break
    return found[:most]


def _named(scope: Scope, name: str, most: int, *, marks: bool) -> Select[Any]:
    text = one(name, TEXT())
    own, alias = inference, inference_alias
    both = union(
        select(own.c.uid).where(scope.of(own), own.c.inference_id == text),
        select(alias.c.uid).where(scope.of(alias), alias.c.alias == text),
    ).subquery()
    rows = select(both.c.uid).order_by(both.c.uid.desc()).limit(most)
    return rows.where(unmarked(scope, both.c.uid)) if marks else rows
