"""Begins the counts of a span: from then on every writer outdates them.

One transaction: insert the counts' rows · take the lock, which is free only while nobody writes ·
create the trigger · commit. Whoever wrote before has committed; whoever writes afterwards fires the
trigger, which finds the rows. So a count is of what exists after the commit, or it is outdated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import delete, exists, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.partitions import Span
from inference_store.index.tables import inference, outdated_count, partition_count, partition_span
from inference_store.inference.events import uid_floor

QUIET: Final = timedelta(minutes=15)
"""A partition that was written since is not counted again."""
_TRIGGER: Final = "outdate_counts"
_THERE: Final = text(
    "SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass(:leaf) AND tgname = :name"
)
# Each model by one look-up in the primary key.
_MODELS = (
    "WITH RECURSIVE known AS (SELECT min(model) AS model FROM {leaf} UNION ALL"
    " SELECT (SELECT min(model) FROM {leaf} WHERE model > known.model) FROM known"
    " WHERE known.model IS NOT NULL) SELECT model FROM known WHERE model IS NOT NULL"
)


@dataclass(frozen=True, slots=True)
class BegunCount:
    """The count of one model in one span."""

    id: int
    model: int
    lo: UUID
    hi: UUID


async def find_ended(connection: AsyncConnection, before: datetime) -> list[Span]:
    """Return the open spans that ended before an instant, newest first."""
    here = partition_span.c
    query = select(here.lo, here.hi, here.name).where(here.state == "open", here.hi <= before)
    rows = await connection.execute(query.order_by(here.lo.desc()))
    return [Span(row.lo, row.hi, row.name) for row in rows]


async def find_uncounted(connection: AsyncConnection, span: Span, *, quiet: timedelta) -> list[int]:
    """Return the models of a span that need counts: none are valid, and nothing was written
    lately."""
    found = await connection.execute(text(_MODELS.format(leaf=_name_leaf(span))))
    counted, outdated = partition_count.c, outdated_count.c
    late = exists().where(outdated.partition_count == counted.id)
    holds = counted.counted_at.is_not(None) & ~late
    # begun lately and not finished: by another process, or it took too long
    begun = counted.counted_at.is_(None) & (counted.begun_at > func.now() - quiet)
    written = late.where(outdated.at > func.now() - quiet)
    settled = select(counted.model).where(counted.span == span.name, holds | begun | written)
    return sorted(set(found.scalars()) - set((await connection.execute(settled)).scalars()))


async def begin(engine: AsyncEngine, span: Span, models: Sequence[int]) -> list[BegunCount]:
    """Begin the counts of models in a span; none where it is being dropped.

    Raises LockNotAvailableError while it is written.
    """
    async with engine.connect() as connection:
        await connection.execute(text("SET LOCAL lock_timeout = '500ms'"))
        await _delete_counts(connection, span, models)
        rows = [
            {"span": span.name, "model": model, "lo": uid_floor(span.lo), "hi": uid_floor(span.hi)}
            for model in models
        ]
        here = partition_count.c
        made = insert(partition_count).returning(here.id, here.model, here.lo, here.hi)
        begun = [BegunCount(*row) for row in await connection.execute(made.values(rows))]
        await _create_trigger(connection, span)
        # Checked under the lock: in a closed span inferences are deleted first, and it may be
        # reopened.
        here = partition_span.c
        state = select(here.state).where(here.name == span.name)
        if await connection.scalar(state) != "open":
            return []
        await connection.commit()
    return begun


async def _delete_counts(connection: AsyncConnection, span: Span, models: Sequence[int]) -> None:
    """Delete the earlier counts, and the notes that outdated them."""
    here = partition_count.c
    gone = delete(partition_count).where(here.span == span.name, here.model.in_(models))
    ids = list((await connection.execute(gone.returning(here.id))).scalars())
    await connection.execute(
        delete(outdated_count).where(outdated_count.c.partition_count.in_(ids))
    )


async def _create_trigger(connection: AsyncConnection, span: Span) -> None:
    """Lock without waiting for a writer: none writes before the commit, and each later one is
    noted."""
    leaf = _name_leaf(span)
    await connection.execute(text(f"LOCK TABLE {leaf} IN SHARE ROW EXCLUSIVE MODE NOWAIT"))
    there = text(
        "SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass(:leaf) AND tgname = :name"
    )
    if await connection.scalar(there, {"leaf": leaf, "name": _TRIGGER}) is None:
        # Edits raise the revision; the deletion of an input changes nothing that is counted.
        await connection.execute(
            text(
                f"CREATE TRIGGER {_TRIGGER} AFTER INSERT OR DELETE OR UPDATE OF revision ON {leaf}"
                f" FOR EACH ROW EXECUTE FUNCTION outdate_counts('{span.name}')"
            )
        )


async def delete_outdated(connection: AsyncConnection) -> None:
    """Delete notes of counts that are gone.

    Their partition was dropped, or counted again while a writer's note was not visible yet.
    """
    counted = exists().where(partition_count.c.id == outdated_count.c.partition_count)
    await connection.execute(delete(outdated_count).where(~counted))


def _name_leaf(span: Span) -> str:
    return f"{inference.name}_{span.name}"
