"""Open what the api needs, serve until stopped, close it."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from socket import socket

import structlog
import uvicorn
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store.admin import AdminApp
from inference_store.store.blobs import Blobs
from inference_store.store.database import create_engine
from inference_store.store.errors import BlobsAway
from inference_store.store.schema import require_schema, schema_of
from inference_store.store.settings import ApiSettings

from .access import refuse_open_address
from .app import create_app

_log = structlog.get_logger()


class Server(uvicorn.Server):
    """Says which port it has, once it listens; when told to stop it returns, instead of dying."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self.handle_exit, name, None)
        yield

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        for server in getattr(self, "servers", ()):
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                _log.info("api open", action="api_listening", host=host, port=port)


async def serve(settings: ApiSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises OpenToAll."""
    refuse_open_address(settings)
    engine = create_engine(
        settings.postgres_dsn.get_secret_value(),
        application="inference-store-api",
        pool_size=settings.postgres_pool_size,
        statement_timeout_seconds=settings.query_timeout_seconds,
    )
    blobs = Blobs(settings)
    admin = AdminApp(
        {"postgres": lambda: _postgres(engine), "object store": lambda: _object_store(blobs)}
    )
    try:
        await _refuse_old_schema(engine)
        await admin.start(settings.api_admin_host, settings.api_admin_port)
        await Server(_config(settings, engine, blobs)).serve()
    finally:
        await admin.stop()
        blobs.close()
        await engine.dispose()


def _config(settings: ApiSettings, engine: AsyncEngine, blobs: Blobs) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(settings, engine, blobs),
        host=settings.api_host,
        port=settings.api_port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=20,
    )


async def _refuse_old_schema(engine: AsyncEngine) -> None:
    """Raises SchemaBehind. While Postgres is away nothing is known: readiness looks again."""
    try:
        async with engine.connect() as connection:
            await require_schema(connection)
    except (DBAPIError, PoolTimeout, OSError) as exc:
        _log.warning("Postgres does not answer", action="waiting", error=str(exc)[:500])


async def _postgres(engine: AsyncEngine) -> str | None:
    try:
        async with engine.connect() as connection:
            schema = await schema_of(connection)
    except (DBAPIError, PoolTimeout, OSError) as exc:
        return f"Postgres does not answer: {exc}"[:500]
    return str(schema) if schema.behind else None


async def _object_store(blobs: Blobs) -> str | None:
    try:
        await asyncio.to_thread(blobs.check)
    except BlobsAway as exc:
        return f"the object store is away: {exc}"[:500]
    return None
