"""`inference-store resume`: lets halted ingesters quarantine bad events, and continue."""

import argparse
import asyncio
from datetime import datetime, timedelta

from inference_store.access import Action, Who
from inference_store.erasure.policies.rules import parse_duration
from inference_store.index import unsettled
from inference_store.index.audit import note
from inference_store.index.database import engine_of
from inference_store.index.schema import require_schema
from inference_store.platform.settings import LogSettings, PostgresSettings

from .postgres import require_postgres
from .start import start_service
from .user import find_cli_user

_LONGEST = timedelta(days=1)


class _Settings(LogSettings, PostgresSettings):
    """The settings of the command."""


SETTINGS = _Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the duration."""
    parser.add_argument(
        "--for",
        dest="duration",
        type=_parse_duration,
        default=timedelta(minutes=10),
        help="how long the limit is lifted: PT10M (the default), at most P1D; PT0S ends it",
    )


def run(arguments: argparse.Namespace) -> int:
    """Lift the limit, and audit it."""
    settings = start_service(_Settings, "resume")
    with require_postgres():
        until = asyncio.run(_lift(settings, arguments.duration))
    print(_describe(until) if arguments.duration else "The limit applies again.")
    return 0


def _describe(until: datetime) -> str:
    return (
        f"Until {until:%Y-%m-%dT%H:%M:%SZ} ingesters set aside whatever they cannot store. One that"
        " halted goes on within ten seconds."
    )


async def _lift(settings: _Settings, duration: timedelta) -> datetime:
    engine = engine_of(settings, application="inference-store-resume", pool_size=1)
    try:
        async with engine.begin() as connection:
            await require_schema(connection)
            until = await unsettled.lift_limit(connection, duration)
            who = Who(f"cli:{find_cli_user()}", None)
            await note(connection, who, Action.LIMIT_LIFTED, until=until.isoformat())
            return until
    finally:
        await engine.dispose()


def _parse_duration(text: str) -> timedelta:
    try:
        duration = parse_duration(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None
    if duration is None or duration.months or duration.exact > _LONGEST:
        raise argparse.ArgumentTypeError("a duration such as PT10M, at most P1D")
    return duration.exact
