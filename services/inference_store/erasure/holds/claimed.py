"""What an erasure had claimed before a hold was placed: some of its objects may be gone."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.identities import by_model
from inference_store.index.tables import erasing
from inference_store.inference.errors import HoldUnreadable

from .force import holding
from .hold import Hold

MOST: Final = 10_000
"""Claims that are looked at: far more than are under way at once."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An inference that the hold keeps from now on, and that an erasure had claimed before."""

    model: int
    uid: UUID
    scope: str
    erasure: UUID
    claimed_at: datetime


async def claimed(
    connection: AsyncConnection, one: Hold, *, most: int = MOST
) -> tuple[list[Claim], bool]:
    """What the hold came too late for, the oldest claim first; whether there may be more than was
    looked at. In the gate, as it is placed.

    Where its filter cannot be evaluated: every claim that it may be about.
    """
    here = erasing.c
    query = select(here.model, here.uid, here.scope, here.erasure, here.claimed_at)
    query = query.where(here.claimed_at.is_not(None)).order_by(here.claimed_at, here.uid)
    if one.model is not None:
        query = query.where(here.model == one.model)
    claims = [Claim(*row) for row in await connection.execute(query.limit(most + 1))]
    more = len(claims) > most
    claims = claims[:most]
    kept: set[tuple[int, UUID]] = set()
    for model, uids in by_model((claim.model, claim.uid) for claim in claims):
        kept |= {(model, uid) for uid in await _kept(connection, one, model, uids)}
    return [claim for claim in claims if (claim.model, claim.uid) in kept], more


async def _kept(
    connection: AsyncConnection, one: Hold, model: int, uids: Sequence[UUID]
) -> Collection[UUID]:
    try:
        async with connection.begin_nested():
            return await holding(connection, [one], model, uids)
    except HoldUnreadable:
        return uids
