"""`inference-store audit verify`: says what is wrong, and its exit code too."""

import subprocess
import sys
from pathlib import Path
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store import audit_chain
from inference_store.store.access import Action, Who, note
from tests.servers.fixtures import MakeEnvironment


def _verify(environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "inference_store.cli.main", "audit", "verify"]
    return subprocess.run(
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


async def test_verify_from_the_command_line(
    service_environment: MakeEnvironment, engine: AsyncEngine, tmp_path: Path
) -> None:
    environment = service_environment()
    async with engine.begin() as connection:
        uids = [UUID(int=number) for number in range(5)]
        await note(connection, Who("key:ada", None), Action.DATA_READ, uids=uids)
        assert await audit_chain.link(connection, limit=4) == 4
    good = _verify(environment, tmp_path)
    assert (good.returncode, good.stdout) == (0, "")
    assert "4 entries (1 to 4)" in good.stderr
    assert "1 entries are not in the chain yet; no faults" in good.stderr
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE audit DISABLE TRIGGER USER"))
        await connection.execute(text("UPDATE audit SET actor = 'key:eve' WHERE number = 3"))
    bad = _verify(environment, tmp_path)
    assert bad.returncode == 1
    assert bad.stdout.startswith("3: entry ")
    assert "1 faults" in bad.stderr
