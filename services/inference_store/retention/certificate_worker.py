"""Signs the certificates that had to wait, and writes the head of the chain."""

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.progress.erasure import list_uncertified

from .certifier import Certifier
from .leadership_check import LeadershipCheck
from .uncertified import end_without_key


class CertificateWorker:
    """Uses the certifier, if there is a key to sign with."""

    def __init__(
        self, engine: AsyncEngine, certifier: Certifier | None, check: LeadershipCheck
    ) -> None:
        self._engine = engine
        self._certifier = certifier
        self._check = check

    async def begin(self) -> None:
        """Import the certificates in the bucket, before anything is erased."""
        if self._certifier is not None:
            await self._certifier.begin()

    async def sign_waiting(self) -> None:
        """Sign the certificates that had to wait for a partition to be dropped, or for the right
        key."""
        async with self._engine.connect() as connection:
            waiting = await list_uncertified(connection)
        for erasure in waiting:
            await self._check.confirm_step()
            if self._certifier is not None:
                await self._certifier.certify(erasure, erasure.state)
            elif erasure.state == "certifying":
                await end_without_key(self._engine, erasure)

    async def write_head(self) -> None:
        """Write the newest certificate to the head, once a minute."""
        if self._certifier is not None:
            await self._certifier.write_head()

    async def end(self) -> None:
        """Write the newest certificate to the head before the service ends."""
        if self._certifier is not None:
            await self._certifier.write_head(at_once=True)
