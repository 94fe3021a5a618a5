"""`inference-store migrate`"""

import argparse
import asyncio
import sys

from inference_store.access import Action, Who
from inference_store.access.rights import Grant
from inference_store.access.secrets import Secret, id_of
from inference_store.index import api_keys
from inference_store.index.audit import note
from inference_store.index.database import DatabaseMissing, engine_of
from inference_store.index.migration import MigrationBusy, upgrade
from inference_store.index.schema import DatabaseUnavailable, wait_for_schema
from inference_store.inference.errors import Invalid
from inference_store.platform.settings import LogSettings, PostgresSettings, RegistryKeySettings

from .seconds import parse_seconds
from .start import start_service

_BEHIND = 1
_UNAVAILABLE = 3


class _Settings(LogSettings, PostgresSettings, RegistryKeySettings):
    """The settings of a migration."""


SETTINGS = _Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def run(arguments: argparse.Namespace) -> int:
    """Migrate and print the result, or only check."""
    settings = start_service(_Settings, "migrate")
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


async def _keep_registry_key(settings: _Settings, secret: Secret) -> None:
    """Let the proxy read which models there are by its key."""
    engine = engine_of(settings, application="inference-store-migrate", pool_size=1)
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


def _check(settings: _Settings, wait_seconds: float) -> int:
    try:
        schema = asyncio.run(wait_for_schema(settings, wait_seconds=wait_seconds))
    except DatabaseUnavailable as error:
        print(error, file=sys.stderr)
        return _UNAVAILABLE
    print(schema, file=sys.stderr if schema.behind else sys.stdout)
    return _BEHIND if schema.behind else 0
