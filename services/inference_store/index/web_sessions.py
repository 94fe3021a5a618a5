"""Sessions of browsers: started, read, kept alive, ended. Of their ids only hashes are kept."""

import secrets
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import credentials
from inference_store.access.credentials import Identity, Session

from .tables import web_session

MOST_OF_ONE: Final = 100
"""Sessions of one caller: the one that was not used for longest ends when another starts."""
TOUCH_SECONDS: Final = 60
"""How exact `used_at` is."""
_BATCH: Final = 1000


async def start(
    connection: AsyncConnection,
    identity: Identity,
    host: str,
    *,
    seconds: float,
    idle_seconds: float,
) -> tuple[Session, str]:
    """Start a session, which ends when what was signed in with expires, or before; return its id
    with it, which is nowhere else."""
    here = web_session.c
    used = select(here.id_hash).where(here.caller == identity.caller)
    over = used.order_by(here.used_at.desc(), here.id_hash).offset(MOST_OF_ONE - 1)
    await connection.execute(delete(web_session).where(here.id_hash.in_(over)))
    now, id = datetime.now(UTC), secrets.token_urlsafe(32)
    expires_at = now + timedelta(seconds=seconds)
    if identity.expires_at is not None:
        expires_at = min(expires_at, identity.expires_at)
    values = asdict(identity) | {
        "id_hash": credentials.hash_session_id(id),
        "host": host,
        "idle_until": min(now + timedelta(seconds=idle_seconds), expires_at),
        "expires_at": expires_at,
    }
    made = web_session.insert().values(values).returning(web_session)
    return _session((await connection.execute(made)).one()), id


async def find(connection: AsyncConnection, id_hash: bytes) -> Session | None:
    """Return a session, which may have ended by itself; None if there is none."""
    query = select(web_session).where(web_session.c.id_hash == id_hash)
    row = (await connection.execute(query)).first()
    return None if row is None else _session(row)


async def touch(connection: AsyncConnection, id_hash: bytes, *, idle_seconds: float) -> None:
    """Note that a session is used; if another request does so now, it is left to it."""
    here, now = web_session.c, datetime.now(UTC)
    stale = select(here.id_hash).where(
        here.id_hash == id_hash, here.used_at < now - timedelta(seconds=TOUCH_SECONDS)
    )
    mine = stale.with_for_update(skip_locked=True)
    until = func.least(now + timedelta(seconds=idle_seconds), here.expires_at)
    await connection.execute(
        update(web_session).where(here.id_hash.in_(mine)).values(used_at=now, idle_until=until)
    )


async def end(connection: AsyncConnection, id_hash: bytes) -> Session | None:
    """End a session and return it; None if there is none."""
    ended = delete(web_session).where(web_session.c.id_hash == id_hash).returning(web_session)
    row = (await connection.execute(ended)).first()
    return None if row is None else _session(row)


async def end_all(connection: AsyncConnection) -> None:
    """End every session: a restored backup has those that have ended since."""
    await connection.execute(delete(web_session))


async def delete_ended(connection: AsyncConnection) -> int:
    """Delete some of the sessions that have ended by themselves; return how many."""
    here = web_session.c
    some = select(here.id_hash).where(here.idle_until <= func.now()).limit(_BATCH)
    deleted = await connection.execute(delete(web_session).where(here.id_hash.in_(some)))
    return deleted.rowcount


def _session(row: Any) -> Session:
    columns = row._mapping
    signed_in = {name: columns[name] for name in Identity.__slots__}
    identity = Identity(**signed_in | {"roles": tuple(row.roles or ())})
    own = {name: columns[name] for name in Session.__slots__ if name in columns}
    return Session(identity=identity, **own)
