"""`inference-store ledger show|replay|restart-chain`: the decisions about deletion in the bucket.

Entries go to standard output, one JSON object a line; everything else goes to standard error.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import DBAPIError

from inference_store.erasure.ledger import Entry, Ledger
from inference_store.index.database import engine_of
from inference_store.index.schema import require_schema
from inference_store.inference.errors import LedgerDiverged, ObjectStoreUnavailable
from inference_store.inference.plural import counted
from inference_store.objects import Blobs
from inference_store.platform.settings import BlobSettings, LogSettings, PostgresSettings

from .closed_pipe import raise_if_reader_is_gone
from .entered import parse_limit, parse_number
from .start import start_service
from .user import find_cli_user

_DIVERGED = 1
_UNAVAILABLE = 3
_AFTER_A_RESTORE = """If Postgres was restored from a backup:
- all sessions have ended, and API keys are as they were last. A key that the ledger does not know
  works once you confirm it: `inference-store keys list`, `inference-store keys confirm ID`;
- the audit lacks its entries since the backup."""
Work = Callable[[Ledger], Awaitable[int]]


class _Settings(LogSettings, PostgresSettings, BlobSettings):
    """The settings of the command."""


SETTINGS = _Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their arguments."""
    commands = parser.add_subparsers(dest="what", required=True)
    show = commands.add_parser("show", help="compare bucket and Postgres, and print entries")
    show.add_argument("--after", type=parse_number, default=0, help="print those after this number")
    show.add_argument("--limit", type=parse_limit, default=100, help="print at most so many")
    replay = commands.add_parser("replay", help="give a restored Postgres what came since")
    replay.add_argument(
        "--skip-forgotten",
        action="store_true",
        help="pass over entries that have forgotten what they said; they are named",
    )
    commands.add_parser(
        "restart-chain",
        help="go on in a bucket, or under a prefix, that is empty",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand; return 1 if bucket and Postgres diverge, with the remedy, and 3 if one is
    unavailable."""
    settings = start_service(_Settings, "ledger")
    try:
        return asyncio.run(_run(settings, _choose_work(arguments)))
    except LedgerDiverged as error:
        _say(error.detail)
        return _DIVERGED
    except ObjectStoreUnavailable as error:
        _say(f"The object store is unavailable: {error}")
        return _UNAVAILABLE
    except (DBAPIError, OSError) as error:
        raise_if_reader_is_gone(error)
        _say(f"Postgres is unavailable: {error}"[:500])
        return _UNAVAILABLE


async def _run(settings: _Settings, work: Work) -> int:
    engine = engine_of(settings, application="inference-store-ledger", pool_size=1)
    try:
        async with engine.connect() as connection:
            await require_schema(connection)
        with Blobs(settings) as blobs:
            return await work(Ledger(engine, blobs, prefix=settings.ledger_prefix))
    finally:
        await engine.dispose()


def _choose_work(arguments: argparse.Namespace) -> Work:
    match arguments.what:
        case "show":
            return _show(arguments.after, arguments.limit)
        case "replay":
            return _replay(arguments.skip_forgotten)
        case _:
            return _restart_chain


def _show(after: int, limit: int) -> Work:
    async def work(ledger: Ledger) -> int:
        for entry in await asyncio.to_thread(ledger.entries.read_after, after, limit):
            print(json.dumps(_format_entry(entry), ensure_ascii=False, sort_keys=True))
        comparison = await ledger.compare()
        _say(f"Bucket and Postgres agree: entry {comparison.head.number} is the last.")
        return 0

    return work


def _replay(skip_forgotten: bool) -> Work:
    def say(entry: Entry) -> None:
        passed = "" if entry.content is not None else ", forgotten: passed over"
        _say(f"{entry.number}  {entry.at:%Y-%m-%d %H:%M:%S} UTC  {entry.kind}{passed}")

    async def work(ledger: Ledger) -> int:
        count = await ledger.replay(skip_forgotten=skip_forgotten, report=say)
        _say(f"{counted(count, 'entry', 'entries')} replayed: bucket and Postgres agree.")
        if count:
            _say(_AFTER_A_RESTORE)
        return 0

    return work


async def _restart_chain(ledger: Ledger) -> int:
    entry = await ledger.restart(actor=f"cli:{find_cli_user()}")
    _say(f"The ledger goes on in {ledger.entries.location} with entry {entry.number}.")
    return 0


def _format_entry(entry: Entry) -> dict[str, object]:
    content = entry.content
    return {
        "number": entry.number,
        "kind": entry.kind,
        "at": entry.at.isoformat(),
        "actor": entry.actor,
        "body": None if content is None else content.body,
        "forgotten": content is None,
    }


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
