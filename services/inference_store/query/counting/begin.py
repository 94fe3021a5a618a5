"""Beginning the counts of a span: from then on every writer outdates them.

One transaction: the counts' rows · the lock, which is to be had only while nobody writes · the
trigger · commit. Whoever wrote before has committed; whoever writes after it finds the trigger,
and by it the rows. So a count is of what is there after the commit, or outdated.
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
# Each model by one look into the primary key.
_MODELS = (
    "WITH RECURSIVE known AS (SELECT min(model) AS model FROM {leaf} UNION ALL"
    " SELECT (SELECT min(model) FROM {leaf} WHERE model > known.model) FROM known"
    " WHERE known.model IS NOT NULL) SELECT model FROM known WHERE model IS NOT NULL"
)


@dataclass(frozen=True, slots=True)
class Begun:
    """The count of one model in one span."""

    id: int
    model: int
    lo: UUID
    hi: UUID


async def ended(connection: AsyncConnection, before: datetime) -> list[Span]:
    """The open spans that ended before an instant, newest first."""
    here = partition_span.c
    query = select(here.lo, here.hi, here.name).where(here.state == "open", here.hi <= before)
    rows = await connection.execute(query.order_by(here.lo.desc()))
    return [Span(row.lo, row.hi, row.name) for row in rows]


async def uncounted(connection: AsyncConnection, span: Span, *, quiet: timedelta) -> list[int]:
    """The models with inferences in a span whose counts are wanted: there are none that hold, and
    nothing was written lately."""
    found = await connection.execute(text(_MODELS.format(leaf=_leaf(span))))
    counted, outdated = partition_count.c, outdated_count.c
    late = exists().where(outdated.partition_count == counted.id)
    holds = counted.counted_at.is_not(None) & ~late
    # begun lately and not done: by somebody else, or it took too long
    begun = counted.counted_at.is_(None) & (counted.begun_at > func.now() - quiet)
    written = late.where(outdated.at > func.now() - quiet)
    settled = select(counted.model).where(counted.span == span.name, holds | begun | written)
    return sorted(set(found.scalars()) - set((await connection.execute(settled)).scalars()))


async def begin(engine: AsyncEngine, span: Span, models: Sequence[int]) -> list[Begun]:
    """Begin the counts of models in a span; none where it is being dropped.

    Raises LockNotAvailableError while it is written.
    """
    async with engine.connect() as connection:
        await connection.execute(text("SET LOCAL lock_timeout = '500ms'"))
        await _forget(connection, span, models)
        rows = [
            {"span": span.name, "model": model, "lo": uid_floor(span.lo), "hi": uid_floor(span.hi)}
            for model in models
        ]
        here = partition_count.c
        made = insert(partition_count).returning(here.id, here.model, here.lo, here.hi)
        begun = [Begun(*row) for row in await connection.execute(made.values(rows))]
        await _guard(connection, span)
        # Looked at under the lock: of a closed span inferences go first, and it may be reopened.
        here = partition_span.c
        state = select(here.state).where(here.name == span.name)
        if await connection.scalar(state) != "open":
            return []
        await connection.commit()
    return begun


async def _forget(connection: AsyncConnection, span: Span, models: Sequence[int]) -> None:
    """The counts that were, and what outdated them."""
    here = partition_count.c
    gone = delete(partition_count).where(here.span == span.name, here.model.in_(models))
    ids = list((await connection.execute(gone.returning(here.id))).scalars())
    await connection.execute(
        delete(outdated_count).where(outdated_count.c.partition_count.in_(ids))
    )


async def _guard(connection: AsyncConnection, span: Span) -> None:
    """Wait for no writer, and let none write before the commit; each that comes is noticed."""
    leaf = _leaf(span)
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


async def tidy(connection: AsyncConnection) -> None:
    """Forget notes of counts that are gone: their partition was dropped, or counted again while
    a writer's note was not yet to be seen."""
    counted = exists().where(partition_count.c.id == outdated_count.c.partition_count)
    await connection.execute(delete(outdated_count).where(~counted))


def _leaf(span: Span) -> str:
    return f"{inference.name}_{span.name}"
