"""Marking what was asked for, batch by batch, in the order of time.

A batch is found by one transaction, written down, and then takes effect by `apply`: the marks,
and how far the erasure is, in one transaction. What begins to match behind the place that was
reached is not of this erasure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.holds import kept
from inference_store.store.queries.ask import query_of
from inference_store.store.queries.bounded import Deadline
from inference_store.store.queries.page import find as find_page
from inference_store.store.queries.scope import window
from inference_store.store.retention import marks
from inference_store.store.retention.identities import among
from inference_store.store.tables import erasure, erasure_model, inference, registration, tombstone

from .chosen import truth_of
from .erasure import Erasure
from .progress import marked

KEYS: Final = (
    "data_storage_key",
    "response_storage_key",
    "metadata_storage_key",
    "sidecar_storage_key",
)
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
    """The next that match, oldest first; at most `limit`, and in few partitions.

    Raises OutOfTime when the filter cannot be answered in two minutes.
    """
    truth = await truth_of(connection, part.model, one.asked or {})
    query = (await query_of(connection, window(part.model, None, None), [truth])).in_order()
    if part.after is not None:
        query = query.after(part.after)
    page = await find_page(connection, query, limit=limit, deadline=Deadline.after(_SECONDS))
    uids = await marks.in_few_spans(connection, page.uids)
    if len(uids) < len(page.uids) or len(uids) == limit:
        return Found(uids, uids[-1])
    return Found(uids, page.searched if page.out_of_time else None)


async def body(
    connection: AsyncConnection, one: Erasure, model: int, found: Found
) -> dict[str, Any]:
    """A batch as it is written down: uids and the keys of their objects, for JSON."""
    name = select(registration.c.model_id).where(registration.c.model == model)
    columns = (inference.c.uid, *(inference.c[key] for key in KEYS))
    rows: list[Any] = []
    if found.uids:
        query = select(*columns).where(among(inference, model, found.uids))
        rows = list(await connection.execute(query.order_by(inference.c.uid)))
    return {
        "erasure": str(one.id),
        "cause": one.cause,
        "scope": one.scope,
        "run": None if one.run is None else str(one.run),
        "requested_by": one.requested_by,
        "model_id": await connection.scalar(name),
        "marks": [[str(uid), *keys] for uid, *keys in rows],
        "up_to": None if found.up_to is None else str(found.up_to),
    }


async def apply(connection: AsyncConnection, batch: Mapping[str, Any]) -> int:
    """Mark what a batch names: from the commit on no query shows it. How many. Repeatable."""
    number, scope = UUID(batch["erasure"]), batch["scope"]
    query = select(registration.c.model).where(registration.c.model_id == batch["model_id"])
    model = await connection.scalar(query)
    if model is None:
        return 0  # a model that is gone has no inferences
    await _exists(connection, batch, model)
    added = await _mark(connection, number, scope, model, batch["marks"])
    await marked(connection, number, added)
    await _reached(connection, number, model, batch["up_to"], added)
    return added


async def _mark(
    connection: AsyncConnection, number: UUID, scope: str, model: int, named: Sequence[Any]
) -> int:
    """What is stored with the keys that it has now; what is not, with those that were written."""
    keys = {UUID(uid): tuple(each) for uid, *each in named}
    if not keys:
        return 0
    uids = sorted(keys)
    columns = (inference.c.uid, *(inference.c[key] for key in KEYS))
    stored = select(*columns).where(among(inference, model, uids)).order_by(inference.c.uid)
    # An edit of the same inference holds its row: it is waited for, and seen.
    now = {uid: tuple(each) for uid, *each in await connection.execute(stored.with_for_update())}
    if len(now) < len(uids):
        gone = select(tombstone.c.uid).where(among(tombstone, model, uids))
        for uid in (await connection.execute(gone)).scalars():
            keys.pop(uid, None)
    arrivals = [(model, uid, scope, *each) for uid, each in sorted((keys | now).items())]
    return await marks.add(connection, number, await kept.refused(connection, number, arrivals))


async def _exists(connection: AsyncConnection, batch: Mapping[str, Any], model: int) -> None:
    """An erasure of a policy has no request that made it: its first batch does."""
    values = {
        "id": UUID(batch["erasure"]),
        "model": model,
        "cause": batch["cause"],
        "scope": batch["scope"],
        "run": None if batch["run"] is None else UUID(batch["run"]),
        "requested_by": batch["requested_by"],
        "state": "marking",
        "begun_at": func.now(),
    }
    await connection.execute(insert(erasure).values(values).on_conflict_do_nothing())


async def _reached(
    connection: AsyncConnection, number: UUID, model: int, up_to: str | None, added: int
) -> None:
    here = erasure_model.c
    values: dict[Any, Any] = {"marked": here.marked + added}
    values |= {"marked_at": func.now()} if up_to is None else {"marked_to": UUID(up_to)}
    where = (here.erasure == number, here.model == model)
    await connection.execute(erasure_model.update().where(*where).values(values))
