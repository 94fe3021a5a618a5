"""Previews that were shown, by their tokens: who has one may let the same policy begin at once."""

import hashlib
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.policies import Of
from inference_store.index.tables import policy_preview

LASTS: Final = timedelta(hours=1)


async def remember(connection: AsyncConnection, of: Of, revision: int, asked: str) -> UUID:
    """The token of a preview. `asked`: the policy as it was asked for."""
    token = uuid4()
    values = {"token": token, "level": of.level, "subject": of.subject, "revision": revision}
    await connection.execute(insert(policy_preview).values(**values, policy=_hash(asked)))
    return token


async def is_of(
    connection: AsyncConnection, token: UUID, of: Of, revision: int, asked: str
) -> bool:
    """Whether the token is of a preview of this policy, while nothing else was set since."""
    here = policy_preview.c
    query = select(here.token).where(
        here.token == token,
        here.level == of.level,
        here.subject == of.subject,
        here.revision == revision,
        here.policy == _hash(asked),
        here.made_at > func.now() - LASTS,
    )
    return (await connection.scalar(query)) is not None


async def forget(connection: AsyncConnection) -> int:
    """Forget those that no longer let anything begin; how many."""
    old = policy_preview.delete().where(policy_preview.c.made_at < func.now() - LASTS)
    return (await connection.execute(old)).rowcount


def _hash(asked: str) -> str:
    return hashlib.sha256(asked.encode()).hexdigest()
