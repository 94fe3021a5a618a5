"""Starts and ends sessions of browsers, and writes both to the audit."""

from fastapi import Request
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action, Who
from inference_store.access.credentials import Identity, Session
from inference_store.access.credentials import hash_session_id as hash_id
from inference_store.index import web_sessions
from inference_store.index.audit import note
from inference_store.platform.json_encoding import format_instant
from inference_store.platform.settings import ApiSettings

from .access import Authenticator, session_cookie


async def start(
    request: Request, connection: AsyncConnection, identity: Identity, client: str | None
) -> tuple[Session, str]:
    """Start a session for whoever signed in, in place of the one before; return its id with it."""
    to: ApiSettings = request.app.state.settings
    await end(request, connection, client)
    session, id = await web_sessions.start(
        connection,
        identity,
        session_cookie.get_own_host(request),
        seconds=to.api_session_seconds,
        idle_seconds=to.api_session_idle_seconds,
    )
    who, until = Who(identity.caller, client), format_instant(session.expires_at)
    started = Action.SESSION_STARTED
    await note(connection, who, started, session=session.label, expires_at=until)
    return session, id


async def end(request: Request, connection: AsyncConnection, client: str | None) -> None:
    """End the session that the cookie names, if there is one."""
    id = session_cookie.read_cookie(request)
    ended = None if id is None else await web_sessions.end(connection, hash_id(id))
    if ended is not None:
        who = Who(ended.identity.caller, client)
        await note(connection, who, Action.SESSION_ENDED, session=ended.label)
        authenticator: Authenticator = request.app.state.authenticator
        authenticator.sessions.forget(ended.id_hash)
