"""Closes spans of time of which nothing may be kept: closed to writers, emptied, dropped as a
whole.

A span is closed in the fence, and every writer looks for closed spans after it has taken the fence
itself. So no row can be written between the check that found everything expired and the drop.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Table, and_, func, select, union_all
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.index import registrations
from inference_store.index.inferences import among
from inference_store.index.partitions import TimePartition, TimePartitions
from inference_store.index.tables import erased_batch, erased_span, inference, partition_span
from inference_store.inference.events import received_at_of, uid_floor

from .locks import fence_exclusive

_NEW = timedelta(hours=1)
_LOOKS = 50


async def find_closed(connection: AsyncConnection, instants: Iterable[datetime]) -> set[datetime]:
    """Return the instants that no open span has: their span is being dropped, or was. After the
    fence.

    A writer parks such events, and reads the catalogue of spans again.
    """
    times = set(instants)
    if not times:
        return set()
    here = partition_span.c
    query = select(here.lo, here.hi, here.name).where(
        here.state == "open", here.lo <= max(times), here.hi > min(times)
    )
    rows = await connection.execute(query)
    partitions = TimePartitions(TimePartition(row.lo, row.hi, row.name) for row in rows)
    return set(partitions.missing(times))


async def list_ending(
    connection: AsyncConnection, *, until: datetime | None
) -> list[tuple[TimePartition, bool]]:
    """Return the spans that begin before `until`, the oldest first, and closed ones; True: it is
    closed."""
    here = partition_span.c
    is_ending = here.state == "dropping"
    if until is not None:
        is_ending |= here.lo < until
    query = select(partition_span).where(is_ending).order_by(here.lo)
    return [
        (TimePartition(row.lo, row.hi, row.name), row.state == "dropping")
        for row in await connection.execute(query)
    ]


async def list_models(
    connection: AsyncConnection, span: TimePartition, table: Table = inference
) -> list[int]:
    """Return the models that have inferences, or rows of a table, in a span: one index lookup
    each."""
    models = await registrations.every_model(connection)
    with_rows: list[int] = []
    for start in range(0, len(models), _LOOKS):
        # Each query names its model, so that it goes to the one shard that may have it.
        looks = [
            select(table.c.model).where(table.c.model == model, _within_span(table, span)).limit(1)
            for model in models[start : start + _LOOKS]
        ]
        with_rows += (await connection.execute(union_all(*looks))).scalars()
    return sorted(with_rows)


async def close_span(
    connection: AsyncConnection, span: TimePartition, cutoffs: Mapping[int, datetime | None]
) -> bool:
    """Close a span if every model in it has a cutoff after its end; return whether it is closed.

    Repeatable. The models' spans are recorded as erased from here on.
    """
    await fence_exclusive(connection)
    if not await has_ended(connection, span, cutoffs):
        return False
    models = await list_models(connection, span)
    here = partition_span.c
    closing = partition_span.update().where(here.name == span.name, here.state == "open")
    if not models:
        # A new empty span was made for an event that is about to be written.
        closing = closing.where(here.created_at < func.now() - _NEW)
    changed = await connection.execute(closing.values(state="dropping"))
    for model in models if changed.rowcount else ():
        values = {"model": model, "lo": span.lo, "hi": span.hi}
        await connection.execute(insert(erased_span).values(values).on_conflict_do_nothing())
    return changed.rowcount > 0


async def has_ended(
    connection: AsyncConnection, span: TimePartition, cutoffs: Mapping[int, datetime | None]
) -> bool:
    """Return whether every model that has inferences in a span keeps none of them."""
    ends = [cutoffs.get(model) for model in await list_models(connection, span)]
    return all(end is not None and end >= span.hi for end in ends)


async def has_held(connection: AsyncConnection, span: TimePartition) -> bool:
    """Return whether a legal hold protects anything in a span. Raises HoldUnreadable.

    It is called without the fence, because it may take long: the claims find what is held a moment
    later.
    """
    if not await holds.list_in_force(connection):
        return False
    lo, hi = uid_floor(span.lo), uid_floor(span.hi)
    for model in await list_models(connection, span):
        held = await holds.build_held_condition(connection, model, lo=lo, hi=hi)
        if held is None:
            continue
        held_rows = select(inference.c.uid).where(
            inference.c.model == model, _within_span(inference, span), held
        )
        if (await connection.execute(held_rows.limit(1))).first() is not None:
            return True
    return False


async def list_closed(connection: AsyncConnection, model: int) -> list[TimePartition]:
    """Return the closed spans of which something of a model was to be dropped."""
    here = partition_span.c
    query = select(here.lo, here.hi, here.name).distinct()
    query = query.where(here.state == "dropping", erased_span.c.model == model)
    query = query.where(erased_span.c.lo < here.hi, erased_span.c.hi > here.lo)
    return [TimePartition(row.lo, row.hi, row.name) for row in await connection.execute(query)]


async def reopen_span(connection: AsyncConnection, span: TimePartition) -> None:
    """Open a closed span again: what is left of it is kept, by a changed policy or a legal hold.

    Rows without their inference were deleted before, outside the fence.
    """
    await fence_exclusive(connection)
    for model in await list_models(connection, span):
        await _shorten_erased_span(connection, model, span)
    here = partition_span.c.name == span.name
    await connection.execute(partition_span.update().where(here).values(state="open"))


async def _shorten_erased_span(
    connection: AsyncConnection, model: int, span: TimePartition
) -> None:
    """Shorten it to the last uid on the lists: nothing after that was deleted."""
    here = erased_span.c
    where = (here.model == model, here.lo == span.lo, here.hi == span.hi)
    lists = select(erased_batch.c.last).where(
        erased_batch.c.model == model,
        erased_batch.c.first >= uid_floor(span.lo),
        erased_batch.c.first < uid_floor(span.hi),
    )
    last = await connection.scalar(lists.order_by(erased_batch.c.last.desc()).limit(1))
    deleted = await connection.execute(erased_span.delete().where(*where))
    if last is not None and deleted.rowcount:
        end = received_at_of(last) + timedelta(microseconds=1)
        values = {"model": model, "lo": span.lo, "hi": end}
        await connection.execute(insert(erased_span).values(values).on_conflict_do_nothing())


async def delete_orphans(
    connection: AsyncConnection, table: Table, model: int, span: TimePartition, *, limit: int
) -> int:
    """Delete rows whose inference was deleted first, because all of a closed span was to be
    dropped.

    Those of at most `limit` inferences; return of how many. Nobody writes in a closed span.
    """
    parent = select(inference.c.uid).where(
        inference.c.model == model, inference.c.uid == table.c.uid, _within_span(inference, span)
    )
    query = select(table.c.uid).distinct().order_by(table.c.uid).limit(limit)
    query = query.where(table.c.model == model, _within_span(table, span), ~parent.exists())
    uids = list((await connection.execute(query)).scalars())
    if uids:
        await connection.execute(table.delete().where(among(table, model, uids)))
    return len(uids)


def _within_span(table: Table, span: TimePartition) -> ColumnElement[bool]:
    return and_(table.c.uid >= uid_floor(span.lo), table.c.uid < uid_floor(span.hi))
