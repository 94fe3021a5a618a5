"""`inference-store keys create|list|rotate|revoke|confirm`: works directly on the database, so that
it can make the first key.

Only the text of a key goes to standard output; everything else goes to standard error.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action, Who
from inference_store.access.credentials import ApiKey
from inference_store.access.rights import ROLES, Grant, Right
from inference_store.erasure.policies.effective_policy import parse_duration
from inference_store.index import api_keys
from inference_store.index.audit import note
from inference_store.index.schema import migrated
from inference_store.inference.nearest import counted

from .command import (
    Command,
    DatabaseSettings,
    exiting,
    find_cli_user,
    parse_name,
    start_service,
)

_MOST_LISTED = 10_000
T = TypeVar("T")
# A sentence for people, and a text to print.
Said = tuple[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their arguments."""
    commands = parser.add_subparsers(dest="what", required=True)
    create = commands.add_parser("create", help="make a key and print its text, only this once")
    create.add_argument("--name", type=parse_name, required=True, help="who or what uses it")
    create.add_argument("--role", choices=sorted(ROLES), help="a set of rights")
    create.add_argument("--rights", help=f"rights by commas: {', '.join(Right)}")
    over = create.add_argument_group("over (at least one)")
    over.add_argument("--model", action="append", default=[], help="a model; may be repeated")
    over.add_argument("--project", action="append", default=[], help="a project; may be repeated")
    over.add_argument(
        "--everything", action="store_true", help="every model, and everything outside models"
    )
    create.add_argument(
        "--expires", type=_parse_instant, help="when, or after how long: 2027-06-01T00:00:00Z, P90D"
    )
    commands.add_parser("list", help="list the keys, the newest first")
    rotate = commands.add_parser(
        "rotate", help="give a key a new text and print it, only this once"
    )
    rotate.add_argument("id")
    works = "how long, or until when, the old text keeps working"
    rotate.add_argument("--old-works", type=_parse_instant, help=works)
    expires = "the key's new expiry"
    rotate.add_argument("--expires", type=_parse_instant, help=expires)
    revoke = commands.add_parser("revoke", help="revoke a key")
    revoke.add_argument("id")
    confirm = commands.add_parser("confirm", help="confirm keys that only a restored backup has")
    confirm.add_argument("id", nargs="+")


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand, and audit it."""
    if arguments.what == "create":
        arguments.grants = _read_grants(arguments)
    sentence, printed = run_audited("keys", partial(_WORK[arguments.what], arguments))
    print(sentence, file=sys.stderr)
    print(printed, end="\n" if printed else "")
    return 0


def run_audited(command: str, work: Callable[[AsyncConnection, Who], Awaitable[T]]) -> T:
    """Do the work of a command in one transaction, by whom the audit names; return its result.

    Exits with a sentence if it is refused, or if Postgres is unavailable. Raises SchemaBehind.
    """
    settings = start_service(DatabaseSettings, command)

    async def run_once() -> T:
        async with migrated(settings, command) as engine, engine.begin() as connection:
            return await work(connection, Who(f"cli:{find_cli_user()}", None))

    with exiting():
        return asyncio.run(run_once())


async def _create(arguments: argparse.Namespace, connection: AsyncConnection, who: Who) -> Said:
    key, secret = await api_keys.create(
        connection, arguments.name, arguments.grants, by=who.actor, expires_at=arguments.expires
    )
    grant_fields = [grant.model_dump(mode="json", exclude={"role"}) for grant in key.grants]
    await note(connection, who, Action.KEY_CREATED, key=key.id, grants=grant_fields)
    return _describe_key(key), secret.text


async def _rotate(arguments: argparse.Namespace, connection: AsyncConnection, who: Who) -> Said:
    ends = {"old_works_until": arguments.old_works, "expires_at": arguments.expires}
    key, secret = await api_keys.rotate(connection, arguments.id, by=who.actor, **ends)
    until = None if arguments.old_works is None else arguments.old_works.isoformat()
    await note(connection, who, Action.KEY_ROTATED, key=key.id, old_works_until=until)
    return _describe_key(key), secret.text


async def _revoke(arguments: argparse.Namespace, connection: AsyncConnection, who: Who) -> Said:
    key = await api_keys.revoke(connection, arguments.id, by=who.actor)
    await note(connection, who, Action.KEY_REVOKED, key=key.id)
    return f"The key {key.id} ({key.name}) is revoked.", ""


async def _confirm(arguments: argparse.Namespace, connection: AsyncConnection, who: Who) -> Said:
    for id in arguments.id:
        key = await api_keys.confirm(connection, id, by=who.actor)
        await note(connection, who, Action.KEY_CONFIRMED, key=key.id)
    return f"{counted(len(arguments.id), 'key')} confirmed.", ""


async def _list(_: argparse.Namespace, connection: AsyncConnection, _who: Who) -> tuple[str, str]:
    keys = await api_keys.listed(connection, limit=_MOST_LISTED)
    lines = []
    for key in keys:
        used = f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never used"
        about = f"{key.id}  {_describe_state(key):<11}  {used:<16}"
        lines.append(f"{about}  {key.name}: {_describe_rights(key)}")
    return counted(len(keys), "key"), "\n".join(lines)


def _describe_key(key: ApiKey) -> str:
    return f"The key {key.id} ({key.name}). Its text is shown this once:"


def _read_grants(arguments: argparse.Namespace) -> list[Grant]:
    rights = [word.strip() for word in (arguments.rights or "").split(",") if word.strip()]
    unknown = [word for word in rights if word not in set(Right)]
    if unknown:
        raise SystemExit(f"There is no right {unknown[0]}; known are {', '.join(Right)}.")
    over: list[dict[str, str]] = [{"model_id": name} for name in arguments.model]
    over += [{"project_id": name} for name in arguments.project]
    over += [{}] if arguments.everything else []
    if not over:
        raise SystemExit("Say what the key covers: --model, --project or --everything.")
    try:
        return [Grant.model_validate({"rights": rights, "role": arguments.role} | o) for o in over]
    except ValidationError as wrong:
        raise SystemExit(f"{wrong.errors()[0]['msg']} (--role or --rights).") from None


def _parse_instant(text: str) -> datetime | None:
    """Parse an instant, or a duration after now. Raises ArgumentTypeError if it is neither."""
    try:
        if text.upper().startswith("P"):
            duration = parse_duration(text)
            # The distance back in time, applied forwards.
            now = datetime.now(UTC)
            return None if duration is None else now + (now - duration.before(now))
        at = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is not a time: write 2027-06-01T00:00:00Z or P90D"
        raise argparse.ArgumentTypeError(message) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _describe_state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.unconfirmed:
        return "unconfirmed"
    expired = key.expires_at is not None and key.expires_at <= datetime.now(UTC)
    return "expired" if expired else "works"


def _describe_rights(key: ApiKey) -> str:
    def describe(grant: Grant) -> str:
        over = grant.model_id or grant.project_id
        kind = "model" if grant.model_id else "project"
        return f"{','.join(grant.rights)} over {f'{kind} {over}' if over else 'everything'}"

    return "; ".join(map(describe, key.grants))


_WORK = {
    "create": _create,
    "list": _list,
    "rotate": _rotate,
    "revoke": _revoke,
    "confirm": _confirm,
}
KEYS = Command(run, DatabaseSettings, add_arguments)
