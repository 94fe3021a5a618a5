"""Sends the members of a replay through the proxy.

1. rebuild  requests from their blobs; what cannot be sent is `skipped`, with the reason
2. note     `sending`, in a transaction of its own
3. send     each with a header that says what it repeats: the proxy makes its id of that
4. note     `waiting`, with the status of the answer

A crash before 2 changes nothing. After one between 2 and 4 nobody knows which calls were made: as
after 4, the index is asked for the inference, by its id. If it does not come in time, a call that
was noted alone is made again. So a call is made twice only if the process died within its batch,
and the capture of its first call came later than that; both inferences have one id then.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import aiohttp
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from yarl import URL

from inference_store.export.jobs import ExportJob
from inference_store.inference.errors import BlobTooLarge, Unavailable
from inference_store.inference.events import parse_stored
from inference_store.inference.stored_requests import (
    REPLAY_HEADER,
    NotSendable,
    ReplayMark,
    Request,
    Target,
    rebuild,
)
from inference_store.objects import OVER_BUDGET, Blobs, Fetched
from inference_store.platform.failpoints import failpoint
from inference_store.platform.settings import ReplaySettings
from inference_store.query.deadline import find_ranges
from inference_store.query.lookup import read_visible
from inference_store.query.read import Inference, get_storage_key

from .items import ReplayPlan, change_items, list_next, note_sending

_MOST: Final = 64
"""Calls of a batch."""
_BATCH_SECONDS: Final = 2.0
_AT_ONCE: Final = 4
_CALL_SECONDS: Final = 60.0
_LATEST_SECONDS: Final = 30.0
"""After that no call of a batch begins: the service has to look around."""
_CONNECT_SECONDS: Final = 5.0
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Of a blob, and of the blobs of a batch after the first."""
_NOT_TAKEN: Final = (
    *(aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError),
    ConnectionRefusedError,  # over gRPC
)
_log = structlog.get_logger()


async def send_some(
    engine: AsyncEngine,
    blobs: Blobs,
    job: ExportJob,
    settings: ReplaySettings,
    confirm: Callable[[], Awaitable[None]],
) -> float | None:
    """Send the next batch; return after how many seconds another one may be, None: there was
    nothing to send. Raises Unavailable if the proxy cannot be reached, ObjectStoreUnavailable."""
    plan = ReplayPlan.of(job)
    most = max(1, min(_MOST, int(plan.rate * _BATCH_SECONDS)))
    async with engine.connect() as connection:
        uids = await list_next(connection, job.id, most)
        inferences = await _read(connection, job.model, uids)
    if not uids:
        return None
    if settings.replay_proxy is None:
        raise Unavailable("INFERENCE_STORE_REPLAY_PROXY is not set for the retention service")
    requests, changes = await asyncio.to_thread(_rebuild_all, blobs, plan, uids, inferences)
    if changes:
        async with engine.begin() as connection:
            await change_items(connection, job.id, changes)
    if not requests:
        return 0.0
    noted = await note_sending(engine, job.id, list(requests), confirm)
    began = time.monotonic()
    calls = {uid: requests[uid] for uid in noted}
    outcomes, away = await _send_all(settings, job.id, plan.rate, calls)
    failpoint("replay.send.sent")
    async with engine.begin() as connection:
        await change_items(connection, job.id, outcomes)
    failpoint("replay.send.after")
    if away is not None:
        raise Unavailable(f"the proxy {away} cannot be reached, or does not answer")
    return max(0.0, len(noted) / plan.rate - (time.monotonic() - began))


async def _read(
    connection: AsyncConnection, model: int, uids: Sequence[UUID]
) -> Mapping[UUID, Inference]:
    spans = await find_ranges(connection)
    return {one.uid: one for one in await read_visible(connection, model, uids, spans)}


