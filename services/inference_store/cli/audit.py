"""`inference-store audit verify`: checks the chain over the audit, and reports what is invalid."""

import argparse
import asyncio
import json
import sys
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import audit_chain
from inference_store.erasure.audit_chain import Verdict
from inference_store.erasure.certify.chain import Archive, CheckpointCheck
from inference_store.erasure.ledger.entries import Entries
from inference_store.erasure.log.bucket import AUDIT_HEAD, ChainHead
from inference_store.erasure.log.hash_chain import Link
from inference_store.index.database import engine_of
from inference_store.index.schema import require_schema
from inference_store.inference.errors import LedgerDiverged, ObjectStoreUnavailable
from inference_store.inference.plural import counted
from inference_store.objects import Blobs
from inference_store.platform.settings import BlobSettings, LogSettings, PostgresSettings

from .postgres import require_postgres
from .start import start_service


class _Settings(LogSettings, PostgresSettings):
    """The settings of the command."""


class _WithLedger(_Settings, BlobSettings):
    """The settings of the command, and of the ledger."""


SETTINGS = _WithLedger


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the action to run, and its arguments."""
    commands = parser.add_subparsers(dest="what", required=True)
    verify = commands.add_parser("verify", help="walk the chain, and say what was changed")
    verify.add_argument(
        "--ledger", action="store_true", help="compare with the checkpoints in the bucket too"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print each failure on a line of standard output; return 1 if there is one."""
    settings = start_service(_WithLedger if arguments.ledger else _Settings, "audit")
    try:
        with require_postgres():
            verdict = asyncio.run(_verify(settings))
    except (ObjectStoreUnavailable, LedgerDiverged) as error:
        sys.exit(str(error))
    for failure in verdict.failures:
        print(f"{failure.number}: {failure.reason}")
    print(_summarize(verdict), file=sys.stderr)
    return 1 if verdict.failures else 0


async def _verify(settings: _Settings) -> Verdict:
    engine = engine_of(settings, application="inference-store-audit", pool_size=1)
    try:
        anchors: list[Link] = []
        locked: list[dict[str, Any]] = []
        if isinstance(settings, _WithLedger):
            anchors = await asyncio.to_thread(_find_anchors, settings)
            locked = await asyncio.to_thread(_read_locked, settings)
        async with engine.connect() as connection:
            # One snapshot: what is written meanwhile is not a failure.
            await connection.execution_options(isolation_level="REPEATABLE READ")
            await require_schema(connection)
            check = await _open_check(settings, connection)
            return await audit_chain.verify(connection, check, anchors, locked)
    finally:
        await engine.dispose()


async def _open_check(settings: _Settings, connection: AsyncConnection) -> CheckpointCheck:
    if not isinstance(settings, _WithLedger):
        return await CheckpointCheck.of(connection)
    with Blobs(settings) as blobs:
        return await CheckpointCheck.of(connection, Archive(blobs))


def _find_anchors(settings: _WithLedger) -> list[Link]:
    """Return the newest checkpoint of the ledger, searched backwards from its end."""
    with Blobs(settings) as blobs:
        entries = Entries(blobs, settings.ledger_prefix)
        for number in range(entries.find_last(), 0, -1):
            entry = entries.get(number)
            if entry is None:  # the chain of the ledger was restarted: its beginning is elsewhere
                break
            if entry.kind == "audit_checkpoint" and entry.content is not None:
                body = entry.content.body
                return [Link(body["number"], bytes.fromhex(body["hash"]))]
    return []


def _read_locked(settings: _WithLedger) -> list[dict[str, Any]]:
    """Return the signed checkpoints that are locked in the bucket, so that nobody can remove
    them."""
    head = ChainHead(settings, lock_days=0, key=AUDIT_HEAD)
    return [json.loads(version.text) for version in head.versions()]


def _summarize(verdict: Verdict) -> str:
    failure_count, end = len(verdict.failures), verdict.end
    return (
        f"{counted(verdict.linked, 'entry', 'entries')} ({verdict.first} to {end.number}), of"
        f" {verdict.redacted} an erasure took the values;"
        f" {counted(verdict.checkpoints, 'checkpoint')}"
        f" ({verdict.signed} signed);"
        f" {counted(verdict.unlinked, 'entry is', 'entries are')} not in the chain yet;"
        f" {counted(failure_count, 'fault') if failure_count else 'no faults'}."
        f" The head is {end.hash.hex()}."
    )
