"""Removes a subject's values from holds, once the holds are over.

The order makes every crash harmless: the revisions are recorded before the erasure forgets the
subject. Then the values are removed from those whose hold is over, and in every later turn of the
service from those whose hold was released or has ended since.
"""

from functools import partial

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import AccessScope
from inference_store.erasure.holds import redaction
from inference_store.erasure.log.keys import SigningKey
from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.progress.state_changes import begin_deleting
from inference_store.erasure.request.criteria import Subject

from .certifier import Certifier
from .leadership_check import LeadershipCheck

# Revisions in one transaction.
_REVISIONS = 1000
_KIND = "hold"


class ResidualInHolds:
    """Removes values from holds.

    The key of `certifier` hashes them; None: they are removed completely.
    """

    def __init__(
        self, engine: AsyncEngine, check: LeadershipCheck, certifier: Certifier | None
    ) -> None:
        self._engine = engine
        self._check = check
        self._certifier = certifier

    async def remove_subject(self, erasure: Erasure, subject: Subject, reach: AccessScope) -> None:
        """Record the revisions in reach that mention the subject, and remove the values.

        Nothing happens if the erasure is cancelled.
        """
        after: redaction.Position | None = redaction.START
        while after is not None:
            await self._check.confirm_step()
            async with self._engine.connect() as connection:
                recorded, after = await redaction.record_mentions(
                    connection,
                    (subject.key, subject.value),
                    reach,
                    after=after,
                    limit=_REVISIONS,
                )
                if recorded:
                    if not await begin_deleting(connection, erasure.id):
                        return
                    await connection.commit()
        await self.remove_recorded()

    async def remove_recorded(self) -> None:
        """Remove the recorded values from holds that are over."""
        hash = None if self._certifier is None else partial(_keyed_hash, self._certifier.key)
        redacted = _REVISIONS
        while redacted == _REVISIONS:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                redacted = await redaction.redact_recorded(connection, hash, limit=_REVISIONS)


def _keyed_hash(key: SigningKey, text: str) -> str:
    return key.keyed_hash(_KIND, text.encode("utf-8", "surrogatepass")).hex()
