"""Removes a subject's values from holds, once the holds are over.

The order makes every crash harmless: the revisions are recorded before the erasure forgets the
subject. Then the values are removed from those whose hold is over, and in every later turn of the
service from those whose hold was released or has ended since.
"""

from functools import partial

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.certificates.keys import SigningKey
from inference_store.erasure.erasures import Erasure
from inference_store.erasure.erasures.chosen import Subject
from inference_store.erasure.holds import forgetting

from .certifier import Certifier
from .leadership_check import LeadershipCheck

# Revisions in one transaction.
_REVISIONS = 1000
_KIND = "hold"


class ResidualInHolds:
    """Removes values from holds.

    The key of `certifier` hashes them; None: nothing is left of them.
    """

    def __init__(
        self, engine: AsyncEngine, check: LeadershipCheck, certifier: Certifier | None
    ) -> None:
        self._engine = engine
        self._check = check
        self._certifier = certifier

    async def remove_subject(self, erasure: Erasure, subject: Subject) -> None:
        """Record which revisions mention the subject, unless the erasure is cancelled, and remove
        them."""
        after: forgetting.Place | None = forgetting.BEGINNING
        while after is not None:
            await self._check.confirm_step()
            async with self._engine.connect() as connection:
                noted, after = await forgetting.note_mentions(
                    connection, subject.key, subject.value, after=after, limit=_REVISIONS
                )
                if noted:
                    if not await erasures.begin_deleting(connection, erasure.id):
                        return
                    await connection.commit()
        await self.remove_recorded()

    async def remove_recorded(self) -> None:
        """Remove the recorded values from holds that are over."""
        hash = None if self._certifier is None else partial(_keyed_hash, self._certifier.key)
        taken = _REVISIONS
        while taken == _REVISIONS:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                taken = await forgetting.forget(connection, hash, limit=_REVISIONS)


def _keyed_hash(key: SigningKey, text: str) -> str:
    return key.keyed_hash(_KIND, text.encode("utf-8", "surrogatepass")).hex()
