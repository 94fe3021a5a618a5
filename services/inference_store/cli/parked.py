"""`inference-store parked list|retry|discard`: events that wait for an object."""

import argparse
import asyncio
import sys

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action, Who
from inference_store.index import unsettled
from inference_store.index.audit import note
from inference_store.index.database import opened
from inference_store.index.schema import require_schema
from inference_store.index.unsettled import Selection, UnsettledEvent
from inference_store.inference.errors import StoreError
from inference_store.inference.plural import counted
from inference_store.platform.settings import LogSettings, PostgresSettings

from .postgres import require_postgres
from .start import start_service
from .user import find_cli_user

_MOST_LISTED = 10_000


class _Settings(LogSettings, PostgresSettings):
    """The settings of the command."""


SETTINGS = _Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their arguments."""
    commands = parser.add_subparsers(dest="what", required=True)
    some = argparse.ArgumentParser(add_help=False)
    some.add_argument("--model", help="those of this model alone")
    some.add_argument("--reason", help="those with this reason alone")
    commands.add_parser("list", parents=[some], help="list them, the newest first")
    commands.add_parser("retry", parents=[some], help="let the ingesters try them now")
    discard = commands.add_parser("discard", help="make one a discarded dead letter")
    discard.add_argument("id", type=int)
    discard.add_argument("--because", required=True, help="why it will never be indexed")


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand, and audit it."""
    settings = start_service(_Settings, "parked")
    try:
        with require_postgres():
            print(asyncio.run(_run(settings, arguments)))
    except StoreError as refused:
        sys.exit(refused.detail)
    return 0


async def _run(settings: _Settings, arguments: argparse.Namespace) -> str:
    engine = opened(settings, application="inference-store-parked")
    try:
        async with engine.begin() as connection:
            await require_schema(connection)
            return await _work(connection, arguments)
    finally:
        await engine.dispose()


async def _work(connection: AsyncConnection, arguments: argparse.Namespace) -> str:
    who = Who(f"cli:{find_cli_user()}", None)
    if arguments.what == "discard":
        letter = await unsettled.discard(
            connection, arguments.id, "parked event", arguments.because
        )
        noted = {"parked_event": arguments.id, "dead_letter": letter.id}
        because = {"reason": arguments.because}
        await note(connection, who, Action.PARKED_DISCARDED, **noted, **because)
        return f"It is the dead letter {letter.id} now, discarded."
    chosen = Selection(kind="parked event", model_id=arguments.model, reason=arguments.reason)
    if arguments.what == "list":
        events = await unsettled.find(connection, chosen, limit=_MOST_LISTED)
        return "\n".join(map(_describe, events)) or "No event is parked."
    retried = await unsettled.retry(connection, chosen)
    named = {"model_id": arguments.model, "reason": arguments.reason}
    described = {name: value for name, value in named.items() if value is not None}
    await note(connection, who, Action.PARKED_RETRIED, retried=retried, chosen=described)
    return f"{counted(retried, 'event')} will be tried within a second or two."


def _describe(event: UnsettledEvent) -> str:
    rejection = event.rejection
    about = f"{rejection.model_id} {rejection.inference_id}: {rejection.reason}, {event.missing}"
    tries = f"{event.attempts} tries, next {event.next_attempt_at:%Y-%m-%dT%H:%M:%SZ}"
    return f"{event.id}  {about}  ({tries})"
