"""The parameters of routes. The transaction of a request opens and commits here.

`scope="function"`: it ends before the answer is sent, so that what was answered is committed.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, TypeAlias

from fastapi import Depends, Header, Request
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.ledger import Ledger, LedgerWatch
from inference_store.index import database
from inference_store.inference.errors import Fault, Invalid
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.query.lookup import BY_ID

from .access import Access
from .admission_control import AdmissionControl
from .replica import Replica


async def _open_reading(request: Request) -> AsyncIterator[AsyncConnection]:
    async with _read_only(request, request.state.access) as connection:
        yield connection


async def _open_looking_up(request: Request) -> AsyncIterator[AsyncConnection]:
    async with _read_only(request, request.state.access, BY_ID) as connection:
        yield connection


async def _open_querying(request: Request) -> AsyncIterator[AsyncConnection]:
    async with querying(request, request.state.access) as connection:
        yield connection


@asynccontextmanager
async def querying(
    request: Request, access: Access, *, wait_seconds: float | None = None
) -> AsyncIterator[AsyncConnection]:
    """Open a connection to query on, once the caller is admitted. Raises TooManyQueries."""
    admission: AdmissionControl = request.app.state.admission
    # Admission first: a request that waits for it holds no connection.
    async with (
        admission.admit(access.admission_name, wait_seconds=wait_seconds),
        _read_only(request, access) as connection,
    ):
        yield connection


@asynccontextmanager
async def looking_up(request: Request, access: Access) -> AsyncIterator[AsyncConnection]:
    """Open a connection to look inferences up by their ids, for no longer than that takes."""
    async with _read_only(request, access, BY_ID) as connection:
        yield connection


@asynccontextmanager
async def _read_only(
    request: Request, access: Access, settings: database.Settings = database.NONE
) -> AsyncIterator[AsyncConnection]:
    replica: Replica = request.app.state.replica
    if replica.is_lagging:
        await access.settle(request.app.state.engine)
    async with replica.connect(settings) as connection:
        # Statements that change nothing run each by itself: none waits for a transaction to begin
        # or to end, and nothing is locked between them.
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        yield connection
        if not replica.is_lagging:  # otherwise a connection of its own writes it
            await access.write_reads(connection)


async def _open_writing(request: Request) -> AsyncIterator[AsyncConnection]:
    engine: AsyncEngine = request.app.state.engine
    async with engine.begin() as connection:
        yield connection


async def _get_ledger(request: Request) -> Ledger:
    ledger: Ledger = request.app.state.ledger
    return ledger


async def ledger_agrees(request: Request) -> None:
    """Raise LedgerDiverged while Postgres is an older backup, which would show what is erased."""
    watch: LedgerWatch = request.app.state.ledger_watch
    await watch.require()


async def _get_blobs(request: Request) -> Blobs:
    blobs: Blobs = request.app.state.blobs
    return blobs


async def _get_settings(request: Request) -> ApiSettings:
    settings: ApiSettings = request.app.state.settings
    return settings


async def _read_if_match(
    if_match: Annotated[
        str | None,
        Header(
            description='The revision that it must have now, as `"3"`; `"0"`: it must be new.',
            examples=['"3"'],
        ),
    ] = None,
) -> int | None:
    if if_match is None or if_match.strip() == "*":
        return None
    number = if_match.strip().strip('"')
    if not (number.isascii() and number.isdigit() and len(number) <= 9):
        fault = Fault("header.if-match", 'it is a revision, such as "3"')
        raise Invalid("If-Match names no revision.", faults=[fault])
    return int(number)


Reading: TypeAlias = Annotated[AsyncConnection, Depends(_open_reading, scope="function")]
LookingUp: TypeAlias = Annotated[AsyncConnection, Depends(_open_looking_up, scope="function")]
"""For one inference by its id: its statements are planned once."""
Querying: TypeAlias = Annotated[AsyncConnection, Depends(_open_querying, scope="function")]
"""For what may run long: no more are open than may run at once."""
Writing: TypeAlias = Annotated[AsyncConnection, Depends(_open_writing, scope="function")]
LedgerOf: TypeAlias = Annotated[Ledger, Depends(_get_ledger)]
"""For what is written to the ledger before it takes effect; beside it nothing that is `Writing`."""
BlobStore: TypeAlias = Annotated[Blobs, Depends(_get_blobs)]
Settings: TypeAlias = Annotated[ApiSettings, Depends(_get_settings)]
IfMatch: TypeAlias = Annotated[int | None, Depends(_read_if_match)]
