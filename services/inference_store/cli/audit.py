"""`inference-store audit verify`: checks the chain over the audit, and reports what is invalid."""

import argparse
import asyncio
import json
import sys
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import audit_chain
from inference_store.erasure.audit_chain import Verdict
from inference_store.erasure.certificates.archive import Archive
from inference_store.erasure.certificates.audit_checkpoints import Checking
from inference_store.erasure.certificates.head import AUDIT_KEY, Head
from inference_store.erasure.ledger.entries import Entries
from inference_store.index.database import engine_of
from inference_store.index.schema import require_schema
from inference_store.inference.errors import BlobsAway, LedgerApart
from inference_store.inference.plural import counted
from inference_store.objects import Blobs
from inference_store.platform.settings import BlobSettings, LogSettings, PostgresSettings

from .start import start_service


class _Settings(LogSettings, PostgresSettings):
    """The settings of the command."""


class _WithLedger(_Settings, BlobSettings):
    """The settings of the command, and of the ledger."""


SETTINGS = _WithLedger


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is done."""
    commands = parser.add_subparsers(dest="what", required=True)
    verify = commands.add_parser("verify", help="walk the chain, and say what was changed")
    verify.add_argument(
        "--ledger", action="store_true", help="compare with the checkpoints in the bucket too"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print each failure on a line of standard output; return 1 if there is one."""
    settings = start_service(_WithLedger if arguments.ledger else _Settings, "audit")
    try:
        verdict = asyncio.run(_verify(settings))
    except (BlobsAway, LedgerApart) as away:
        sys.exit(str(away))
    except (DBAPIError, OSError) as away:
        sys.exit(f"Postgres is away, or not migrated (inference-store migrate): {away}"[:500])
    for fault in verdict.faults:
        print(f"{fault.number}: {fault.sentence}")
    print(_summarize(verdict), file=sys.stderr)
    return 1 if verdict.faults else 0


async def _verify(settings: _Settings) -> Verdict:
    engine = engine_of(settings, application="inference-store-audit", pool_size=1)
    try:
        anchors: list[tuple[int, bytes]] = []
        kept: list[dict[str, Any]] = []
        if isinstance(settings, _WithLedger):
            anchors = await asyncio.to_thread(_find_anchors, settings)
            kept = await asyncio.to_thread(_read_locked, settings)
        async with engine.connect() as connection:
            # One snapshot: what is written meanwhile is no failure.
            await connection.execution_options(isolation_level="REPEATABLE READ")
            await require_schema(connection)
            check = await _open_check(settings, connection)
            return await audit_chain.verify(connection, check, anchors, kept)
    finally:
        await engine.dispose()


async def _open_check(settings: _Settings, connection: AsyncConnection) -> Checking:
    if not isinstance(settings, _WithLedger):
        return await Checking.of(connection)
    with Blobs(settings) as blobs:
        return await Checking.of(connection, Archive(blobs))


def _find_anchors(settings: _WithLedger) -> list[tuple[int, bytes]]:
    """Return the newest checkpoint of the ledger, searched backwards from its end."""
    with Blobs(settings) as blobs:
        entries = Entries(blobs, settings.ledger_prefix)
        for number in range(entries.last(), 0, -1):
            entry = entries.get(number)
            if entry is None:  # the chain of the ledger was restarted: its beginning is elsewhere
                break
            if entry.kind == "audit_checkpoint" and entry.said is not None:
                return [(entry.said.body["number"], bytes.fromhex(entry.said.body["hash"]))]
    return []


def _read_locked(settings: _WithLedger) -> list[dict[str, Any]]:
    """Return the signed checkpoints that are locked in the bucket, so that nobody can remove
    them."""
    head = Head(settings, lock_days=0, key=AUDIT_KEY)
    return [json.loads(one.text) for one in head.versions()]


def _summarize(verdict: Verdict) -> str:
    found = len(verdict.faults)
    return (
        f"{counted(verdict.linked, 'entry', 'entries')} ({verdict.first} to {verdict.head}), of"
        f" {verdict.taken} an erasure took the values; {counted(verdict.checkpoints, 'checkpoint')}"
        f" ({verdict.signed} signed);"
        f" {counted(verdict.unlinked, 'entry is', 'entries are')} not in the chain yet;"
        f" {counted(found, 'fault') if found else 'no faults'}."
        f" The head is {verdict.head_hash.hex()}."
    )