def _rebuild_all(
    blobs: Blobs, plan: ReplayPlan, uids: Sequence[UUID], inferences: Mapping[UUID, Inference]
) -> tuple[dict[UUID, Request], dict[UUID, dict[str, Any]]]:
    """Return the requests to send, and the changes of members that cannot be sent. Blocks."""
    requests: dict[UUID, Request] = {}
    changes: dict[UUID, dict[str, Any]] = {}
    texts = [
        get_storage_key(one, blob) if (one := inferences.get(uid)) is not None else None
        for uid in uids
        for blob in ("metadata", "data")
    ]
    keys = [None if text is None else parse_stored(text) for text in texts]
    keys = [key if key and key.bucket in blobs.buckets.allowed else None for key in keys]
    budget = _MOST_BYTES if len(uids) > 1 else None
    fetched = blobs.get_many(keys, limit=_MOST_BYTES, budget=budget)
    if OVER_BUDGET in fetched[:2]:
        return _rebuild_all(blobs, plan, uids[:1], inferences)
    target = Target(plan.model, plan.version)
    for uid, metadata, datum in zip(uids, fetched[::2], fetched[1::2], strict=True):
        if OVER_BUDGET in (metadata, datum):
            break  # in the next batch
        try:
            requests[uid] = _rebuild(inferences.get(uid), metadata, datum, target)
        except NotSendable as error:
            changes[uid] = {"state": "skipped", "reason": error.reason}
    return requests, changes


def _rebuild(
    inference: Inference | None, metadata: Fetched, datum: Fetched, target: Target
) -> Request:
    if any(isinstance(blob, BlobTooLarge) for blob in (metadata, datum)):
        raise NotSendable("too_large")
    is_gone = inference is None or inference.input_erased
    if is_gone or not isinstance(metadata, bytes) or isinstance(datum, Exception):
        raise NotSendable("input_gone")
    request = rebuild(metadata, datum if isinstance(datum, bytes) else None, target)
    return _import_grpc().rename(request, target) if request.is_grpc else request


def _import_grpc() -> Any:
    from . import grpc_calls  # noqa: PLC0415

    return grpc_calls


async def _send_all(
    settings: ReplaySettings, job: UUID, rate: float, requests: Mapping[UUID, Request]
) -> tuple[dict[UUID, dict[str, Any]], URL | None]:
    """Send them at the rate, a few at once; return what is to be noted of each, and where the proxy
    is away. What cannot have reached it is listed again."""
    outcomes: dict[UUID, dict[str, Any]] = {}
    at_once, began = asyncio.Semaphore(_AT_ONCE), time.monotonic()
    timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS, sock_connect=_CONNECT_SECONDS)
    url, away = URL(settings.replay_proxy or ""), None
    grpc_url = url.with_port(settings.replay_proxy_grpc_port)

    async def send(place: int, uid: UUID) -> None:
        nonlocal away
        await asyncio.sleep(began + place / rate - time.monotonic())
        async with at_once:
            outcomes[uid] = {"state": "listed"}
            if away is not None or time.monotonic() - began > _LATEST_SECONDS:
                return
            address = grpc_url if requests[uid].is_grpc else url
            try:
                status = await _send(session, address, ReplayMark(job, uid), requests[uid])
            except _NOT_TAKEN:
                away = address
                return
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                _log.warning("replayed call failed", action="replay_failed", error=str(error)[:500])
                status = {}  # the proxy may have it: what it captured tells
                away = address if isinstance(error, TimeoutError) else away
            outcomes[uid] = {"state": "waiting", **status}

    connector = aiohttp.TCPConnector(limit=_AT_ONCE, force_close=True)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False) as session,
        asyncio.TaskGroup() as group,
    ):
        for place, uid in enumerate(requests):
            group.create_task(send(place, uid))
    return outcomes, away


async def _send(
    session: aiohttp.ClientSession, base: URL, mark: ReplayMark, request: Request
) -> dict[str, int]:
    """Make a call, and read its answer to the end, without keeping it; return its status."""
    if request.is_grpc:
        async with asyncio.timeout(_CALL_SECONDS):
            sending = _import_grpc().send(base, mark, request, _CONNECT_SECONDS)
            return {"grpc_code": await sending}
    target = URL.build(
        scheme=base.scheme,
        host=base.host or "",
        port=base.port,
        path=request.path,
        query_string=request.query,
        encoded=True,
    )
    headers = [*request.headers, (REPLAY_HEADER, mark.header)]
    skipped = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
    async with session.post(
        target,
        data=request.body,
        headers=headers,
        skip_auto_headers=skipped,
        allow_redirects=False,
    ) as answer:
        async for _ in answer.content.iter_any():
            pass
        return {"http_status": answer.status}
