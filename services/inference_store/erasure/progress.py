"""An erasure as it is stored, its states, what it has erased, and what S3 refuses to delete.

pending → marking → deleting_objects → verifying → deleting_rows → certifying → certified, or
`failed`, with the reason; a failed one is tried again with every run; or `partly_held`, which
goes on when holds are released. A state describes the work on the present batch; `certifying`
begins when no mark is left, and `deleted` replaces it if no key signs certificates. `cancelling`:
marks are being removed, which ends as `cancelled`. `giving_up`: what holds protect is being
waived, which goes on with `certifying`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, cast, get_args
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, Text, and_, case, func, literal, or_, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.erasure.policies import ErasureScope
from inference_store.index import key_registry
from inference_store.index.registrations import match_models
from inference_store.index.tables import (
    erased_leaves,
    erasing,
    erasing_object,
    erasure,
    erasure_held,
    erasure_model,
    erasure_obstacle,
)
from inference_store.inference.field_docs import Hidden, Stored
from inference_store.platform.metrics import BYTES_DELETED

MOST_BLOCKED = 1_000
"""How many blocked objects are recorded; there may be more."""
_SHOWN = 100


async def list_blocked(connection: AsyncConnection, id: UUID) -> Sequence[Any]:
    """Return the rows of the first objects of an erasure that are still there, by key."""
    here = erasure_obstacle.c
    query = select(erasure_obstacle).where(here.erasure == id).order_by(here.storage_key)
    return (await connection.execute(query.limit(_SHOWN))).all()


async def record_blocked(
    connection: AsyncConnection,
    id: UUID,
    blocked: Iterable[tuple[str, str, str, datetime | None]],
    gone: Sequence[str],
) -> None:
    """Record blocked objects, as (key, code, message, retry_at), and remove those that no longer
    are.

    The erasure is tried again when the first lock ends.
    """
    here = erasure_obstacle.c
    if gone:
        cleared = erasure_obstacle.delete().where(here.erasure == id, here.storage_key.in_(gone))
        await connection.execute(cleared)
    count = await connection.scalar(select(func.count()).where(here.erasure == id)) or 0
    names = ("storage_key", "code", "message", "retry_at")
    rows = [{"erasure": id, **dict(zip(names, values, strict=True))} for values in blocked]
    rows = rows[: max(0, MOST_BLOCKED - count)]
    if rows:
        new = insert(erasure_obstacle)
        changed = {name: new.excluded[name] for name in names[1:]} | {"seen_at": func.now()}
        upserted = new.on_conflict_do_update(
            index_elements=["erasure", "storage_key"], set_=changed
        )
        await connection.execute(upserted, rows)
    first = select(func.min(here.retry_at)).where(here.erasure == id, here.retry_at > func.now())
    changing = erasure.update().where(erasure.c.id == id)
    await connection.execute(changing.values(retry_at=first.scalar_subquery()))


Cause: TypeAlias = (
    Literal["policy", "request", "expired_arrival", "erased_again"] | Literal["replaced", "orphans"]
)
State: TypeAlias = Literal[
    "pending",
    "marking",
    "deleting_objects",
    "verifying",
    "deleting_rows",
    "certifying",
    "certified",
    "deleted",
    "failed",
    "partly_held",
    "giving_up",
    "cancelling",
    "cancelled",
]
STATES: Final[Sequence[State]] = get_args(State)
ENDED: Final[Sequence[State]] = ("deleted", "certified", "cancelled")
"""States in which nothing more is done."""
FINAL: Final[Sequence[State]] = (*ENDED, "failed", "partly_held")
"""States in which nothing more is done now; what failed is tried again, and what is partly held
when a hold lets go of some of it."""


@dataclass(frozen=True, slots=True)
class NewErasure:
    """An erasure that its first batch makes."""

    id: UUID
    cause: Cause
    scope: ErasureScope
    run: UUID | None = None
    requested_by: str | None = None
    decided_by: Sequence[dict[str, Any]] = ()


class Erasure(Stored):
    """An erasure: what is erased, why, how far it is. `objects` were deleted and seen to be gone.

    `model` None: several (`models_of`). `given_up`: `by` whom, and how many that `holds` kept.
    """

    id: UUID
    model: Hidden[int | None]
    cause: Cause
    scope: ErasureScope | Literal["truth", "object"]
    state: State
    run: UUID | None
    asked: dict[str, Any] | None
    """`filter`, `inference_ids`, `subject` or `report` (a reconciliation), as it was asked; null:
    it was marked as it was made. When it is over the subject's value is forgotten, and of ids their
    number stays (`ids`)."""
    requested_at: datetime
    requested_by: str | None
    begun_at: datetime | None
    deleting_since: datetime | None
    """From here on it cannot be cancelled."""
    finished_at: datetime | None
    retry_at: datetime | None
    marked: Hidden[int]
    held: Hidden[int]
    inferences: int
    objects: int
    versions: int
    """Versions and delete markers that went, where the bucket keeps them."""
    bytes: int
    """Of the objects that went."""
    table_rows: Hidden[dict[str, int]]
    oldest: datetime | None
    """When the oldest and the newest of what went were received."""
    newest: datetime | None
    error: str | None
    certificate: int | None
    """Number of its newest certificate: `GET /v1/certificates/{number}`."""
    decided_by: list[dict[str, Any]]
    """Of a policy's run: the rules and limits that let it expire."""
    in_force_at: Hidden[datetime]
    """The time to compare with holds: by the clock of Postgres, as theirs."""
    given_up: dict[str, Any] | None


