"""An erasure as it is stored, and the queries for erasures."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import UUID

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.erasure.policies import ErasureScope
from inference_store.index.scope_filters import match_models
from inference_store.index.tables import erased_leaves, erasure, erasure_model

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """An erasure: what is erased, why, how far it is. `objects` were deleted and seen to be gone.

    `model` None: several (`models_of`). `given_up`: `by` whom, and how many that `holds` kept.
    """

    id: UUID
    model: int | None
    cause: Cause
    scope: ErasureScope | Literal["object"]
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
    marked: int
    held: int
    inferences: int
    objects: int
    versions: int
    """Versions and delete markers that went, where the bucket keeps them."""
    bytes: int
    """Of the objects that went."""
    table_rows: dict[str, int]
    oldest: datetime | None
    """When the oldest and the newest of what went were received."""
    newest: datetime | None
    error: str | None
    certificate: int | None
    """Number of its newest certificate: `GET /v1/certificates/{number}`."""
    decided_by: list[dict[str, Any]]
    """Of a policy's run: the rules and limits that let it expire."""
    in_force_at: datetime | None
    given_up: dict[str, Any] | None

    @property
    def since(self) -> datetime:
        """The time to compare with holds: by the clock of Postgres, as theirs; clocks of processes
        may differ.

        If an earlier version made the erasure, it is the time of its request.
        """
        return self.in_force_at or self.requested_at


COLUMNS: Final = [erasure.c[field.name] for field in fields(Erasure)]


def read_erasure(row: Any) -> Erasure:
    """Return the Erasure of a row."""
    return Erasure(**row._mapping)


async def find_erasure(
    connection: AsyncConnection, id: UUID, *, within: AccessScope = EVERYTHING
) -> Erasure | None:
    """Return an erasure, if all its models are within the scope."""
    query = select(*COLUMNS).where(erasure.c.id == id, match_erasures(within))
    row = (await connection.execute(query)).first()
    return None if row is None else read_erasure(row)


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
        at, number = before
        query = query.where(
            (erasure.c.requested_at < at)
            | ((erasure.c.requested_at == at) & (erasure.c.id < number))
        )
    return [read_erasure(row) for row in await connection.execute(query.limit(limit))]


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
    return [read_erasure(row) for row in await connection.execute(query)]


async def list_uncertified(connection: AsyncConnection) -> list[Erasure]:
    """Return erasures whose certificate is not signed yet, the oldest first: nothing is left of
    them, or holds protect the rest."""
    here = erased_leaves.c
    uncertified = select(here.id).where(here.erasure == erasure.c.id, here.certificate.is_(None))
    partly = and_(erasure.c.state == "partly_held", uncertified.correlate(erasure).exists())
    query = select(*COLUMNS).where(or_(erasure.c.state == "certifying", partly))
    rows = await connection.execute(query.order_by(erasure.c.requested_at))
    return [read_erasure(row) for row in rows]


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
