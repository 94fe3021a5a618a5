"""An erasure as it is kept, and which there are."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import UUID

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, Reach
from inference_store.erasure.policies import Scope
from inference_store.index.tables import erased_leaves, erasure, erasure_model
from inference_store.index.within_reach import match_models

Cause: TypeAlias = Literal["policy", "request", "expired_arrival", "erased_again", "orphans"]
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
"""Nothing more is done."""
FINAL: Final[Sequence[State]] = (*ENDED, "failed", "partly_held")
"""Nothing more is done now; what failed is tried again."""


@dataclass(frozen=True, slots=True)
class Begun:
    """An erasure that its first batch makes."""

    id: UUID
    cause: Cause
    scope: Scope
    run: UUID | None = None
    requested_by: str | None = None
    decided_by: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What is erased, why, how far it is. `objects` were deleted and seen to be gone.

    `model` None: several (`models_of`). `asked`: what was asked for, None where it was marked as
    it was made. `table_rows`: rows that went, by table; `oldest`, `newest`: when what went was
    received. `certificate`: the number of its newest. `given_up`: `by` whom,
    and how many that `holds` kept.
    """

    id: UUID
    model: int | None
    cause: Cause
    scope: Scope | Literal["object"]
    state: State
    run: UUID | None
    requested_at: datetime
    requested_by: str | None
    begun_at: datetime | None
    deleting_since: datetime | None
    finished_at: datetime | None
    retry_at: datetime | None
    marked: int
    held: int
    inferences: int
    objects: int
    versions: int
    bytes: int
    table_rows: dict[str, int]
    oldest: datetime | None
    newest: datetime | None
    asked: dict[str, Any] | None
    error: str | None
    certificate: int | None
    decided_by: list[dict[str, Any]]
    in_force_at: datetime | None
    given_up: dict[str, Any] | None

    @property
    def since(self) -> datetime:
        """To compare with holds: by the clock of Postgres, as theirs, for those of processes may
        differ. Of one that a version before made, when it was asked for."""
        return self.in_force_at or self.requested_at


COLUMNS: Final = [erasure.c[each.name] for each in fields(Erasure)]


def erasure_of(row: Any) -> Erasure:
    """An Erasure from a row."""
    return Erasure(**row._mapping)


async def find(
    connection: AsyncConnection, id: UUID, *, within: Reach = EVERYTHING
) -> Erasure | None:
    """One erasure, if all its models are within reach."""
    query = select(*COLUMNS).where(erasure.c.id == id, reached(within))
    row = (await connection.execute(query)).first()
    return None if row is None else erasure_of(row)


async def listed(
    connection: AsyncConnection,
    *,
    model: int | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 100,
    within: Reach = EVERYTHING,
) -> list[Erasure]:
    """The newest erasures first; `before`: (requested_at, id) of the last one of a page."""
    query = select(*COLUMNS).where(reached(within))
    query = query.order_by(erasure.c.requested_at.desc(), erasure.c.id.desc())
    if model is not None:
        query = query.where(or_(erasure.c.model == model, _is_of(erasure_model.c.model == model)))
    if before is not None:
        at, number = before
        query = query.where(
            (erasure.c.requested_at < at)
            | ((erasure.c.requested_at == at) & (erasure.c.id < number))
        )
    return [erasure_of(row) for row in await connection.execute(query.limit(limit))]


async def unfinished(connection: AsyncConnection, *, failed: bool) -> list[Erasure]:
    """What was begun or asked for, oldest first, and what a lock of S3 kept until now; with
    `failed`, also what else is to be tried again.

    Not what only waits for its certificate.
    """
    here = erasure.c
    free = and_(here.state == "failed", here.retry_at <= func.now())
    begun = here.state.not_in((*(ENDED if failed else FINAL), "certifying"))
    query = select(*COLUMNS).where(or_(begun, free)).order_by(here.requested_at)
    return [erasure_of(row) for row in await connection.execute(query)]


async def certifying(connection: AsyncConnection) -> list[Erasure]:
    """Those whose certificate is not signed yet, oldest first: nothing is left, or holds keep the
    rest."""
    here = erased_leaves.c
    told = select(here.id).where(here.erasure == erasure.c.id, here.certificate.is_(None))
    partly = and_(erasure.c.state == "partly_held", told.correlate(erasure).exists())
    query = select(*COLUMNS).where(or_(erasure.c.state == "certifying", partly))
    found = await connection.execute(query.order_by(erasure.c.requested_at))
    return [erasure_of(row) for row in found]


async def models_of(connection: AsyncConnection, one: Erasure) -> list[int]:
    """The models that it is over, in order."""
    if one.model is not None:
        return [one.model]
    here = erasure_model.c
    query = select(here.model).where(here.erasure == one.id).order_by(here.model)
    return list((await connection.execute(query)).scalars())


def reached(within: Reach) -> ColumnElement[bool]:
    """Erasures of which every model is within reach."""
    if within.is_everything:
        return match_models(within, erasure.c.model)
    beyond = _is_of(~match_models(within, erasure_model.c.model))
    several = and_(erasure.c.model.is_(None), _is_of(erasure_model.c.model.is_not(None)), ~beyond)
    return or_(match_models(within, erasure.c.model), several)


def _is_of(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    here = select(erasure_model.c.model).where(erasure_model.c.erasure == erasure.c.id, condition)
    return here.correlate(erasure).exists()
