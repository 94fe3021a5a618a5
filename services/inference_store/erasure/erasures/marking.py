"""Marking what was asked for, batch by batch, in the order of time.

A batch is found by one transaction, written down, and then takes effect by `apply`: the marks,
and how far the erasure is, in one transaction. What begins to match behind the place that was
reached is not of this erasure.

What another erasure has marked, or lies in a span that is being dropped, is of it as well: the
other may be cancelled, fail or be held, and the span may open again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.holds import kept
from inference_store.erasure.mark import marks
from inference_store.erasure.policies import Scope
from inference_store.index import registrations
from inference_store.index.identities import among
from inference_store.index.tables import (
    erasing,
    erasure,
    erasure_model,
    inference,
    registration,
    tombstone,
)
from inference_store.inference.errors import Conflict
from inference_store.query.ask import build_query
from inference_store.query.bounded import Deadline
from inference_store.query.page import find_page
from inference_store.query.scan_range import range_of_time

from .chosen import build_predicate
from .erasure import Begun, Erasure
from .progress import marked

_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Part:
    """A model that is still to be marked, and the last uid that was looked at."""

    model: int
    after: UUID | None


@dataclass(frozen=True, slots=True)
class Found:
    """Uids that match; `up_to`: where to go on, None: there are no more."""

    uids: Sequence[UUID]
    up_to: UUID | None


async def parts(connection: AsyncConnection, one: Erasure) -> list[Part]:
    """The models of an erasure that are not all marked."""
    here = erasure_model.c
    query = select(here.model, here.marked_to).where(
        here.erasure == one.id, here.marked_at.is_(None)
    )
    rows = await connection.execute(query.order_by(here.model))
    return [Part(row.model, row.marked_to) for row in rows]


async def find(connection: AsyncConnection, one: Erasure, part: Part, *, limit: int) -> Found:
    """The next that match whatever the index lacks of them, oldest first; at most `limit`, and in
    few partitions.

    Raises OutOfTime when the filter cannot be answered in two minutes.
    """
    predicate = await build_predicate(connection, part.model, one.asked or {})
    where = range_of_time(part.model, None, None)
    query = await build_query(connection, where, [predicate], certain=True)
    # also what is hidden, by the marks of others and because its span is closed
    query = replace(query.in_order(), marks=False, closed=True)
    if part.after is not None:
        query = query.after(part.after)
    page = await find_page(connection, query, limit=limit, deadline=Deadline.after(_SECONDS))
    uids = await marks.in_few_spans(connection, page.uids)
    if len(uids) < len(page.uids) or len(uids) == limit:
        return Found(uids, uids[-1])
    return Found(uids, page.searched if page.out_of_time else None)


async def body(
    connection: AsyncConnection, one: Erasure | Begun, model: int, found: Found
) -> dict[str, Any]:
    """A batch as the ledger has it: uids and the keys of their objects, for JSON.

    What a hold keeps is named apart, to go on when the hold lets it go. Raises HoldUnreadable.
    """
    rows: list[Any] = []
    held: list[Any] = []
    if found.uids:
        columns = (inference.c.uid, *(inference.c[key] for key in marks.KEYS))
        query = select(*columns).where(among(inference, model, found.uids))
        stored = await connection.execute(query.order_by(inference.c.uid))
        arrivals = [(model, uid, one.scope, *keys) for uid, *keys in stored]
        left, held = await kept.leave_out(connection, arrivals)
        rows = [(uid, *keys) for _, uid, _, *keys in left]
    up_to = None if found.up_to is None else str(found.up_to)
    return await entry(connection, one, model, rows) | {"up_to": up_to, "held": held}


async def entry(
    connection: AsyncConnection, one: Erasure | Begun, model: int, rows: Sequence[Any]
) -> dict[str, Any]:
    """A batch of uids with the keys of their objects, stored or not, for the ledger."""
    query = select(registration.c.model_id).where(registration.c.model == model)
    name = await connection.scalar(query)
    if name is None:
        raise Conflict("A model of the erasure is not registered any more.")
    return {
        "erasure": str(one.id),
        "cause": one.cause,
        "scope": one.scope,
        "requested_by": one.requested_by,
        "run": None if one.run is None else str(one.run),
        "decided_by": list(one.decided_by),
        "model_id": name,
        "marks": [[str(uid), *keys] for uid, *keys in rows],
    }


async def apply(
    connection: AsyncConnection, batch: Mapping[str, Any], at: datetime, actor: str
) -> int:
    """Mark what a batch names: from the commit on no query shows it. How many. Repeatable."""
    number = UUID(batch["erasure"])
    model = await registrations.ensure(connection, batch["model_id"])
    await _exists(connection, batch, model, at, actor)
    added = await _mark(connection, number, batch["scope"], model, batch["marks"])
    await marked(connection, number, added)
    await kept.remember_left_out(connection, number, model, batch["scope"], batch.get("held", ()))
    if "up_to" in batch:
        await _reached(connection, number, model, batch["up_to"], added)
    return added


async def _mark(
    connection: AsyncConnection, number: UUID, scope: Scope, model: int, named: Sequence[Any]
) -> int:
    """What is stored with the keys that it has now; what is not, with those that were written."""
    uids = [UUID(uid) for uid, *_ in named]
    if not uids:
        return 0
    here = inference.c
    keys = [here[key] for key in marks.KEYS]
    stored = select(here.model, here.uid, literal(scope), literal(number), *keys)
    stored = stored.where(among(inference, model, uids)).order_by(here.uid)
    # An edit of the same inference holds its row: it is waited for, and seen.
    made = insert(erasing).from_select(marks.COLUMNS, stored.with_for_update())
    added = (await connection.execute(made.on_conflict_do_nothing())).rowcount
    if added < len(uids):
        added += await _mark_absent(connection, number, scope, model, named)
    return added


async def _mark_absent(
    connection: AsyncConnection, number: UUID, scope: Scope, model: int, named: Sequence[Any]
) -> int:
    """What a replay finds not stored, and was not erased here: an event may bring it again."""
    keys = {UUID(uid): tuple(each) for uid, *each in named}
    uids = sorted(keys)
    ours = erasing.c.erasure == number
    for table in (inference, tombstone, erasing):
        known = select(table.c.uid).where(among(table, model, uids))
        known = known.where(ours) if table is erasing else known
        for uid in (await connection.execute(known)).scalars():
            keys.pop(uid, None)
    arrivals = [(model, uid, scope, *each) for uid, each in sorted(keys.items())]
    return await marks.add(connection, number, arrivals)


async def _exists(
    connection: AsyncConnection, batch: Mapping[str, Any], model: int, at: datetime, actor: str
) -> None:
    """An erasure that no request made begins with its first batch."""
    asked = batch["cause"] == "request"
    values = {
        "id": UUID(batch["erasure"]),
        "model": model,
        "cause": batch["cause"],
        "scope": batch["scope"],
        "run": None if batch["run"] is None else UUID(batch["run"]),
        "requested_at": at,
        "requested_by": batch["requested_by"] or (actor if asked else None),
        "state": "pending" if asked else "marking",
    }
    await connection.execute(insert(erasure).values(values).on_conflict_do_nothing())
    here = erasure.c
    for each in batch.get("decided_by", ()):
        more = erasure.update().where(here.id == values["id"], ~here.decided_by.contains([each]))
        await connection.execute(more.values(decided_by=here.decided_by.op("||")([each])))


async def _reached(
    connection: AsyncConnection, number: UUID, model: int, up_to: str | None, added: int
) -> None:
    here = erasure_model.c
    values: dict[Any, Any] = {"marked": here.marked + added}
    values |= {"marked_at": func.now()} if up_to is None else {"marked_to": UUID(up_to)}
    where = (here.erasure == number, here.model == model)
    await connection.execute(erasure_model.update().where(*where).values(values))
