"""Stores previews by their tokens: whoever has one may let the same policy begin at once."""

import hashlib
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.policies import PolicyOwner
from inference_store.index.tables import policy_preview

VALID_FOR: Final = timedelta(hours=1)


async def record_preview(
    connection: AsyncConnection, of: PolicyOwner, revision: int, requested: str
) -> UUID:
    """Record a preview, and return its token. `requested`: the policy as it was sent."""
    token = uuid4()
    values = {"token": token, "level": of.level, "subject": of.subject, "revision": revision}
    await connection.execute(insert(policy_preview).values(**values, policy=_hash(requested)))
    return token


async def is_preview_of(
    connection: AsyncConnection, token: UUID, of: PolicyOwner, revision: int, requested: str
) -> bool:
    """Return whether the token is of a preview of this policy, and nothing else was set since."""
    here = policy_preview.c
    query = select(here.token).where(
        here.token == token,
        here.level == of.level,
        here.subject == of.subject,
        here.revision == revision,
        here.policy == _hash(requested),
        here.made_at > func.now() - VALID_FOR,
    )
    return (await connection.scalar(query)) is not None


async def delete_expired(connection: AsyncConnection) -> int:
    """Delete the previews that are too old to let a policy begin; return how many."""
    old = policy_preview.delete().where(policy_preview.c.made_at < func.now() - VALID_FOR)
    return (await connection.execute(old)).rowcount


def _hash(requested: str) -> str:
    return hashlib.sha256(requested.encode()).hexdigest()