COLUMNS: Final = [erasure.c[name] for name in Erasure.model_fields]


async def find_erasure(
    connection: AsyncConnection, id: UUID, *, within: AccessScope = EVERYTHING
) -> Erasure | None:
    """Return an erasure, if all its models are within the scope."""
    query = select(*COLUMNS).where(erasure.c.id == id, match_erasures(within))
    row = (await connection.execute(query)).first()
    return None if row is None else Erasure.model_validate(row)


async def find_erasures(
    connection: AsyncConnection,
    *,
    model: int | None = None,
    states: Sequence[State] | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 100,
    within: AccessScope = EVERYTHING,
) -> list[Erasure]:
    """Return erasures, the newest first; `before`: (requested_at, id) of the last one of a page."""
    query = select(*COLUMNS).where(match_erasures(within))
    query = query.order_by(erasure.c.requested_at.desc(), erasure.c.id.desc())
    if model is not None:
        query = query.where(or_(erasure.c.model == model, _is_of(erasure_model.c.model == model)))
    if states is not None:
        query = query.where(erasure.c.state.in_(states))
    if before is not None:
        query = query.where(tuple_(erasure.c.requested_at, erasure.c.id) < before)
    return [Erasure.model_validate(row) for row in await connection.execute(query.limit(limit))]


async def list_unfinished(connection: AsyncConnection, *, failed: bool) -> list[Erasure]:
    """Return unfinished erasures, the oldest first, and those whose lock in S3 has ended.

    `failed`: also the others that failed, which are tried again. Erasures that only wait for a
    certificate are left out, and so is what holds keep: it is pending again when one lets go.
    """
    here = erasure.c
    again = here.state == "failed"
    if not failed:
        again &= here.retry_at <= func.now()
    begun = here.state.not_in((*FINAL, "certifying"))
    query = select(*COLUMNS).where(or_(begun, again)).order_by(here.requested_at)
    return [Erasure.model_validate(row) for row in await connection.execute(query)]


async def list_uncertified(connection: AsyncConnection) -> list[Erasure]:
    """Return erasures whose certificate is not signed yet, the oldest first: nothing is left of
    them, or holds protect the rest."""
    uncertified = select(erased_leaves.c.id).where(erased_leaves.c.erasure == erasure.c.id)
    partly = and_(erasure.c.state == "partly_held", uncertified.correlate(erasure).exists())
    query = select(*COLUMNS).where(or_(erasure.c.state == "certifying", partly))
    rows = await connection.execute(query.order_by(erasure.c.requested_at))
    return [Erasure.model_validate(row) for row in rows]


async def list_models(connection: AsyncConnection, stored_erasure: Erasure) -> list[int]:
    """Return the models of an erasure, in order."""
    if stored_erasure.model is not None:
        return [stored_erasure.model]
    here = erasure_model.c
    query = select(here.model).where(here.erasure == stored_erasure.id).order_by(here.model)
    return list((await connection.execute(query)).scalars())


