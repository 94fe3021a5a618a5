"""`inference-store audit verify` lists faults, and shows them by its exit code."""

import subprocess
from pathlib import Path
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure import audit_chain
from inference_store.erasure.ledger import Ledger
from inference_store.index.audit import note
from inference_store.objects import Blobs
from inference_store.platform.settings import BlobSettings, PostgresSettings
from tests.servers.fixtures import MakeEnvironment
from tests.warm.process import run_command


class _LedgerSettings(PostgresSettings, BlobSettings):
    """The settings that a ledger needs."""


_TABLES = ("audit", "audit_link", "audit_checkpoint")


def _verify(
    environment: dict[str, str], folder: Path, *more: str
) -> subprocess.CompletedProcess[str]:
    return run_command("audit", "verify", *more, environment=environment, folder=folder)


async def test_verify_from_the_command_line(
    service_environment: MakeEnvironment, engine: AsyncEngine, tmp_path: Path
) -> None:
    environment = service_environment()
    async with engine.begin() as connection:
        uids = [UUID(int=number) for number in range(5)]
        await note(connection, Who("key:ada", None), Action.DATA_READ, uids=uids)
        assert await audit_chain.link_entries(connection, limit=4) == 4
    good = _verify(environment, tmp_path)
    assert (good.returncode, good.stdout) == (0, "")
    assert "4 entries (1 to 4)" in good.stderr
    assert "1 entry is not in the chain yet; no faults" in good.stderr
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE audit DISABLE TRIGGER USER"))
        await connection.execute(text("UPDATE audit SET actor = 'key:eve' WHERE number = 3"))
    bad = _verify(environment, tmp_path)
    assert bad.returncode == 1
    assert bad.stdout.startswith("3: entry ")
    assert "1 fault." in bad.stderr


async def test_ledger_shows_a_truncated_audit(
    service_environment: MakeEnvironment, engine: AsyncEngine, bucket: str, tmp_path: Path
) -> None:
    environment = service_environment(S3_BUCKET=bucket)
    settings = _LedgerSettings.model_validate(
        {
            name.removeprefix("INFERENCE_STORE_").lower(): value
            for name, value in environment.items()
            if name.startswith("INFERENCE_STORE_")
        }
    )
    with Blobs(settings) as blobs:
        ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
        for count in (3, 4):
            async with engine.begin() as connection:
                uids = [UUID(int=number) for number in range(count)]
                await note(connection, Who("key:ada", None), Action.DATA_READ, uids=uids)
                await audit_chain.link_entries(connection, limit=100)
                body = await audit_chain.make_checkpoint(connection)
            assert body is not None
            await ledger.write("audit_checkpoint", body, actor="retention")
    assert _verify(environment, tmp_path, "--ledger").returncode == 0
    async with engine.begin() as connection:
        for statement in (
            *(f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in _TABLES),
            "DELETE FROM audit WHERE number > 5",
            "DELETE FROM audit_link WHERE number > 5",
            "DELETE FROM audit_checkpoint WHERE number > 5",
            "UPDATE audit_head SET (number, hash) = (SELECT number, hash FROM audit_link"
            " WHERE number = 5)",
        ):
            await connection.execute(text(statement))
    assert _verify(environment, tmp_path).returncode == 0
    result = _verify(environment, tmp_path, "--ledger")
    assert result.returncode == 1
    assert result.stdout.startswith("7: a checkpoint stands beyond the chain's end")
