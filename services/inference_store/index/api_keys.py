"""Creates, lists, rotates and revokes API keys. Only a hash of a key's text is stored.

A change takes effect at once, and goes to the ledger by its outbox: each entry has all of the key,
so that a replay gives a restored backup the newest, in whatever order they come.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import DateTime, false, func, select, true, tuple_, update
from sqlalchemy.dialects.postgresql import BYTEA, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import credentials
from inference_store.access.credentials import ApiKey, HashedApiKey, Secret
from inference_store.access.rights import Grant
from inference_store.inference.errors import Conflict, Invalid, NotFound

from .tables import api_key, ledger_outbox, saved_view

# The accuracy of `last_used_at`: if every request wrote the row, all would wait for it.
TOUCH_SECONDS = 60
# What an entry of the ledger says: not what each database knows for itself.
_TOLD: Final = [
    column
    for column in api_key.c
    if column.name not in {"last_used_at", "in_ledger", "unconfirmed"}
]


async def create(
    connection: AsyncConnection,
    name: str,
    grants: Sequence[Grant],
    *,
    by: str,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, Secret]:
    """Create a key; its text is only in the returned secret. Raises Invalid."""
    _in_future("expires_at", expires_at)
    id = credentials.new_id()
    secret = credentials.new_secret(id)
    values = {
        "id": id,
        "name": name,
        "hash": secret.hash,
        "grants": _written(grants),
        "created_by": by,
        "expires_at": expires_at,
    }
    row = (await connection.execute(api_key.insert().values(values).returning(api_key))).one()
    await _tell(connection, "key_made", row, by)
    return ApiKey.model_validate(row), secret


async def keep(
    connection: AsyncConnection, name: str, secret: Secret, grants: Sequence[Grant], *, by: str
) -> bool:
    """Create the key of a text that is made elsewhere, and return whether it is new. A key of its
    id that is there gets its text; a revoked one stays revoked. Raises Invalid."""
    id = credentials.id_of(secret.text)
    if id is None:
        raise Invalid("the text of a key is `isk_`, an id of 12 letters, `_` and 43 letters")
    values = {"id": id, "name": name, "hash": secret.hash, "created_by": by}
    values["grants"] = _written(grants)
    new = insert(api_key).values(values).on_conflict_do_nothing().returning(api_key)
    if (row := (await connection.execute(new)).first()) is not None:
        await _tell(connection, "key_made", row, by)
        return True
    known = await held(connection, id)
    if known is not None and (known.hash != secret.hash or known.key.unconfirmed):
        changed = {"hash": secret.hash, "unconfirmed": false()}
        await _change(connection, "key_rotated", id, changed, by)
    return False


def _written(grants: Sequence[Grant]) -> list[dict[str, Any]]:
    return [grant.expanded.model_dump(mode="json", exclude_none=True) for grant in grants]


async def listed(
    connection: AsyncConnection, *, limit: int, after: tuple[datetime, str] | None = None
) -> list[ApiKey]:
    """Return keys, also revoked ones, the newest first.

    `after`: (created_at, id) of the last key of the previous page.
    """
    here = api_key.c
    query = select(api_key).order_by(here.created_at.desc(), here.id.desc()).limit(limit)
    if after is not None:
        query = query.where(tuple_(here.created_at, here.id) < after)
    return [ApiKey.model_validate(row) for row in await connection.execute(query)]


async def are_in_use(connection: AsyncConnection) -> bool:
    """Check whether there is a key that works."""
    here = api_key.c
    works = here.expires_at.is_(None) | (here.expires_at > func.now())
    query = select(here.id).where(here.revoked_at.is_(None), works).limit(1)
    return (await connection.execute(query)).first() is not None


async def get(connection: AsyncConnection, id: str, *, lock: bool = False) -> ApiKey:
    """Return a key. Raises NotFound."""
    query = select(api_key).where(api_key.c.id == id)
    row = (await connection.execute(query.with_for_update() if lock else query)).first()
    if row is None:
        raise NotFound(f"There is no key {id!r}.")
    return ApiKey.model_validate(row)


async def held(connection: AsyncConnection, id: str) -> HashedApiKey | None:
    """Return a key with its hashes, for comparison; None if there is no such key."""
    row = (await connection.execute(select(api_key).where(api_key.c.id == id))).first()
    return None if row is None else HashedApiKey(ApiKey.model_validate(row), row.hash, row.old_hash)


async def rotate(
    connection: AsyncConnection,
    id: str,
    *,
    by: str,
    old_works_until: datetime | None = None,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, Secret]:
    """Give a key a new text.

    The previous text works until `old_works_until`, or stops at once; an earlier one stops too.
    `expires_at`: the key's new time of expiry. Raises NotFound, Conflict if it is revoked, Invalid.
    """
    _in_future("old_works_until", old_works_until)
    _in_future("expires_at", expires_at)
    key = await get(connection, id, lock=True)
    if key.revoked_at is not None:
        raise Conflict(f"The key {id!r} is revoked: make a new one.")
    secret = credentials.new_secret(id)
    values: dict[str, Any] = {
        "hash": secret.hash,
        "old_hash": None if old_works_until is None else api_key.c.hash,
        "old_works_until": old_works_until,
        "rotated_at": func.now(),
        "unconfirmed": false(),
    }
    if expires_at is not None:
        values["expires_at"] = expires_at
    return await _change(connection, "key_rotated", id, values, by), secret


async def revoke(connection: AsyncConnection, id: str, *, by: str) -> ApiKey:
    """Revoke a key; it stays listed, and its private views, which nobody can see, are deleted.

    Revoking it again changes nothing. Raises NotFound.
    """
    key = await get(connection, id, lock=True)
    if key.revoked_at is not None:
        return key
    await _delete_views(connection, id)
    return await _change(connection, "key_revoked", id, {"revoked_at": func.now()}, by)


async def confirm(connection: AsyncConnection, id: str, *, by: str) -> ApiKey:
    """Let a key work that a restored backup has and the ledger does not. Raises NotFound."""
    return await _change(connection, "key_made", id, {"unconfirmed": false()}, by)


async def _change(
    connection: AsyncConnection, kind: str, id: str, values: dict[str, Any], by: str
) -> ApiKey:
    values |= {"revision": api_key.c.revision + 1}
    changed = update(api_key).where(api_key.c.id == id).values(values).returning(api_key)
    row = (await connection.execute(changed)).first()
    if row is None:
        raise NotFound(f"There is no key {id!r}.")
    await _tell(connection, kind, row, by)
    return ApiKey.model_validate(row)


async def _delete_views(connection: AsyncConnection, id: str) -> None:
    here = saved_view.c
    own = (here.shared == "private", here.created_by == f"key:{id}")
    await connection.execute(saved_view.delete().where(*own))


async def _tell(connection: AsyncConnection, kind: str, row: Any, by: str) -> None:
    change, told = uuid4(), {}
    for column in _TOLD:
        value = row._mapping[column]
        if isinstance(value, bytes):
            value = value.hex()
        told[column.name] = value.isoformat() if isinstance(value, datetime) else value
    body = {"change": str(change), "key": told}
    values = {"id": change, "kind": kind, "body": body, "actor": by}
    await connection.execute(ledger_outbox.insert().values(values))


async def apply_told(
    connection: AsyncConnection, body: dict[str, Any], _: datetime, __: str
) -> None:
    """Make a key what an entry of the ledger says, unless a later one has. Repeatable."""
    values = {column.name: _read(column, body["key"][column.name]) for column in _TOLD}
    new = insert(api_key).values(values)
    newer = api_key.c.revision < new.excluded.revision
    changed = new.on_conflict_do_update(index_elements=["id"], set_=values, where=newer)
    await connection.execute(changed)
    known = update(api_key).where(api_key.c.id == values["id"])
    await connection.execute(known.values(in_ledger=true(), unconfirmed=false()))
    if values["revoked_at"] is not None:
        await _delete_views(connection, values["id"])
    change = UUID(body["change"])
    await connection.execute(ledger_outbox.delete().where(ledger_outbox.c.id == change))


def _read(column: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(column.type, BYTEA):
        return bytes.fromhex(value)
    return datetime.fromisoformat(value) if isinstance(column.type, DateTime) else value


async def doubt(connection: AsyncConnection, *, known: bool = False) -> None:
    """Let no key work until it is confirmed that a restored backup has and the ledger does not;
    `known`: nor one that the ledger has. What the outbox says of them is not written."""
    here = api_key.c
    # each entry of a replay comes here: what is doubted already is left
    doubted = update(api_key).where(~here.unconfirmed).values(unconfirmed=true()).returning(here.id)
    if not known:
        doubted = doubted.where(~here.in_ledger)
    ids = list((await connection.execute(doubted)).scalars())
    of_key = ledger_outbox.c.body["key"]["id"].astext
    await connection.execute(ledger_outbox.delete().where(of_key.in_(ids)))


async def touch(connection: AsyncConnection, id: str) -> None:
    """Note that a key is used, at most once a minute, unless another request is just noting it."""
    here = api_key.c
    long_ago = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, TOUCH_SECONDS)
    stale = select(here.id).where(
        here.id == id, here.last_used_at.is_(None) | (here.last_used_at < long_ago)
    )
    mine = stale.with_for_update(skip_locked=True)
    await connection.execute(
        update(api_key).where(here.id.in_(mine)).values(last_used_at=func.now())
    )


def _in_future(name: str, at: datetime | None) -> None:
    if at is not None and at <= datetime.now(UTC):
        raise Invalid(f"{name} is in the past.")
