"""`inference-store migrate`, `distribute`, `resume` and `parked`."""

import argparse
import asyncio
import sys
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action, Who
from inference_store.access.credentials import Secret, id_of
from inference_store.access.rights import Grant
from inference_store.erasure.policies.effective_policy import parse_duration
from inference_store.index import api_keys, unsettled
from inference_store.index.audit import note
from inference_store.index.database import DatabaseMissing, create_engine
from inference_store.index.distribution import CannotDistribute, distribute
from inference_store.index.migration import MigrationBusy, upgrade
from inference_store.index.schema import DatabaseUnavailable, wait_for_schema
from inference_store.index.unsettled import Selection, UnsettledEvent
from inference_store.inference.errors import Invalid
from inference_store.inference.nearest import counted
from inference_store.platform.settings import RegistryKeySettings

from .command import Command, DatabaseSettings, parse_seconds, start_service
from .keys import run_audited

_BEHIND = 1
_UNAVAILABLE = 3


class _MigrateSettings(DatabaseSettings, RegistryKeySettings):
    """The settings of a migration."""


def add_migrate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the revision, and how long to wait."""
    parser.add_argument("--revision", default="head", help="revision to go to (default: head)")
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit code 0: the schema is what this version needs, or newer;"
        " 1: it is older; 3: Postgres does not answer",
    )
    parser.add_argument(
        "--wait-seconds",
        type=parse_seconds,
        help="longest wait for Postgres, for another migration and for locks (default: 600);"
        " with --check for the schema (default: 0)",
    )


def run_migrate(arguments: argparse.Namespace) -> int:
    """Migrate and print the result, or only check."""
    settings = start_service(_MigrateSettings, "migrate")
    wait = arguments.wait_seconds
    if arguments.check:
        return _check(settings, wait or 0.0)
    try:
        upgrade(settings, arguments.revision, wait_seconds=600 if wait is None else wait, say=_say)
    except (DatabaseMissing, MigrationBusy) as why:
        print(why, file=sys.stderr)
        return _UNAVAILABLE
    if text := settings.proxy_registry_key.get_secret_value():
        try:
            asyncio.run(_keep_registry_key(settings, Secret(text)))
        except Invalid as wrong:
            sys.exit(f"INFERENCE_STORE_PROXY_REGISTRY_KEY: {wrong.detail}")
    return 0


async def _keep_registry_key(settings: _MigrateSettings, secret: Secret) -> None:
    """Let the proxy read which models there are by its key."""
    engine = create_engine(settings, application="inference-store-migrate", pool_size=1)
    try:
        async with engine.begin() as connection:
            who, grants = Who("cli:migrate", None), [Grant(role="reader")]
            is_new = await api_keys.keep(connection, "proxy", secret, grants, by=who.actor)
            if is_new:
                await note(connection, who, Action.KEY_CREATED, key=id_of(secret.text))
    finally:
        await engine.dispose()


def _say(sentence: str) -> None:
    print(sentence, flush=True)


def _check(settings: _MigrateSettings, wait_seconds: float) -> int:
    try:
        schema = asyncio.run(wait_for_schema(settings, wait_seconds=wait_seconds))
    except DatabaseUnavailable as error:
        print(error, file=sys.stderr)
        return _UNAVAILABLE
    print(schema, file=sys.stderr if schema.behind else sys.stdout)
    return _BEHIND if schema.behind else 0


_SHARDS = 32


def add_distribute_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the number of shards."""
    parser.add_argument(
        "--shards",
        type=_parse_shards,
        default=_SHARDS,
        help=f"shards of each distributed table; a model is on one of them (default: {_SHARDS})",
    )


