"""Checkpoints of the audit that are signed: a false one is found."""

import json
from datetime import UTC, datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure import audit_chain
from inference_store.erasure.certify import chain
from inference_store.erasure.certify.audit_checkpoints import CheckpointCheck, find_signer
from inference_store.erasure.log import key_documents
from inference_store.erasure.log.key_documents import make_key_document
from inference_store.erasure.log.keys import SigningKey, new_key
from inference_store.erasure.log.signed_document import sign_document
from inference_store.index.audit import note

from .test_verifying import tamper, verify_chain


async def _introduce(engine: AsyncEngine, key: SigningKey) -> None:
    """Introduce the key as the first certificate does."""
    async with engine.begin() as connection:
        head = await chain.find_head(connection)
        document = make_key_document(key.public, after=head)
        await chain.add_document(connection, sign_document(key, key_documents.KIND, document))


async def _write(engine: AsyncEngine, key: SigningKey) -> None:
    async with engine.begin() as connection:
        for _ in range(10):
            await note(connection, Who("key:ada", None), Action.LINKS_MADE)
        await audit_chain.link_entries(connection, limit=100)
        body = await audit_chain.make_checkpoint(
            connection, sign=await find_signer(connection, [key])
        )
        assert body is not None
        await audit_chain.apply_checkpoint(connection, body, datetime.now(UTC), "retention")


async def _find_reasons(engine: AsyncEngine, *statements: str) -> list[str]:
    """Return the faults that are found after some changes."""
    await tamper(engine, *statements)
    return [fault.reason for fault in (await verify_chain(engine)).failures]


async def test_a_signed_checkpoint_verifies(engine: AsyncEngine) -> None:
    key = new_key()
    await _write(engine, key)  # the key cannot be looked up yet
    await _introduce(engine, key)
    await _write(engine, key)
    verdict = await verify_chain(engine)
    assert verdict.failures == []
    assert (verdict.checkpoints, verdict.signed) == (2, 1)


async def test_signs_the_point_where_retention_cuts(engine: AsyncEngine) -> None:
    key = new_key()
    await _introduce(engine, key)
    await _write(engine, key)
    async with engine.begin() as connection:
        sign = await find_signer(connection, [key])
        await audit_chain.prune_entries(connection, older_than_seconds=0, limit=4, sign=sign)
    verdict = await verify_chain(engine)
    assert verdict.failures == []
    assert (verdict.first, verdict.signed) == (5, 2)


_FALSE = {
    "another hash": ("UPDATE audit_checkpoint SET hash = '\\x01'", "something else"),
    "another number": ("UPDATE audit_checkpoint SET number = 9", "something else"),
    "a stranger's key": (
        "UPDATE audit_checkpoint SET signed = cast(:forged as jsonb)",
        "no certificate introduces its key",
    ),
    "the signature": (
        "UPDATE audit_checkpoint SET signed = jsonb_set(signed, '{signature}', '\"AAAA\"')",
        "has not signed it",
    ),
    "both, unsigned again": (
        "UPDATE audit_checkpoint SET number = 9, signed = jsonb_set(signed, '{document,number}',"
        " '9')",
        "has not signed it",
    ),
}


async def test_a_false_one_is_found(engine: AsyncEngine) -> None:
    key = new_key()
    await _introduce(engine, key)
    await _write(engine, key)
    await tamper(engine)
    async with engine.connect() as connection:
        row = (await connection.execute(text("SELECT signed FROM audit_checkpoint"))).scalar_one()
    forged = sign_document(new_key(), "audit_checkpoint", row["document"]).text
    assert json.loads(forged)["document"] == row["document"]
    for name, (statement, words) in _FALSE.items():
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="REPEATABLE READ")
            await connection.execute(
                text(statement), {"forged": forged} if ":f" in statement else {}
            )
            check = await CheckpointCheck.of(connection)
            faults = (await audit_chain.verify(connection, check)).failures
            await connection.rollback()
        assert any(words in fault.reason for fault in faults), (name, faults)


_CUT = (
    "DELETE FROM audit WHERE number <= 10",
    "DELETE FROM audit_link WHERE number <= 10",
    "UPDATE audit_head SET cut = 10",
)
_FEIGNED = (
    "INSERT INTO audit_checkpoint (reason, number, hash) SELECT 'cut', number, hash"
    " FROM audit_checkpoint WHERE number = 10 LIMIT 1"
)


async def test_a_beginning_that_was_cut_at_a_checkpoint_is_found(engine: AsyncEngine) -> None:
    key = new_key()
    await _introduce(engine, key)
    for _ in range(2):
        await _write(engine, key)
    async with engine.connect() as connection:
        newest_signed = await audit_chain.find_newest_signed(connection)
    assert newest_signed is not None
    assert (await verify_chain(engine, newest_signed)).failures == []
    # that the chain stood there does not say that it was cut there
    assert "no checkpoint says that it was cut here" in (await _find_reasons(engine, *_CUT))[0]
    # nor does what anybody may have written
    assert "nothing signed says that it was cut" in (await _find_reasons(engine, _FEIGNED))[0]
    # if all signed checkpoints are gone here, the bucket has the newest
    gone = "DELETE FROM audit_checkpoint WHERE jsonb_typeof(signed) = 'object'"
    assert await _find_reasons(engine, gone) == []
    (fault,) = (await verify_chain(engine, newest_signed)).failures
    assert "nothing signed says that it was cut" in fault.reason


async def test_detects_a_removed_signed_checkpoint(engine: AsyncEngine) -> None:
    key = new_key()
    await _introduce(engine, key)
    for _ in range(3):
        await _write(engine, key)
    reasons = await _find_reasons(engine, "DELETE FROM audit_checkpoint WHERE number = 20")
    assert len(reasons) == 1
    assert "the signed checkpoint before its own is missing" in reasons[0]


async def test_retention_takes_none_out_of_their_middle(engine: AsyncEngine) -> None:
    key = new_key()
    await _introduce(engine, key)
    for _ in range(2):
        await _write(engine, key)
        for limit in (4, 3):
            async with engine.begin() as connection:
                sign = await find_signer(connection, [key])
                await audit_chain.prune_entries(
                    connection, older_than_seconds=0, limit=limit, sign=sign
                )
            assert (await verify_chain(engine)).failures == []
