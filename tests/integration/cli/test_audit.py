"""`inference-store audit verify` lists faults, and shows them by its exit code."""

from pathlib import Path
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure import audit_chain
from inference_store.erasure.ledger import Ledger
from inference_store.index.audit import note
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from tests.servers.fixtures import MakeEnvironment
from tests.settings import read_settings
from tests.warm.process import run_command

_TABLES = ("audit", "audit_link")


async def add_entries(engine: AsyncEngine, ledger: Ledger, count: int) -> None:
    """Note reads, link them, and write a checkpoint of the chain to the ledger."""
    async with engine.begin() as connection:
        uids = [UUID(int=number) for number in range(count)]
        await note(connection, Who("key:ada", None), Action.DATA_READ, uids=uids)
        await audit_chain.link_entries(connection, limit=100)
        checkpoint = await audit_chain.make_checkpoint(connection)
    assert checkpoint is not None
    await ledger.write("audit_checkpoint", checkpoint, actor="retention")


async def test_verify_from_the_command_line(
    service_environment: MakeEnvironment, engine: AsyncEngine, tmp_path: Path
) -> None:
    environment = service_environment()

    def verify(*more: str) -> tuple[int, str, str]:
        done = run_command("audit", "verify", *more, environment=environment, folder=tmp_path)
        return done.returncode, done.stdout, done.stderr

    async def change(*statements: str) -> None:
        async with engine.begin() as connection:
            for statement in statements:
                await connection.execute(text(statement))

    settings = read_settings(RetentionSettings, environment)
    with Blobs(settings) as blobs:
        ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
        await add_entries(engine, ledger, 3)
        await add_entries(engine, ledger, 4)
    async with engine.begin() as connection:
        await note(connection, Who("key:ada", None), Action.DATA_READ, uids=[UUID(int=1)])
    code, printed, said = verify("--ledger")
    assert (code, printed) == (0, "")
    assert "7 entries (1 to 7)" in said
    assert "1 entry is not in the chain yet; no faults" in said
    await change(*(f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in _TABLES))
    await change("UPDATE audit SET actor = 'key:eve' WHERE number = 3")
    code, printed, said = verify()
    assert (code, printed.startswith("3: entry "), "1 fault." in said) == (1, True, True)
    await change("UPDATE audit SET actor = 'key:ada' WHERE number = 3")
    # Who truncates the chain and all that Postgres has of it cannot truncate the ledger.
    await change(
        *(f"DELETE FROM {table} WHERE number > 5" for table in _TABLES),
        "UPDATE audit_head SET (number, hash) = (SELECT number, hash FROM audit_link"
        " WHERE number = 5), checkpoint = NULL",
    )
    assert verify()[0] == 0
    code, printed, _ = verify("--ledger")
    assert code == 1
    assert printed.startswith("7: a checkpoint stands beyond the chain's end")
