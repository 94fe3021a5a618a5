"""The chain over the audit on a real Postgres: whatever is done to it behind our back is found."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure import audit_chain
from inference_store.erasure.audit_chain import Checkpoint, Copy, Verdict
from inference_store.index.audit import note
from inference_store.index.tables import audit, audit_head, audit_link
from tests.transactions import execute, fetch, transact

_ADA = Who("key:ada", "192.0.2.1")
_UIDS = [UUID(int=number) for number in range(1, 21)]


async def _write(engine: AsyncEngine, *uids: UUID, link: bool = True) -> None:
    """Write entries about these inferences, each linked in the chain."""
    name = 'Łódź \u2028 "q"'
    async with engine.begin() as connection:
        await note(connection, _ADA, Action.DATA_READ, uids=uids, of=1.5, name=name)
    if link:
        async with engine.begin() as connection:
            while await audit_chain.link_entries(connection, limit=7):
                pass


async def verify_chain(
    engine: AsyncEngine, *checkpoints: Checkpoint, is_signed: bool = False
) -> Verdict:
    copies = [Copy("the ledger", checkpoint, is_signed) for checkpoint in checkpoints]
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        return await audit_chain.verify(connection, copies)


async def tamper(engine: AsyncEngine, *statements: str) -> None:
    """Change rows as the owner of the tables can."""
    guards = [f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in ("audit", "audit_link")]
    async with engine.begin() as connection:
        for statement in (*guards, *statements):
            await connection.execute(text(statement))


async def _make_checkpoint(
    connection: AsyncConnection, *, keep_seconds: float | None = None
) -> Checkpoint | None:
    """Store a checkpoint as a replay of the ledger does."""
    body = await audit_chain.make_checkpoint(connection, keep_seconds=keep_seconds)
    if body is not None:
        await audit_chain.apply_checkpoint(connection, body, datetime.now(UTC), "retention")
    return body


async def _prune(engine: AsyncEngine, *, keep_seconds: float, limit: int) -> int:
    """Cut once; return how many entries."""
    async with engine.begin() as connection:
        await _make_checkpoint(connection, keep_seconds=keep_seconds)
        return await audit_chain.prune_entries(connection, limit=limit)


_TAMPERED = {
    "an actor": ("UPDATE audit SET actor = 'key:eve' WHERE number = 5", 5, "was changed"),
    "a time": ("UPDATE audit SET at = at - interval '1 day' WHERE number = 5", 5, "was changed"),
    "an action": ("UPDATE audit SET action = 'links_made' WHERE number = 5", 5, "was changed"),
    "a client": ("UPDATE audit SET client = NULL WHERE number = 5", 5, "was changed"),
    "a model": ("UPDATE audit SET model_id = 'other' WHERE number = 5", 5, "was changed"),
    "a model's number": ("UPDATE audit SET model = 7 WHERE number = 5", 5, "was changed"),
    "a uid": ("UPDATE audit SET uid = gen_random_uuid() WHERE number = 5", 5, "values were"),
    "a detail": ("UPDATE audit SET detail = '{\"of\": 2}' WHERE number = 5", 5, "values were"),
    "values removed": ("UPDATE audit SET uid = NULL, detail = '{}' WHERE number = 5", 5, "values"),
    "values removed, an erasure feigned": (
        "UPDATE audit SET uid = NULL, detail = '{}', taken_by = 6 WHERE number = 5",
        5,
        "no entry says",
    ),
    "a salt": ("UPDATE audit_link SET salt = NULL WHERE number = 5", 5, "salt"),
    "an entry": ("DELETE FROM audit WHERE number = 5", 5, "was removed"),
    "a link": ("DELETE FROM audit_link WHERE number = 5", 5, "were removed"),
    "a link's hash": ("UPDATE audit_link SET hash = '\\x00' WHERE number = 5", 5, "changed"),
    "a hash of values": (
        "UPDATE audit_link SET values_hash = '\\x00' WHERE number = 5", 5, "changed",
    ),
    "two entries changed places": (
        "UPDATE audit_link SET entry = 5 + 6 - entry + 1000 WHERE number IN (5, 6);"
        "UPDATE audit_link SET entry = entry - 1000 WHERE number IN (5, 6)", 5, "changed",
    ),
    "a tail": (
        "DELETE FROM audit WHERE number > 15; DELETE FROM audit_link WHERE number > 15",
        16,
        "tail was cut",
    ),
    "a beginning": (
        "DELETE FROM audit WHERE number <= 5; DELETE FROM audit_link WHERE number <= 5;"
        "UPDATE audit_head SET cut = 5",
        5,
        "no checkpoint says",
    ),
    "a forged entry": (
        "INSERT INTO audit (actor, action, number) VALUES ('key:ada', 'data_read', 9)", 9, "no link"
    ),
    "a place": ("UPDATE audit SET number = NULL WHERE number = 5", 5, "its place is None"),
}  # fmt: skip


async def test_what_was_done_is_found(engine: AsyncEngine) -> None:
    await _write(engine, *_UIDS)
    await tamper(engine)
    for name, (statements, number, words) in _TAMPERED.items():
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="REPEATABLE READ")
            for statement in statements.split(";"):
                await connection.execute(text(statement))
            faults = (await audit_chain.verify(connection)).failures
            await connection.rollback()
        assert [fault.number for fault in faults][:1] == [number], (name, faults)
        assert any(words in fault.reason for fault in faults), (name, faults)
    assert (await verify_chain(engine)).failures == []


async def test_a_tail_cut_with_its_head_is_found_by_a_checkpoint(engine: AsyncEngine) -> None:
    await _write(engine, *_UIDS)
    async with engine.begin() as connection:
        assert await _make_checkpoint(connection) is not None
        assert await _make_checkpoint(connection) is None
    assert (await verify_chain(engine)).failures == []
    await tamper(
        engine,
        "DELETE FROM audit WHERE number > 15",
        "DELETE FROM audit_link WHERE number > 15",
        "UPDATE audit_head SET (number, hash) = (SELECT number, hash FROM audit_link"
        " ORDER BY number DESC LIMIT 1)",
    )
    [fault] = (await verify_chain(engine)).failures
    assert fault.number == 20
    assert "beyond the chain's end" in fault.reason


async def test_a_checkpoint_reveals_a_replaced_chain(engine: AsyncEngine) -> None:
    await _write(engine, *_UIDS)
    await transact(engine, _make_checkpoint)
    await tamper(
        engine,
        "DELETE FROM audit WHERE number = 5",
        "DELETE FROM audit_link",
        "UPDATE audit SET number = NULL",
        "UPDATE audit_head SET number = 0, hash = decode(repeat('00', 32), 'hex')",
    )
    await _write(engine, uuid4())
    [fault] = (await verify_chain(engine)).failures
    assert "made again" in fault.reason


_REFUSED = (
    "UPDATE audit SET actor = 'key:eve' WHERE number = 5",
    "UPDATE audit SET uid = NULL, detail = '{}' WHERE number = 5",
    "UPDATE audit SET uid = NULL, detail = '{}', taken_by = 1, actor = 'x' WHERE number = 5",
    "DELETE FROM audit WHERE number = 5",
    "DELETE FROM audit_link WHERE number = 5",
    "UPDATE audit_link SET hash = '\\x00' WHERE number = 5",
)


async def test_postgres_refuses_it_in_the_first_place(engine: AsyncEngine) -> None:
    await _write(engine, *_UIDS)
    await transact(engine, _make_checkpoint)
    for statement in _REFUSED:
        with pytest.raises(DBAPIError, match="append-only"):
            await execute(engine, statement)
    assert (await verify_chain(engine)).failures == []


async def test_values_removed_by_an_erasure_are_no_fault(engine: AsyncEngine) -> None:
    await _write(engine, *_UIDS)
    await _write(engine, _UIDS[0], _UIDS[19], link=False)
    erasure = uuid4()
    async with engine.begin() as connection:
        assert await audit_chain.redact_values(connection, erasure, uids=_UIDS[:2]) == 3
        assert await audit_chain.redact_values(connection, erasure, uids=_UIDS[:2]) == 0
    await _write(engine)
    verdict = await verify_chain(engine)
    assert verdict.failures == []
    assert (verdict.linked, verdict.redacted) == (24, 3)
    async with engine.connect() as connection:
        rows_left = (
            await connection.execute(select(audit).where(audit.c.taken_by.is_not(None)))
        ).all()
        assert {(row.uid, row.actor, row.action) for row in rows_left} == {
            (None, "key:ada", "data_read")
        }
        assert {str(row.detail) for row in rows_left} == {"{}"}
        salts = select(func.count()).where(audit_link.c.salt.is_(None))
        assert await connection.scalar(salts) == 3
        mentions = (await connection.execute(
            select(audit.c.detail).where(audit.c.action == "audit_values_taken")
        )).scalar_one()  # fmt: skip
        assert mentions == {"erasure": str(erasure), "entries": sorted(row.id for row in rows_left)}


async def test_the_record_of_taken_values_cannot_be_removed(engine: AsyncEngine) -> None:
    await _write(engine, *_UIDS)
    await transact(engine, audit_chain.redact_values, uuid4(), uids=_UIDS[:2])
    await _write(engine)
    await tamper(engine, "DELETE FROM audit WHERE action = 'audit_values_taken'")
    numbers = {fault.number: fault.reason for fault in (await verify_chain(engine)).failures}
    assert set(numbers) == {1, 2, 21}


async def test_retention_leaves_a_checkpoint_where_it_cuts(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.exec_driver_sql(
            "INSERT INTO audit (at, actor, action) SELECT now() - n * interval '1 day',"
            " 'x', 'y' FROM generate_series(9, 0, -1) AS n"
        )
        await audit_chain.link_entries(connection, limit=100)
    for expected in (3, 2, 0):
        assert await _prune(engine, keep_seconds=4.5 * 86400, limit=3) == expected
        assert (await verify_chain(engine)).failures == []
    verdict = await verify_chain(engine)
    assert (verdict.first, verdict.end.number, verdict.checkpoints) == (6, 10, 1)
    await tamper(engine, "UPDATE audit_head SET checkpoint = NULL")
    [fault] = (await verify_chain(engine)).failures
    assert (fault.number, "no checkpoint says" in fault.reason) == (5, True)


async def test_two_writers_and_readers_in_between_make_one_chain(engine: AsyncEngine) -> None:
    async def link() -> None:
        for _ in range(20):
            await transact(engine, audit_chain.link_entries, limit=5)

    async def write(own: int) -> None:
        for number in range(15):
            await _write(engine, UUID(int=own + number), link=False)
            await transact(
                engine, audit_chain.redact_values, uuid4(), uids=[UUID(int=own + number)]
            )

    await asyncio.gather(link(), link(), write(1000), write(2000), write(3000))
    await _write(engine)
    verdict = await verify_chain(engine)
    assert verdict.failures == []
    assert (verdict.linked, verdict.redacted, verdict.unlinked) == (91, 45, 0)


async def test_a_restored_backup_continues_after_the_entries_it_lacks(engine: AsyncEngine) -> None:
    """The ledger is replayed: its checkpoint tells how far the chain had come."""
    await _write(engine, *_UIDS)
    at = datetime.now(UTC).isoformat()
    body = {"number": 30_000, "hash": "ab" * 32, "cut": 0, "cut_hash": "00" * 32, "at": at}
    async with engine.begin() as connection:
        for _ in range(2):
            await audit_chain.apply_checkpoint(connection, body, datetime.now(UTC), "retention")
    await _write(engine, *_UIDS[:3])
    verdict = await verify_chain(engine)
    assert (verdict.end.number, verdict.linked, verdict.checkpoints) == (30_003, 23, 1)
    [fault] = verdict.failures
    assert fault.number == 21
    assert "missing up to 30000" in fault.reason
    assert "older backup" in fault.reason
    # what is old enough goes from both sides of the gap
    pruned = [await _prune(engine, keep_seconds=0, limit=8) for _ in range(5)]
    assert pruned == [8, 8, 7, 0, 0]
    assert (await verify_chain(engine)).failures == []


async def test_a_restored_backup_is_cut_where_the_chain_was_cut_since(engine: AsyncEngine) -> None:
    await _write(engine, *_UIDS)
    hashes = {"hash": "ab" * 32, "cut_hash": "cd" * 32}
    body = {"number": 30, "cut": 25, "at": datetime.now(UTC).isoformat(), **hashes}
    async with engine.begin() as connection:
        await audit_chain.apply_checkpoint(connection, body, datetime.now(UTC), "retention")
    pruned = [await transact(engine, audit_chain.prune_entries, limit=8) for _ in range(4)]
    assert pruned == [8, 8, 4, 0]
    await _write(engine, *_UIDS[:3])
    verdict = await verify_chain(engine)
    assert (verdict.first, verdict.end.number) == (26, 33)
    [fault] = verdict.failures
    assert "missing up to 30" in fault.reason


async def test_a_copy_kept_elsewhere_reveals_a_replaced_chain(engine: AsyncEngine) -> None:
    await _write(engine, *_UIDS)
    async with engine.begin() as connection:
        good = await _make_checkpoint(connection)
    assert good is not None
    assert (await verify_chain(engine, good)).failures == []
    await tamper(engine, "UPDATE audit_head SET checkpoint = NULL")
    for number, words in ((20, "made again"), (21, "beyond")):
        other = {**good, "number": number, "hash": "ab" * 32}
        [fault] = (await verify_chain(engine, other)).failures
        assert words in fault.reason


async def test_two_checkpoints_that_differ_are_found(engine: AsyncEngine) -> None:
    await _write(engine, *_UIDS)
    async with engine.begin() as connection:
        good = await _make_checkpoint(connection)
    assert good is not None
    [fault] = (await verify_chain(engine, {**good, "hash": "ab" * 32})).failures
    assert fault.reason == "its checkpoint in the ledger has another hash for it"
    [fault] = (await verify_chain(engine, {})).failures
    assert fault.reason == "its checkpoint in the ledger cannot be read"


async def find_checkpoint(engine: AsyncEngine) -> Checkpoint:
    (checkpoint,) = await fetch(engine, select(audit_head.c.checkpoint))
    return dict(checkpoint)


async def _write_and_mark(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        for _ in range(10):
            await note(connection, Who("key:ada", None), Action.LINKS_MADE)
        await audit_chain.link_entries(connection, limit=100)
        assert await _make_checkpoint(connection) is not None


async def _find_reasons(engine: AsyncEngine, *statements: str) -> list[str]:
    await tamper(engine, *statements)
    return [fault.reason for fault in (await verify_chain(engine)).failures]


_CUT = (
    "DELETE FROM audit WHERE number <= 10",
    "DELETE FROM audit_link WHERE number <= 10",
    "UPDATE audit_head SET cut = 10, cut_hash = decode(checkpoint ->> 'cut_hash', 'hex')",
)
_FEIGNED = (
    "UPDATE audit_head SET checkpoint = jsonb_set(jsonb_set(checkpoint, '{cut}', '10'),"
    " '{cut_hash}', to_jsonb((SELECT encode(hash, 'hex') FROM audit_link WHERE number = 10)))"
)


async def test_a_beginning_that_was_cut_at_a_checkpoint_is_found(engine: AsyncEngine) -> None:
    for _ in range(2):
        await _write_and_mark(engine)
    newest = await find_checkpoint(engine)
    verdict = await verify_chain(engine, newest, is_signed=True)
    assert (verdict.failures, verdict.signed) == ([], 1)
    await tamper(engine, _FEIGNED, *_CUT)
    # anybody may have written what nobody signed: the ledger has the newest that was signed
    assert (await verify_chain(engine)).failures == []
    (fault,) = (await verify_chain(engine, newest, is_signed=True)).failures
    assert "nothing signed says that it was cut" in fault.reason
    # that the chain stood there does not say that it was cut there
    await tamper(engine, "UPDATE audit_head SET checkpoint = NULL")
    assert "no checkpoint says that it was cut here" in (await _find_reasons(engine))[0]
