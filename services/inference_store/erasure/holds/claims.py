"""Finds what an erasure had claimed before a hold was placed: some of its objects may be
deleted."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.inferences import by_model
from inference_store.index.tables import erasing
from inference_store.inference.errors import HoldUnreadable

from .conditions import find_holds
from .hold import Hold

MOST_CLAIMS: Final = 10_000
"""How many claims are checked: far more than are under way at once."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An inference that the hold protects from now on, and that an erasure had claimed before."""

    model: int
    uid: UUID
    scope: Literal["input", "response", "inference"]
    erasure: UUID
    claimed_at: datetime


async def find_claims(
    connection: AsyncConnection, hold: Hold, *, limit: int = MOST_CLAIMS
) -> tuple[list[Claim], bool]:
    """Return the claims that the hold came too late for, the oldest first, and whether there may be
    more than were checked.

    If the filter cannot be evaluated, return every claim that it may be about. Call it in the
    fence, as the hold is placed.
    """
    here = erasing.c
    query = select(here.model, here.uid, here.scope, here.erasure, here.claimed_at)
    query = query.where(here.claimed_at.is_not(None)).order_by(here.claimed_at, here.uid)
    if hold.model is not None:
        query = query.where(here.model == hold.model)
    claims = [Claim(*row) for row in await connection.execute(query.limit(limit + 1))]
    has_more = len(claims) > limit
    claims = claims[:limit]
    held: set[tuple[int, UUID]] = set()
    for model, uids in by_model((claim.model, claim.uid) for claim in claims):
        held |= {(model, uid) for uid in await _filter_held(connection, hold, model, uids)}
    return [claim for claim in claims if (claim.model, claim.uid) in held], has_more


async def _filter_held(
    connection: AsyncConnection, hold: Hold, model: int, uids: Sequence[UUID]
) -> Collection[UUID]:
    """Return the inferences that the hold protects; all of them if its filter cannot be
    evaluated."""
    try:
        async with connection.begin_nested():
            return await find_holds(connection, [hold], model, uids)
    except HoldUnreadable:
        return uids
