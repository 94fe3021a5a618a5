"""Opens what the api needs, serves until stopped, and closes it."""

import asyncio
import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from inference_store.erasure.ledger import Ledger, LedgerWatch
from inference_store.index import api_keys
from inference_store.index.database import create_engine
from inference_store.index.schema import require_schema, schema_of
from inference_store.index.server_watch import ServerWatch
from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.objects import Blobs
from inference_store.platform.admin_port import AdminApp, Check
from inference_store.platform.metrics import QUERY_TIMEOUTS, STREAMS, from_zero
from inference_store.platform.serving import (
    Connections,
    Heartbeat,
    build_connections,
    build_limits,
    in_background,
    listen,
)
from inference_store.platform.settings import ApiSettings
from inference_store.platform.uvicorn_server import BoundedHeads, GuardedServer, build_config

from .app import create_app
from .dependencies import Replica
from .middleware import MOST_HEADER_BYTES
from .streams import ENDS

_BEAT_SECONDS = 1.0
_READ_AHEAD_BYTES = 64 * 1024
# How long a thread that computes (`reading`) may hold up the event loop. Python's default of five
# milliseconds would be waited for at each step of a request.
_SWITCH_SECONDS = 0.0005
# A caller waits, who gets a 503 within five seconds.
_S3_SECONDS = 4.0
_log = structlog.get_logger()


class Server(GuardedServer):
    """A server that returns when told to stop, instead of raising the signal again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self.handle_exit, name, None)
        yield


async def serve(settings: ApiSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    if settings.auth == "off":
        _log.warning("access control is off", action="auth_off", host=settings.api_host)
    watch, read_dsn = ServerWatch(), settings.postgres_read_dsn
    make_engine = partial(
        create_engine,
        settings,
        application="inference-store-api",
        statement_timeout_seconds=settings.query_timeout_seconds,
    )
    engine = make_engine(watch=watch)
    reading = None if read_dsn is None else make_engine(dsn=read_dsn.get_secret_value())
    silence = min(settings.s3_timeout_seconds, _S3_SECONDS)
    blobs = Blobs(settings.model_copy(update={"s3_timeout_seconds": silence}))
    from_zero(QUERY_TIMEOUTS, ("page", "count", "aggregate", "drift"))
    from_zero(STREAMS, ENDS)
    app = create_app(settings, engine, blobs, reading)
    heartbeat = Heartbeat()
    # A pool of its own: queries that hold every connection of theirs do not make the api unready.
    check_engine = make_engine(pool_size=1, watch=watch)
    # the same: the check of the ledger waits for no query
    ledger = Ledger(check_engine, blobs, prefix=settings.ledger_prefix)
    app.state.ledger_watch = LedgerWatch(ledger)
    connections = build_connections(settings, "api")
    admin = _make_admin(app, check_engine, blobs, heartbeat, connections)
    sockets = listen(settings.api_host, settings.api_port, setting="API")
    try:
        await _refuse_old_schema(engine, settings.api_token)
        await admin.start(settings.admin_host, settings.api_admin_port, settings)
        server = Server(_make_config(settings, app), sockets, connections, build_limits(settings))
        # Objects that exist at the start stay: the garbage collector skips them. Checking them
        # would stop all requests for a tenth of a second and more.
        gc.collect()
        gc.freeze()
        app.state.is_stopping = lambda: server.should_exit
        sys.setswitchinterval(_SWITCH_SECONDS)
        watching = app.state.ledger_watch.run(asyncio.Event())
        async with in_background(_beat(server, heartbeat), watching):
            await server.serve()
    finally:
        await admin.stop()
        blobs.close()
        for opened in (engine, reading, check_engine):
            if opened is not None:
                await opened.dispose()


def _make_admin(
    app: FastAPI, engine: AsyncEngine, blobs: Blobs, heartbeat: Heartbeat, connections: Connections
) -> AdminApp:
    settings: ApiSettings = app.state.settings
    replica: Replica = app.state.replica
    # Queries need Postgres alone; an api that is removed from its Service would answer none.
    spares: dict[str, Check] = {"object store": lambda: _check_object_store(blobs)}
    if settings.postgres_read_dsn is not None:
        spares["read replica"] = replica.describe_failure
    watch: LedgerWatch = app.state.ledger_watch
    checks: dict[str, Check] = {
        "postgres": lambda: _check_postgres(engine),
        "ledger": watch.reason,
        "connections": connections.why_full,
    }
    return AdminApp("api", checks, heartbeat, spares=spares)


async def _beat(server: Server, heartbeat: Heartbeat) -> None:
    """Beat while the server accepts requests: not before it listens, nor after it has ended."""
    while True:
        if server.started and not server.should_exit:
            heartbeat.beat()
        await asyncio.sleep(_BEAT_SECONDS)


def _make_config(settings: ApiSettings, app: FastAPI) -> uvicorn.Config:
    trusted = settings.api_trusted_proxies
    inner: Any = app
    behind: Any = ProxyHeadersMiddleware(inner, trusted) if trusted else inner
    # Above the app's own limit, with room for what is read at once.
    most = MOST_HEADER_BYTES + _READ_AHEAD_BYTES
    http: Any = partial(BoundedHeads, most_head_bytes=most)
    files = settings.api_tls_certificate_file, settings.api_tls_key_file
    return build_config(behind, files, grace_seconds=20, http=http)


async def _refuse_old_schema(engine: AsyncEngine, token: SecretStr | None) -> None:
    """Raise SchemaBehind. Warn of a token that keys have replaced.

    While Postgres is unavailable nothing is known: readiness checks again.
    """
    try:
        async with engine.connect() as connection:
            await require_schema(connection)
            if token is not None and await api_keys.are_in_use(connection):
                _log.warning("API_TOKEN is set, and there are keys: unset it", action="api_token")
    except (DBAPIError, PoolTimeout, OSError) as exc:
        _log.warning("Postgres does not answer", action="waiting", error=str(exc)[:500])


async def _check_postgres(engine: AsyncEngine) -> str | None:
    try:
        async with engine.connect() as connection:
            schema = await schema_of(connection)
    except (DBAPIError, PoolTimeout, OSError) as exc:
        return f"Postgres does not answer: {exc}"[:500]
    return str(schema) if schema.behind else None


async def _check_object_store(blobs: Blobs) -> str | None:
    try:
        await asyncio.to_thread(blobs.check)
    except ObjectStoreUnavailable as exc:
        return f"the object store is unavailable: {exc}"[:500]
    return None
