"""Spans of time of which nothing may be kept: closed to writers, emptied, dropped as a whole.

A span is closed in the gate, and every writer looks for closed spans after it has taken the gate
itself. So no row can be written between the look that found everything expired and the drop.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Table, and_, func, select, union_all
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.mark.marks import gate_exclusive
from inference_store.index import registrations
from inference_store.index.identities import among
from inference_store.index.partitions import Span, Spans
from inference_store.index.tables import erased_batch, erased_span, inference, partition_span
from inference_store.inference.events import received_at_of, uid_floor

_NEW = timedelta(hours=1)
_LOOKS = 50


async def closed(connection: AsyncConnection, instants: Iterable[datetime]) -> set[datetime]:
    """Those instants that no open span has: it is being dropped, or is gone. After the gate.

    A writer parks such events, and reads the catalogue of spans again.
    """
    wanted = set(instants)
    if not wanted:
        return set()
    here = partition_span.c
    query = select(here.lo, here.hi, here.name).where(
        here.state == "open", here.lo <= max(wanted), here.hi > min(wanted)
    )
    rows = await connection.execute(query)
    known = Spans(Span(row.lo, row.hi, row.name) for row in rows)
    return set(known.missing(wanted))


async def ending(connection: AsyncConnection, *, until: datetime | None) -> list[tuple[Span, bool]]:
    """The spans that begin before `until`, oldest first, and closed ones; True: it is closed."""
    here = partition_span.c
    wanted = here.state == "dropping"
    if until is not None:
        wanted |= here.lo < until
    query = select(partition_span).where(wanted).order_by(here.lo)
    return [
        (Span(row.lo, row.hi, row.name), row.state == "dropping")
        for row in await connection.execute(query)
    ]


async def models_in(connection: AsyncConnection, span: Span, table: Table = inference) -> list[int]:
    """The models that have inferences, or rows of a table, in a span: a look into an index each."""
    models = await registrations.every_model(connection)
    found: list[int] = []
    for start in range(0, len(models), _LOOKS):
        # Each look names its model, so that it goes to the one shard that may have it.
        looks = [
            select(table.c.model).where(table.c.model == model, _in(table, span)).limit(1)
            for model in models[start : start + _LOOKS]
        ]
        found += (await connection.execute(union_all(*looks))).scalars()
    return sorted(found)


async def close(
    connection: AsyncConnection, span: Span, cutoffs: Mapping[int, datetime | None]
) -> bool:
    """Close a span, if every model in it has a cutoff after its end; whether it is closed.

    Repeatable. The models' spans are remembered as erased from here on.
    """
    await gate_exclusive(connection)
    if not await has_ended(connection, span, cutoffs):
        return False
    models = await models_in(connection, span)
    here = partition_span.c
    closing = partition_span.update().where(here.name == span.name, here.state == "open")
    if not models:
        # An empty one that is new was made for an event that is about to be written.
        closing = closing.where(here.created_at < func.now() - _NEW)
    changed = await connection.execute(closing.values(state="dropping"))
    for model in models if changed.rowcount else ():
        values = {"model": model, "lo": span.lo, "hi": span.hi, "listed": True}
        await connection.execute(insert(erased_span).values(values).on_conflict_do_nothing())
    return changed.rowcount > 0


async def has_ended(
    connection: AsyncConnection, span: Span, cutoffs: Mapping[int, datetime | None]
) -> bool:
    """Whether every model that has inferences in a span keeps none of them."""
    ends = [cutoffs.get(model) for model in await models_in(connection, span)]
    return all(end is not None and end >= span.hi for end in ends)


async def has_held(connection: AsyncConnection, span: Span) -> bool:
    """Whether a legal hold keeps anything in a span. Asked without the gate, for it may take long:
    what is held a moment later is found by the claims. Raises HoldUnreadable."""
    if not await holds.in_force(connection):
        return False
    lo, hi = uid_floor(span.lo), uid_floor(span.hi)
    for model in await models_in(connection, span):
        held = await holds.predicate(connection, model, lo=lo, hi=hi)
        if held is None:
            continue
        some = select(inference.c.uid).where(inference.c.model == model, _in(inference, span), held)
        if (await connection.execute(some.limit(1))).first() is not None:
            return True
    return False


async def closed_before(connection: AsyncConnection, model: int) -> list[Span]:
    """Spans that are closed, of which something of a model was to be dropped."""
    here = partition_span.c
    query = select(here.lo, here.hi, here.name).distinct()
    query = query.where(here.state == "dropping", erased_span.c.model == model)
    query = query.where(erased_span.c.lo < here.hi, erased_span.c.hi > here.lo)
    return [Span(row.lo, row.hi, row.name) for row in await connection.execute(query)]


async def reopen(connection: AsyncConnection, span: Span) -> None:
    """Open a closed span again: what is left of it is to be kept, by a policy that has changed or
    by a legal hold. Rows without their inference went before, outside the gate."""
    await gate_exclusive(connection)
    for model in await models_in(connection, span):
        await _remember_less(connection, model, span)
        await _remember_listed(connection, model, span)
    here = partition_span.c.name == span.name
    await connection.execute(partition_span.update().where(here).values(state="open"))


async def _remember_less(connection: AsyncConnection, model: int, span: Span) -> None:
    """Of what is not listed: inferences went in the order of time, up to the first that is left."""
    first = select(inference.c.uid).where(inference.c.model == model, _in(inference, span))
    first = first.order_by(inference.c.uid).limit(1)
    ends = received_at_of((await connection.execute(first)).scalar_one())
    here = erased_span.c
    where = (here.model == model, here.lo == span.lo, here.hi == span.hi, ~here.listed)
    if ends <= span.lo:
        await connection.execute(erased_span.delete().where(*where))
    else:
        await connection.execute(erased_span.update().where(*where).values(hi=ends))


async def _remember_listed(connection: AsyncConnection, model: int, span: Span) -> None:
    """Of what is listed, up to the last on the lists: behind it nothing went."""
    here = erased_span.c
    where = (here.model == model, here.lo == span.lo, here.hi == span.hi, here.listed)
    lists = select(erased_batch.c.last).where(
        erased_batch.c.model == model,
        erased_batch.c.first >= uid_floor(span.lo),
        erased_batch.c.first < uid_floor(span.hi),
    )
    last = await connection.scalar(lists.order_by(erased_batch.c.last.desc()).limit(1))
    gone = await connection.execute(erased_span.delete().where(*where))
    if last is not None and gone.rowcount:
        ends = received_at_of(last) + timedelta(microseconds=1)
        values = {"model": model, "lo": span.lo, "hi": ends, "listed": True}
        await connection.execute(insert(erased_span).values(values).on_conflict_do_nothing())


async def delete_orphans(
    connection: AsyncConnection, table: Table, model: int, span: Span, *, limit: int
) -> int:
    """Rows whose inference went first, since all of a closed span was to be dropped: those of so
    many inferences at most; of how many. Nobody writes in a closed span."""
    parent = select(inference.c.uid).where(
        inference.c.model == model, inference.c.uid == table.c.uid, _in(inference, span)
    )
    query = select(table.c.uid).distinct().order_by(table.c.uid).limit(limit)
    query = query.where(table.c.model == model, _in(table, span), ~parent.exists())
    uids = list((await connection.execute(query)).scalars())
    if uids:
        await connection.execute(table.delete().where(among(table, model, uids)))
    return len(uids)


def _in(table: Table, span: Span) -> ColumnElement[bool]:
    return and_(table.c.uid >= uid_floor(span.lo), table.c.uid < uid_floor(span.hi))
