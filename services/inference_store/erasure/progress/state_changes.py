"""Changes the state of an erasure.

pending → marking → deleting_objects → verifying → deleting_rows → certifying → certified, or
`failed`, with the reason; a failed one is tried again with every run; or `partly_held`, which goes
on when holds are released. A state describes the work on the present batch; `certifying` begins
when no mark is left, and `deleted` replaces it if no key signs certificates. `cancelling`: marks
are being removed, which ends as `cancelled`. `giving_up`: what holds protect is being waived, which
goes on with `certifying`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, Text, case, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.verify.blocked_objects import clear_blocked
from inference_store.index import key_registry
from inference_store.index.tables import erasing, erasure, erasure_model
from inference_store.platform.metrics import BYTES_DELETED

from .erasure import ENDED, Erasure, State, list_models
from .held_counts import count_held

_ERROR_CHARACTERS = 2000
STOPPED = ("cancelling", "cancelled")


async def advance_erasure(connection: AsyncConnection, id: UUID, state: State) -> bool:
    """Set the state of the present work; return False if it was cancelled, and nothing may be
    done."""
    values: dict[str, Any] = {
        "state": state,
        "begun_at": func.coalesce(erasure.c.begun_at, func.now()),
    }
    if state in ENDED:
        values["asked"] = redact_criteria()
    where = (erasure.c.id == id, erasure.c.state.not_in(STOPPED))
    changed = await connection.execute(erasure.update().where(*where).values(values))
    return changed.rowcount > 0


async def begin_deleting(connection: AsyncConnection, id: UUID) -> bool:
    """Set the state as `advance_erasure` does: from the commit on the erasure cannot be cancelled.

    Call it before any object is touched.
    """
    since = func.coalesce(erasure.c.deleting_since, func.now())
    values = {
        "state": "deleting_objects",
        "deleting_since": since,
        "begun_at": func.coalesce(erasure.c.begun_at, func.now()),
    }
    where = (erasure.c.id == id, erasure.c.state.not_in(STOPPED))
    return (await connection.execute(erasure.update().where(*where).values(values))).rowcount > 0


async def add_marked(connection: AsyncConnection, id: UUID, count: int) -> None:
    """Add to how many were marked."""
    changed = erasure.update().where(erasure.c.id == id)
    await connection.execute(changed.values(marked=erasure.c.marked + count))


async def resume_erasure(connection: AsyncConnection, id: UUID) -> None:
    """Go on with an erasure that is over in a restored backup, because a replay has marked more."""
    here = erasure.c
    is_over = here.state.in_(("deleted", "certified", "failed", "partly_held"))
    again = erasure.update().where(here.id == id, is_over)
    await connection.execute(again.values(state="pending", finished_at=None))


async def add_erased(
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
    """Add to the counts of an erasure; `received`: when the oldest and the newest were received."""
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


async def finish_erasure(
    connection: AsyncConnection,
    stored_erasure: Erasure,
    *,
    error: str | None,
    certifying: bool = False,
    copies_left: bool = False,
) -> State:
    """Set the state after the last batch, and return it.

    `deleted` if no mark is left (`certifying` if a certificate follows); `failed`, with the reason,
    if some are, or a copy could not be deleted (`copies_left`); `partly_held` if a hold protects
    some: the erasure goes on when that is released.

    The examples of values in the key registry are deleted with the inferences. This happens once,
    in the transaction that sets the state: after a crash it is done again. No example can come
    later, because a delta is written by the transaction that stores or edits its inference: it was
    committed before the mark or before the claim's fence, and what was erased is not stored again.
    """
    if stored_erasure.scope == "inference":
        for model in await list_models(connection, stored_erasure):
            await key_registry.forget_examples(connection, model)
    marks = select(erasing).where(erasing.c.erasure == stored_erasure.id)
    has_rest = copies_left or await connection.scalar(select(marks.exists()))
    held = await count_held(connection, stored_erasure.id)
    ended: State = "certifying" if certifying else "deleted"
    state: State = "failed" if has_rest else "partly_held" if held else ended
    reason = (error or "something is left")[:_ERROR_CHARACTERS] if has_rest else None
    values = {
        "state": state,
        "error": reason,
        "held": held,
        "finished_at": func.now() if state == ended else None,
        "retry_at": keep_future_retry() if has_rest else None,
        "asked": redact_criteria() if state in ENDED else erasure.c.asked,
    }
    if not has_rest:
        await clear_blocked(connection, stored_erasure.id)
    where = (erasure.c.id == stored_erasure.id, erasure.c.state.not_in(STOPPED))
    changed = await connection.execute(erasure.update().where(*where).values(values))
    return state if changed.rowcount else "cancelling"


async def fail_erasure(connection: AsyncConnection, id: UUID, error: str) -> None:
    """Record why an erasure could not go on: it is tried again with the next run."""
    values = {
        "state": "failed",
        "error": error[:_ERROR_CHARACTERS],
        "retry_at": keep_future_retry(),
    }
    where = (erasure.c.id == id, erasure.c.state.not_in(STOPPED))
    await connection.execute(erasure.update().where(*where).values(values))


async def find_state(connection: AsyncConnection, id: UUID) -> State | None:
    """Return the present state."""
    query = select(erasure.c.state).where(erasure.c.id == id)
    return cast(State | None, await connection.scalar(query))


def redact_criteria() -> ColumnElement[Any]:
    """Return the request without ids and the subject's value: the erasure is over, and they are
    erased."""
    criteria, ids = erasure.c.asked, "inference_ids"
    count = func.jsonb_build_object("ids", func.jsonb_array_length(criteria[ids]))
    rest = criteria.op("#-")(literal(["subject", "value"], ARRAY(Text)))
    return case((criteria.has_key(ids), count), else_=rest)


def keep_future_retry() -> ColumnElement[Any]:
    """Return the time of the next try: what has just been tried is not tried again at once."""
    return case((erasure.c.retry_at > func.now(), erasure.c.retry_at), else_=None)
