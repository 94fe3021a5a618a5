"""Creates, lists, rotates and revokes API keys. Only a hash of a key's text is stored."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import secrets
from inference_store.access.keys import ApiKey, HashedApiKey
from inference_store.access.rights import Grant
from inference_store.access.secrets import Secret
from inference_store.inference.errors import Conflict, Invalid, NotFound

from .tables import api_key, saved_view

# The accuracy of `last_used_at`: if every request wrote the row, all would wait for it.
TOUCH_SECONDS = 60


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
    id = secrets.new_id()
    secret = secrets.new_secret(id)
    values = {
        "id": id,
        "name": name,
        "hash": secret.hash,
        "grants": [grant.expanded.model_dump(mode="json", exclude_none=True) for grant in grants],
        "created_by": by,
        "expires_at": expires_at,
    }
    inserted = api_key.insert().values(values).returning(api_key)
    return _key((await connection.execute(inserted)).one()), secret


async def listed(
    connection: AsyncConnection, *, limit: int, after: tuple[datetime, str] | None = None
) -> list[ApiKey]:
    """Return keys, also revoked ones, the newest first.

    `after`: (created_at, id) of the last key of the previous page.
    """
    here = api_key.c
    query = select(api_key).order_by(here.created_at.desc(), here.id.desc()).limit(limit)
    if after is not None:
        at, id = after
        query = query.where((here.created_at < at) | ((here.created_at == at) & (here.id < id)))
    return [_key(row) for row in await connection.execute(query)]


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
    return _key(row)


async def held(connection: AsyncConnection, id: str) -> HashedApiKey | None:
    """Return a key with its hashes, for comparison; None if there is no such key."""
    row = (await connection.execute(select(api_key).where(api_key.c.id == id))).first()
    return None if row is None else HashedApiKey(_key(row), row.hash, row.old_hash)


async def rotate(
    connection: AsyncConnection,
    id: str,
    *,
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
    secret = secrets.new_secret(id)
    values: dict[str, Any] = {
        "hash": secret.hash,
        "old_hash": None if old_works_until is None else api_key.c.hash,
        "old_works_until": old_works_until,
        "rotated_at": func.now(),
    }
    if expires_at is not None:
        values["expires_at"] = expires_at
    changed = update(api_key).where(api_key.c.id == id).values(values).returning(api_key)
    return _key((await connection.execute(changed)).one()), secret


async def revoke(connection: AsyncConnection, id: str) -> ApiKey:
    """Revoke a key; it stays listed, and its private views, which nobody can see, are deleted.

    Revoking it again changes nothing. Raises NotFound.
    """
    values = {"revoked_at": func.coalesce(api_key.c.revoked_at, func.now())}
    changed = update(api_key).where(api_key.c.id == id).values(values).returning(api_key)
    row = (await connection.execute(changed)).first()
    if row is None:
        raise NotFound(f"There is no key {id!r}.")
    here = saved_view.c
    own = (here.shared == "private", here.created_by == f"key:{id}")
    await connection.execute(saved_view.delete().where(*own))
    return _key(row)


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
        raise Invalid(f"{name} is a time that has passed.")


def _key(row: Any) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        grants=tuple(Grant.model_validate(grant) for grant in row.grants),
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        rotated_at=row.rotated_at,
        old_works_until=row.old_works_until,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )
