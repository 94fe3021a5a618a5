"""How far an erasure is.

pending → marking → deleting_objects → verifying → deleting_rows → certifying → certified, or
`failed`, with the reason; a failed one is tried again with every run; or `partly_held`, which goes
on when holds let go. A state says what is being done with the present batch; `certifying` is said
when no mark is left, and `deleted` instead of it where no key signs certificates.
`cancelling`: marks are being taken away, which ends as `cancelled`. `giving_up`: what holds keep
is being given up, which goes on with `certifying`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, Text, case, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.holds import kept
from inference_store.index import key_registry
from inference_store.index.tables import erasing, erasure, erasure_model
from inference_store.platform.metrics import BYTES_DELETED

from . import obstacles
from .erasure import ENDED, Erasure, State, models_of

_ERROR_CHARACTERS = 2000
STOPPED = ("cancelling", "cancelled")


async def advance(connection: AsyncConnection, id: UUID, state: State) -> bool:
    """Say what is being done now; False: it has been cancelled, and nothing may be done."""
    values: dict[str, Any] = {
        "state": state,
        "begun_at": func.coalesce(erasure.c.begun_at, func.now()),
    }
    if state in ENDED:
        values["asked"] = without_values()
    where = (erasure.c.id == id, erasure.c.state.not_in(STOPPED))
    changed = await connection.execute(erasure.update().where(*where).values(values))
    return changed.rowcount > 0


async def begin_deleting(connection: AsyncConnection, id: UUID) -> bool:
    """As `advance`: from the commit on it cannot be cancelled. Before any object is touched."""
    since = func.coalesce(erasure.c.deleting_since, func.now())
    values = {
        "state": "deleting_objects",
        "deleting_since": since,
        "begun_at": func.coalesce(erasure.c.begun_at, func.now()),
    }
    where = (erasure.c.id == id, erasure.c.state.not_in(STOPPED))
    return (await connection.execute(erasure.update().where(*where).values(values))).rowcount > 0


async def marked(connection: AsyncConnection, id: UUID, count: int) -> None:
    """Add to how many were marked."""
    changed = erasure.update().where(erasure.c.id == id)
    await connection.execute(changed.values(marked=erasure.c.marked + count))


async def count(
    connection: AsyncConnection,
    id: UUID,
    *,
    inferences: int = 0,
    objects: int = 0,
    versions: int = 0,
    bytes: int = 0,
    table_rows: Mapping[str, int] | None = None,
    received: tuple[datetime, datetime] | None = None,
    by_model: Mapping[int, int] | None = None,
) -> None:
    """Add to what has been erased; `received`: when the oldest and the newest of it were."""
    await _count_models(connection, id, by_model or {})
    here = erasure.c
    values: dict[str, Any] = {
        "inferences": here.inferences + inferences,
        "objects": here.objects + objects,
        "versions": here.versions + versions,
        "bytes": here.bytes + bytes,
    }
    if table_rows:
        # one writer: the service that leads
        before = await connection.scalar(select(here.table_rows).where(here.id == id)) or {}
        names = before.keys() | table_rows.keys()
        total = {name: before.get(name, 0) + table_rows.get(name, 0) for name in sorted(names)}
        values["table_rows"] = total
    if received is not None:
        values["oldest"] = func.least(here.oldest, received[0])
        values["newest"] = func.greatest(here.newest, received[1])
    await connection.execute(erasure.update().where(here.id == id).values(values))
    BYTES_DELETED.inc(bytes)


async def _count_models(connection: AsyncConnection, id: UUID, erased: Mapping[int, int]) -> None:
    here = erasure_model.c
    for model, number in erased.items():
        changed = erasure_model.update().where(here.erasure == id, here.model == model)
        await connection.execute(changed.values(erased=here.erased + number))


async def finish(
    connection: AsyncConnection, one: Erasure, *, error: str | None, certifying: bool = False
) -> State:
    """`deleted` when no mark is left (`certifying`: its certificate is next), else `failed` with
    the reason; `partly_held` where a hold keeps some of it: it goes on when that is released.

    With the inferences go the examples that the key registry shows of their values. Once, in the
    transaction that says so: what crashed before is finished again. None can come after, for a
    delta is written by the transaction that stores or edits its inference: it was committed
    before the mark or before the claim's gate, and what was erased is not stored again.
    """
    if one.scope == "inference":
        for model in await models_of(connection, one):
            await key_registry.forget_examples(connection, model)
    marks = select(erasing).where(erasing.c.erasure == one.id)
    left = await connection.scalar(select(marks.exists()))
    held = await kept.count(connection, one.id)
    ended: State = "certifying" if certifying else "deleted"
    state: State = "failed" if left else "partly_held" if held else ended
    reason = (error or "something was left over")[:_ERROR_CHARACTERS] if left else None
    values = {
        "state": state,
        "error": reason,
        "held": held,
        "finished_at": func.now() if state == ended else None,
        "retry_at": still_to_come() if left else None,
        "asked": without_values() if state in ENDED else erasure.c.asked,
    }
    if not left:
        await obstacles.clear(connection, one.id)
    where = (erasure.c.id == one.id, erasure.c.state.not_in(STOPPED))
    changed = await connection.execute(erasure.update().where(*where).values(values))
    return state if changed.rowcount else "cancelling"


async def failed(connection: AsyncConnection, id: UUID, error: str) -> None:
    """It could not go on, for this reason: it is tried again with the next run."""
    values = {
        "state": "failed",
        "error": error[:_ERROR_CHARACTERS],
        "retry_at": still_to_come(),
    }
    where = (erasure.c.id == id, erasure.c.state.not_in(STOPPED))
    await connection.execute(erasure.update().where(*where).values(values))


async def state_of(connection: AsyncConnection, id: UUID) -> State | None:
    """What is being done now."""
    query = select(erasure.c.state).where(erasure.c.id == id)
    return cast(State | None, await connection.scalar(query))


def without_values() -> ColumnElement[Any]:
    """What was asked for, without ids and the subject's value: it is over, and they are erased."""
    asked, ids = erasure.c.asked, "inference_ids"
    count = func.jsonb_build_object("ids", func.jsonb_array_length(asked[ids]))
    rest = asked.op("#-")(literal(["subject", "value"], ARRAY(Text)))
    return case((asked.has_key(ids), count), else_=rest)


def still_to_come() -> ColumnElement[Any]:
    """What has just been tried is not tried again at once."""
    return case((erasure.c.retry_at > func.now(), erasure.c.retry_at), else_=None)