def _parse_shards(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 to 1024")
    return int(text)


def run_distribute(arguments: argparse.Namespace) -> int:
    """Distribute the tables, and print it; return 1, with the reason, if that is not possible."""
    settings = start_service(DatabaseSettings, "distribute")
    try:
        asyncio.run(distribute(settings, shards=arguments.shards, say=_say))
    except CannotDistribute as cannot:
        print(cannot, file=sys.stderr)
        return 1
    return 0


_LONGEST = timedelta(days=1)


def add_resume_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the duration."""
    parser.add_argument(
        "--for",
        dest="duration",
        type=_parse_duration,
        default=timedelta(minutes=10),
        help="how long the limit is lifted: PT10M (the default), at most P1D; PT0S ends it",
    )


def run_resume(arguments: argparse.Namespace) -> int:
    """Lift the limit, and audit it."""

    async def lift(connection: AsyncConnection, who: Who) -> datetime:
        until = await unsettled.lift_limit(connection, arguments.duration)
        await note(connection, who, Action.LIMIT_LIFTED, until=until.isoformat())
        return until

    until = run_audited("resume", lift)
    lifted = (
        f"Until {until:%Y-%m-%dT%H:%M:%SZ} ingesters set aside whatever they cannot store. One that"
        " halted goes on within ten seconds."
    )
    print(lifted if arguments.duration else "The limit applies again.")
    return 0


def _parse_duration(text: str) -> timedelta:
    try:
        duration = parse_duration(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None
    if duration is None or duration.months or duration.exact > _LONGEST:
        raise argparse.ArgumentTypeError("it must be a duration such as PT10M, and at most P1D")
    return duration.exact


_MOST_LISTED = 10_000


def add_parked_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their arguments."""
    commands = parser.add_subparsers(dest="what", required=True)
    some = argparse.ArgumentParser(add_help=False)
    some.add_argument("--model", help="only those of this model")
    some.add_argument("--reason", help="only those with this reason")
    commands.add_parser("list", parents=[some], help="list them, the newest first")
    commands.add_parser("retry", parents=[some], help="let the ingesters try them now")
    discard = commands.add_parser("discard", help="make one a discarded dead letter")
    discard.add_argument("id", type=int)
    discard.add_argument("--because", required=True, help="why it will never be indexed")


def run_parked(arguments: argparse.Namespace) -> int:
    """Run the subcommand, and audit it."""
    print(run_audited("parked", partial(_work_on_parked, arguments)))
    return 0


async def _work_on_parked(
    arguments: argparse.Namespace, connection: AsyncConnection, who: Who
) -> str:
    if arguments.what == "discard":
        letter = await unsettled.discard(
            connection, arguments.id, "parked event", arguments.because
        )
        noted = {"parked_event": arguments.id, "dead_letter": letter.id}
        because = {"reason": arguments.because}
        await note(connection, who, Action.PARKED_DISCARDED, **noted, **because)
        return f"It is now dead letter {letter.id}, discarded."
    chosen = Selection(kind="parked event", model_id=arguments.model, reason=arguments.reason)
    if arguments.what == "list":
        events = await unsettled.find(connection, chosen, limit=_MOST_LISTED)
        return "\n".join(map(_describe_parked, events)) or "No event is parked."
    retried = await unsettled.retry(connection, chosen)
    named = {"model_id": arguments.model, "reason": arguments.reason}
    described = {name: value for name, value in named.items() if value is not None}
    await note(connection, who, Action.PARKED_RETRIED, retried=retried, chosen=described)
    return f"{counted(retried, 'event')} will be tried within a second or two."


def _describe_parked(event: UnsettledEvent) -> str:
    rejection = event.rejection
    about = f"{rejection.model_id} {rejection.inference_id}: {rejection.reason}, {event.missing}"
    tries = f"{event.attempts} tries, next {event.next_attempt_at:%Y-%m-%dT%H:%M:%SZ}"
    return f"{event.id}  {about}  ({tries})"


MIGRATE = Command(run_migrate, _MigrateSettings, add_migrate_arguments)
DISTRIBUTE = Command(run_distribute, DatabaseSettings, add_distribute_arguments)
RESUME = Command(run_resume, DatabaseSettings, add_resume_arguments)
PARKED = Command(run_parked, DatabaseSettings, add_parked_arguments)
