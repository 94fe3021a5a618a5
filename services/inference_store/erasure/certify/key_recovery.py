"""Restarts the chain after the private key of its newest certificates is lost.

The document of the new key says so, the audit says it too, and `verify` reports it, which is a
failure unless the new key is trusted.
"""

import asyncio
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure.log.key_documents import (
    KIND,
    RESTART,
    find_restart_key,
    make_key_document,
)
from inference_store.erasure.log.keys import SigningKey
from inference_store.erasure.log.signed_chain import BrokenChain, SignedChain
from inference_store.erasure.log.signed_document import SignedDocument, sign_document
from inference_store.index import audit

from . import chain
from .archive import Archive


class CannotRestart(Exception):
    """Why the chain cannot be restarted, and what to do instead."""


async def import_restart(connection: AsyncConnection, document: SignedDocument) -> None:
    """Write the document to Postgres, and its reason to the audit. Repeatable."""
    if await chain.find_row(connection, document.number) is not None:
        return
    await chain.add_document(connection, document)
    members = document.document
    detail = {"number": document.number, "key": members["key"], **members[RESTART]}
    who = Who(detail.pop("by"), None)
    await audit.note(connection, who, Action.CERTIFICATES_BEGUN_ANEW, **detail)


async def recover_key(
    engine: AsyncEngine, archive: Archive, keys: Sequence[SigningKey], *, by: str, reason: str
) -> SignedDocument:
    """Introduce the first of `keys` by itself, after all that the bucket has.

    A restart that a crash left in the bucket is taken over. What Postgres lacks before it, the
    retention service imports. Raises CannotRestart if no restart is needed, or if the bucket does
    not continue the chain.
    """
    async with engine.connect() as connection:
        public_keys = await chain.find_public_keys(connection)
        head = await chain.find_head(connection)
    if not public_keys:
        raise CannotRestart("There is no certificate yet: any key begins the chain.")
    signed = SignedChain(head, public_keys, kinds={chain.CERTIFICATE})
    await asyncio.to_thread(_follow_bucket, signed, archive)
    if signed.keys[-1] in [key.public for key in keys]:
        document = _require_restart(signed, keys[0])
    else:
        document = _sign_restart(signed, keys[0], by=by, reason=reason)
        put = archive.documents.put_new
        if not await asyncio.to_thread(put, document.number, document.data):
            raise CannotRestart("The bucket has got another certificate meanwhile: try again.")
    if document.number == head.number + 1:
        async with engine.begin() as connection:
            await import_restart(connection, document)
    return document


def _follow_bucket(signed: SignedChain, archive: Archive) -> None:
    try:
        for data in archive.documents.read_after(signed.end.number):
            signed.follow(data)
    except BrokenChain as broken:
        raise CannotRestart(str(broken)) from broken


def _require_restart(signed: SignedChain, key: SigningKey) -> SignedDocument:
    """Return the newest restart, if it is by this key: a crash left it in the bucket."""
    if not signed.restarts or find_restart_key(signed.restarts[-1]) != key.public:
        raise CannotRestart(
            f"The newest key of the chain, {signed.keys[-1].id}, is given: it signs the new one by"
            " itself."
        )
    return signed.restarts[-1]


def _sign_restart(signed: SignedChain, key: SigningKey, *, by: str, reason: str) -> SignedDocument:
    restart = {"by": by, "instead_of": signed.keys[-1].id, "reason": reason}
    return sign_document(
        key, KIND, make_key_document(key.public, after=signed.end) | {RESTART: restart}
    )
