"""`inference-store keys create|list|rotate|revoke|confirm`: works directly on the database, so that
it can make the first key.

Only the text of a key goes to standard output; everything else goes to standard error.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
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
from inference_store.inference.errors import StoreError
from inference_store.inference.nearest import counted

from .command import (
    Command,
    DatabaseSettings,
    find_cli_user,
    parse_name,
    require_postgres,
    start_service,
)

_MOST_LISTED = 10_000
T = TypeVar("T")
# Returns a sentence for people and the text to print, once it is committed.
Work = Callable[[AsyncConnection, Who], Awaitable[tuple[str, str]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their arguments."""
    commands = parser.add_subparsers(dest="what", required=True)
    create = commands.add_parser("create", help="make a key and print its text, this once")
    create.add_argument("--name", type=parse_name, required=True, help="who or what uses it")
    create.add_argument("--role", choices=sorted(ROLES), help="a bundle of rights")
    create.add_argument("--rights", help=f"rights by commas: {', '.join(Right)}")
    over = create.add_argument_group("over (at least one)")
    over.add_argument("--model", action="append", default=[], help="a model; may be repeated")
    over.add_argument("--project", action="append", default=[], help="a project; may be repeated")
    over.add_argument("--everything", action="store_true", help="every model, and what has none")
    create.add_argument("--expires", help="when, or after how long: 2027-06-01T00:00:00Z, P90D")
    commands.add_parser("list", help="list the keys, the newest first")
    rotate = commands.add_parser("rotate", help="give a key a new text and print it, this once")
    rotate.add_argument("id")
    rotate.add_argument("--old-works", help="how long, or until when, the text before works on")
    rotate.add_argument("--expires", help="when the key expires from now on")
    revoke = commands.add_parser("revoke", help="let a key work no more")
    revoke.add_argument("id")
    confirm = commands.add_parser("confirm", help="let keys work that only a restored backup has")
    confirm.add_argument("id", nargs="+")


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand, and audit it."""
    sentence, printed = run_audited("keys", _WORK[arguments.what](arguments))
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

    try:
        with require_postgres():
            return asyncio.run(run_once())
    except StoreError as refused:
        sys.exit(refused.detail)


def _create(arguments: argparse.Namespace) -> Work:
    grants, expires_at = _read_grants(arguments), _parse_instant(arguments.expires)

    async def work(connection: AsyncConnection, who: Who) -> tuple[str, str]:
        key, secret = await api_keys.create(
            connection, arguments.name, grants, by=who.actor, expires_at=expires_at
        )
        grant_fields = [grant.model_dump(mode="json", exclude={"role"}) for grant in key.grants]
        await note(connection, who, Action.KEY_CREATED, key=key.id, grants=grant_fields)
        return _describe_key(key), secret.text

    return work


def _rotate(arguments: argparse.Namespace) -> Work:
    old_works_until = _parse_instant(arguments.old_works)
    expires_at = _parse_instant(arguments.expires)

    async def work(connection: AsyncConnection, who: Who) -> tuple[str, str]:
        key, secret = await api_keys.rotate(
            connection,
            arguments.id,
            by=who.actor,
            old_works_until=old_works_until,
            expires_at=expires_at,
        )
        until = None if old_works_until is None else old_works_until.isoformat()
        await note(connection, who, Action.KEY_ROTATED, key=key.id, old_works_until=until)
        return _describe_key(key), secret.text

    return work


def _revoke(arguments: argparse.Namespace) -> Work:
    async def work(connection: AsyncConnection, who: Who) -> tuple[str, str]:
        key = await api_keys.revoke(connection, arguments.id, by=who.actor)
        await note(connection, who, Action.KEY_REVOKED, key=key.id)
        return f"The key {key.id} ({key.name}) is revoked.", ""

    return work


def _confirm(arguments: argparse.Namespace) -> Work:
    async def work(connection: AsyncConnection, who: Who) -> tuple[str, str]:
        for id in arguments.id:
            key = await api_keys.confirm(connection, id, by=who.actor)
            await note(connection, who, Action.KEY_CONFIRMED, key=key.id)
        return f"{counted(len(arguments.id), 'key')} confirmed.", ""

    return work


async def _list(connection: AsyncConnection, _: Who) -> tuple[str, str]:
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
        raise SystemExit(f"There is no right {unknown[0]}; there are {', '.join(Right)}.")
    over: list[dict[str, str]] = [{"model_id": name} for name in arguments.model]
    over += [{"project_id": name} for name in arguments.project]
    over += [{}] if arguments.everything else []
    if not over:
        raise SystemExit("Say over what: --model, --project or --everything.")
    try:
        return [Grant.model_validate({"rights": rights, "role": arguments.role} | o) for o in over]
    except ValidationError as wrong:
        raise SystemExit(f"{wrong.errors()[0]['msg']} (--role or --rights).") from None


def _parse_instant(text: str | None) -> datetime | None:
    """Return the instant in a text, or a duration after now. Exits if the text is neither."""
    if text is None:
        return None
    try:
        if text.upper().startswith("P"):
            duration = parse_duration(text)
            # The distance back in time, applied forwards.
            now = datetime.now(UTC)
            return None if duration is None else now + (now - duration.before(now))
        at = datetime.fromisoformat(text)
    except ValueError:
        raise SystemExit(f"{text!r} is no time: 2027-06-01T00:00:00Z, or P90D.") from None
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


_WORK: Mapping[str, Callable[[argparse.Namespace], Work]] = {
    "create": _create,
    "list": lambda _: _list,
    "rotate": _rotate,
    "revoke": _revoke,
    "confirm": _confirm,
}
KEYS = Command(run, DatabaseSettings, add_arguments)
