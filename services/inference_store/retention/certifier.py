"""Ends an erasure with its certificate. The order makes every crash harmless:

1. list     write the pieces of the list to the bucket, under names made of their content
2. sign     write the document to the bucket under the next number of the chain, which is free
3. commit   write the same to Postgres, with the batches that it names and the erasure's state

After a crash before 2 the pieces are written again. After 2 the bucket is one ahead of Postgres:
its document is imported (`catch_up`) before anything else is signed, so that no erasure gets a
second certificate for the same batches. This also restores what an older backup is missing.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import certificates, erased_lists
from inference_store.erasure.certificate_documents import Remaining, make_certificate
from inference_store.erasure.certificates import CertificateChain
from inference_store.erasure.erased_lists import (
    CertifiedExport,
    Erased,
    describe_exports,
    list_copies,
    write_list,
)
from inference_store.erasure.hash_chain import Archive
from inference_store.erasure.log import (
    CERTIFICATE,
    BrokenChain,
    ChainHead,
    SigningKey,
    read_document,
)
from inference_store.erasure.progress import (
    Erasure,
    State,
    advance_erasure,
    count_held_by_hold,
    find_erasure,
    list_models,
)
from inference_store.export.erased import ReachedExport, list_reached
from inference_store.index import registrations
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import CERTIFICATE_TROUBLE, UNCERTIFIED

_log = structlog.get_logger()
# The reasons for which an erasure ends without a certificate.
UNCERTIFIED_REASONS: Final = ("no_key", "key_missing", "unlisted")
# Between two writes of the head, while certificates are signed one after the other.
_HEAD_SECONDS = 60.0


class Certifier:
    """Signs certificates of erasures. `keys`: the first one signs; the others signed before it.

    Raises ObjectStoreUnavailable and errors of the database; it can then be called again.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        blobs: Blobs,
        keys: Sequence[SigningKey],
        *,
        events_seconds: float,
        ledger_seconds: float = 0.0,
        audit_seconds: float = 0.0,
        head: ChainHead | None = None,
        head_seconds: float = _HEAD_SECONDS,
    ) -> None:
        self._engine = engine
        self._archive = Archive(blobs)
        self._keys = keys
        self._chain = CertificateChain(engine, self._archive, keys)
        self._remaining = Remaining(events_seconds, ledger_seconds, audit_seconds)
        self._head = head
        self._head_number = 0
        self._head_seconds = head_seconds
        # by the monotonic clock; the first one is written at once
        self._head_due = 0.0

    @property
    def key(self) -> SigningKey:
        """The key that signs and hashes now."""
        return self._keys[0]

    async def key_of(self, connection: AsyncConnection, erasure: UUID) -> SigningKey:
        """Return the key that hashes the entries of an erasure.

        If a part is certified already, it is the key of that part, so that entries which a restored
        backup repeats are recognised.
        """
        id = await erased_lists.find_hash_key(connection, erasure)
        return next((key for key in self._keys if key.id == id), self.key)

    async def begin(self) -> None:
        """Import the certificates in the bucket, before anything is erased."""
        try:
            await self._chain.catch_up()
        except BrokenChain as broken:
            CERTIFICATE_TROUBLE.inc()
            _log.error("certificates cannot be signed", action="chain_apart", error=str(broken))

    async def write_head(self, *, at_once: bool = False) -> None:
        """Write the chain's head to its locked place, unless it is the one that was written last.

        It is written once for all certificates of a minute, because every version is read when the
        chain is verified; `at_once` writes it sooner, as the service ends. After a crash between
        two writes the head lags, which is not false, and the next one is written at the start.
        """
        if self._head is None or (time.monotonic() < self._head_due and not at_once):
            return
        async with self._engine.connect() as connection:
            number = (await certificates.find_head(connection)).number
            row = await certificates.find_document(connection, number)
        if row is None or row.number == self._head_number:
            return
        failpoint("retention.certify.head.before")
        locked = await asyncio.to_thread(self._head.put, row.signed)
        failpoint("retention.certify.head.after")
        self._head_number, self._head_due = row.number, time.monotonic() + self._head_seconds
        _log.info("head of the chain", action="certificate_head", number=row.number, locked=locked)

    async def certify(self, erasure: Erasure, ended: State = "certifying") -> State:
        """Sign an erasure's certificate; no mark is left, or holds protect the rest (`ended`)."""
        try:
            return await self._certify(erasure)
        except BrokenChain as broken:
            CERTIFICATE_TROUBLE.inc()
            _log.error("certificates cannot be signed", action="chain_apart", error=str(broken))
            return ended

    async def _certify(self, erasure: Erasure) -> State:
        failpoint("retention.certify.before")
        await self._chain.catch_up()
        await self._chain.introduce_key()
        async with self._engine.begin() as connection:
            # a replay created it after the bucket's certificates were restored: it names none yet
            await certificates.set_newest(connection, erasure.id)
            now = await find_erasure(connection, erasure.id)
            span = await erased_lists.find_dropping_span(connection, erasure.id)
        if now is None or now.state not in {"certifying", "partly_held"}:
            return erasure.state if now is None else now.state
        if span is not None:
            _log.info("partition is not dropped yet", action="certificate_waits", span=span)
            return "certifying"
        objects = now.scope == "object"
        counted = now.objects if objects else now.inferences
        await erased_lists.deduplicate_restored(
            self._engine, erasure.id, counted=counted, objects=objects
        )
        async with self._engine.connect() as connection:
            uncertified = await erased_lists.find_uncertified(connection, erasure.id)
            listed = await erased_lists.count_listed(connection, erasure.id, objects=objects)
        if listed != counted:
            return await end_uncertified(self._engine, now, "unlisted")
        if not uncertified.batches and now.state == "partly_held":
            return "partly_held"
        earlier = await self._list_earlier(now)
        names_waived = now.given_up is None or any("given_up" in before for before in earlier)
        if not uncertified.batches and earlier and names_waived:
            async with self._engine.begin() as connection:
                await advance_erasure(connection, now.id, "certified")
            return "certified"
        await self._sign(now, uncertified, earlier)
        return "certified" if now.state == "certifying" else now.state

    async def _list_earlier(self, erasure: Erasure) -> list[Mapping[str, Any]]:
        async with self._engine.connect() as connection:
            rows = await certificates.list_certificates(connection, erasure_id=erasure.id)
        return [read_document(row.signed).document for row in rows]

    async def _sign(
        self, erasure: Erasure, uncertified: Erased, earlier: Sequence[Mapping[str, Any]]
    ) -> None:
        root = await write_list(self._engine, self._archive, uncertified.batches)
        failpoint("retention.certify.leaves.after")
        async with self._engine.connect() as connection:
            models = await list_models(connection, erasure)
            names = await registrations.names(connection, models)
            held = await count_held_by_hold(connection, erasure.id)
            reached = await list_reached(connection, erasure.id)
        exports = describe_exports(map(_certify_export, reached), earlier)
        make_document = partial(
            make_certificate,
            *(erasure, uncertified, self.key, root),
            model_ids=names.values(),
            held=held,
            earlier=earlier,
            exports=exports,
            remains=[*self._remaining.list_locations(erasure.asked), *list_copies(exports)],
        )
        if await self._chain.append(CERTIFICATE, self.key, make_document) is None:
            await self._certify(erasure)  # another process had signed: check again


async def end_erasure(
    engine: AsyncEngine, certifier: Certifier | None, erasure: Erasure, state: State
) -> State:
    """Sign the certificate of an erasure in this state, or end it without one if there is no key;
    return its last state."""
    if certifier is not None:
        if state in {"certifying", "partly_held"}:
            return await certifier.certify(erasure, state)
    elif state in {"certifying", "deleted"}:
        async with engine.connect() as connection:
            began = (await certificates.find_head(connection)).number > 0
        return await end_uncertified(engine, erasure, "key_missing" if began else "no_key")
    return state


async def end_uncertified(engine: AsyncEngine, erasure: Erasure, reason: str) -> State:
    """End an erasure without a certificate; `reason` as the metric has it."""
    async with engine.begin() as connection:
        await advance_erasure(connection, erasure.id, "deleted")
    UNCERTIFIED.labels(reason).inc()
    _log.warning("no certificate", action="uncertified", id=str(erasure.id), reason=reason)
    return "deleted"


def _certify_export(export: ReachedExport) -> CertifiedExport:
    downloads = [(item.actor, item.first_at, item.last_at) for item in export.downloads]
    return CertifiedExport(export.id, export.inferences, export.parts_deleted, downloads)