def match_erasures(within: AccessScope) -> ColumnElement[bool]:
    """Return the condition of erasures of which every model is within the scope."""
    if within.is_everything:
        return match_models(within, erasure.c.model)
    beyond = _is_of(~match_models(within, erasure_model.c.model))
    several = and_(erasure.c.model.is_(None), _is_of(erasure_model.c.model.is_not(None)), ~beyond)
    return or_(match_models(within, erasure.c.model), several)


def _is_of(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    here = select(erasure_model.c.model).where(erasure_model.c.erasure == erasure.c.id, condition)
    return here.correlate(erasure).exists()


async def count_held(connection: AsyncConnection, number: UUID) -> dict[UUID, int]:
    """Return how many inferences, inputs and quarantined events an erasure has left because of
    holds, by the hold that protects them."""
    here = erasure_held.c
    query = select(here.hold, func.count()).where(here.erasure == number).group_by(here.hold)
    return {row[0]: row[1] for row in await connection.execute(query.order_by(here.hold))}


_ERROR_CHARACTERS = 2000
STOPPED = ("cancelling", "cancelled")


async def advance_erasure(connection: AsyncConnection, id: UUID, state: State) -> bool:
    """Set the state of the present work; return False if it was cancelled, and nothing may be
    done."""
    values: dict[str, Any] = {"asked": redact_criteria()} if state in ENDED else {}
    return await _change(connection, id, state, values)


async def begin_deleting(connection: AsyncConnection, id: UUID) -> bool:
    """Set the state as `advance_erasure` does: from the commit on the erasure cannot be cancelled.

    Call it before any object is touched.
    """
    since = func.coalesce(erasure.c.deleting_since, func.now())
    return await _change(connection, id, "deleting_objects", {"deleting_since": since})


async def _change(
    connection: AsyncConnection, id: UUID, state: State, values: Mapping[str, Any]
) -> bool:
    """Return False if the erasure was cancelled: the row decides."""
    begun = {"state": state, "begun_at": func.coalesce(erasure.c.begun_at, func.now())}
    where = (erasure.c.id == id, erasure.c.state.not_in(STOPPED))
    changed = erasure.update().where(*where).values(begun | dict(values))
    return (await connection.execute(changed)).rowcount > 0


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
    held: int = 0,
    table_rows: Mapping[str, int] | None = None,
    received: tuple[datetime, datetime] | None = None,
) -> None:
    """Add to the counts of an erasure; `received`: when the oldest and the newest were received."""
    here = erasure.c
    values: dict[str, Any] = {
        "inferences": here.inferences + inferences,
        "objects": here.objects + objects,
        "versions": here.versions + versions,
        "bytes": here.bytes + bytes,
        "held": here.held + held,
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
    of_objects = stored_erasure.scope == "object"
    marks = erasing_object if of_objects else erasing
    rest = select(marks).where(marks.c.erasure == stored_erasure.id)
    has_rest = copies_left or await connection.scalar(select(rest.exists()))
    # of orphans, what holds keep is counted as it leaves the erasure, and not waited for
    by_hold = {} if of_objects else await count_held(connection, stored_erasure.id)
    held = sum(by_hold.values())
    ended: State = "certifying" if certifying else "deleted"
    state: State = "failed" if has_rest else "partly_held" if held else ended
    reason = (error or "something is left")[:_ERROR_CHARACTERS] if has_rest else None
    values = {
        "error": reason,
        "held": erasure.c.held if of_objects else held,
        "finished_at": func.now() if state == ended else None,
        "retry_at": keep_future_retry() if has_rest else None,
        "asked": redact_criteria() if state in ENDED else erasure.c.asked,
    }
    if not has_rest:
        blocked = erasure_obstacle.c.erasure == stored_erasure.id
        await connection.execute(erasure_obstacle.delete().where(blocked))
    return state if await _change(connection, stored_erasure.id, state, values) else "cancelling"


async def fail_erasure(connection: AsyncConnection, id: UUID, error: str) -> None:
    """Record why an erasure could not go on: it is tried again with the next run."""
    values = {"error": error[:_ERROR_CHARACTERS], "retry_at": keep_future_retry()}
    # it has not begun, if its first search failed
    await _change(connection, id, "failed", values | {"begun_at": erasure.c.begun_at})


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
