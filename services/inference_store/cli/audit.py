"""`inference-store audit verify`: whether the chain over the audit closes, and what is wrong."""

import argparse
import asyncio
import sys

from sqlalchemy.exc import DBAPIError

from inference_store.store import audit_chain
from inference_store.store.audit_chain import Verdict
from inference_store.store.database import engine_of
from inference_store.store.schema import require_schema
from inference_store.store.settings import LogSettings, PostgresSettings

from .start import started


class _Settings(LogSettings, PostgresSettings):
    """What the audit needs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is done."""
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("verify", help="walk the chain, and say what was changed or removed")


def run(_: argparse.Namespace) -> int:
    """Say each fault on a line of standard output; 1 where there is one."""
    settings = started(_Settings, "audit")
    try:
        verdict = asyncio.run(_verify(settings))
    except (DBAPIError, OSError) as away:
        sys.exit(f"Postgres is away, or not migrated (inference-store migrate): {away}"[:500])
    for fault in verdict.faults:
        print(f"{fault.number}: {fault.sentence}")
    print(_summary(verdict), file=sys.stderr)
    return 1 if verdict.faults else 0


async def _verify(settings: _Settings) -> Verdict:
    engine = engine_of(settings, application="inference-store-audit", pool_size=1)
    try:
        async with engine.connect() as connection:
            # One snapshot: what is written meanwhile is no fault.
            await connection.execution_options(isolation_level="REPEATABLE READ")
            await require_schema(connection)
            return await audit_chain.verify(connection)
    finally:
        await engine.dispose()


def _summary(verdict: Verdict) -> str:
    found = len(verdict.faults)
    return (
        f"{verdict.linked} entries ({verdict.first} to {verdict.head}), of {verdict.taken} an"
        f" erasure took the values; {verdict.checkpoints} checkpoints ({verdict.signed} signed);"
        f" {verdict.unlinked} entries are not in the chain yet; {found or 'no'} faults."
        f" The head is {verdict.head_hash.hex()}."
    )
