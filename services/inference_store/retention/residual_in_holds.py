"""What holds say of a subject goes with the subject, once the holds are over.

The order makes every crash harmless: the revisions are noted, before the erasure forgets the
subject; then values are taken from those whose hold is over, by the same look that comes by with
every turn of the service, for those whose hold is released or ends later.
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
    """Takes values from holds. The key of `certifier` hashes them; None: nothing is left."""

    def __init__(
        self, engine: AsyncEngine, check: LeadershipCheck, certifier: Certifier | None
    ) -> None:
        self._engine = engine
        self._check = check
        self._certifier = certifier

    async def forget_subject(self, one: Erasure, subject: Subject) -> None:
        """Note what mentions the erasure's subject, unless it has been cancelled, and take it."""
        after: forgetting.Place | None = forgetting.BEGINNING
        while after is not None:
            await self._check.confirm_step()
            async with self._engine.connect() as connection:
                noted, after = await forgetting.note_mentions(
                    connection, subject.key, subject.value, after=after, limit=_REVISIONS
                )
                if noted:
                    if not await erasures.begin_deleting(connection, one.id):
                        return
                    await connection.commit()
        await self.forget()

    async def forget(self) -> None:
        """Take the values that are noted, of holds that are over."""
        hash = None if self._certifier is None else partial(_keyed_hash, self._certifier.key)
        taken = _REVISIONS
        while taken == _REVISIONS:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                taken = await forgetting.forget(connection, hash, limit=_REVISIONS)


def _keyed_hash(key: SigningKey, text: str) -> str:
    return key.keyed_hash(_KIND, text.encode("utf-8", "surrogatepass")).hex()
