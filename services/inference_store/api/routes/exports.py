"""Exports: requested, followed, downloaded, cancelled."""

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import Header, Path, Query, Request
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import StreamingResponse

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api import cursors
from inference_store.api.access import Access, Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.cursors import PageParameters
from inference_store.api.dependencies import BlobStore, Reading, Settings, Writing, querying
from inference_store.api.export_format import show_exports, show_parts
from inference_store.api.export_requests import (
    choose_blobs,
    insert_again,
    insert_export,
    prepare_export,
)
from inference_store.api.http import ANY, BYTES, ModelId, read_range
from inference_store.api.problems import document_refusals
from inference_store.api.routing import BINARY, Router
from inference_store.api.schemas.exports import (
    ExportPage,
    ExportParameters,
    ExportPartPage,
    ExportRequest,
    ShownExport,
)
from inference_store.export.erased import record_download
from inference_store.export.jobs import (
    REMOVED,
    ExportJob,
    find_job,
    list_jobs,
    read_model_id,
    request_removal,
)
from inference_store.export.part_formats import PART_FORMATS
from inference_store.export.parts import Part, list_parts
from inference_store.inference.errors import BlobMissing, Conflict, Gone, InvalidCursor, NotFound
from inference_store.inference.events.event import parse_stored

router = Router("exports")
_NEEDED = needs(Right.EXPORT, Over.SOME)
_ONE = "/exports/{export_id}"
_MOST_PARTS = 2**31 - 1
_PART_CONTENT: dict[str, Any] = {ANY: {}, BYTES: BINARY}


@router.post(
    "/models/{model_id}/exports",
    status_code=202,
    response_model=ShownExport,
    responses=document_refusals(400, 404, 409, 413, 501),
    openapi_extra=needs(Right.EXPORT),
    summary="Export inferences",
)
async def request_export(
    model_id: ModelId, body: ExportRequest, request: Request, to: Settings, access: Asking
) -> Answer:
    """Write everything that matches to the bucket, in parts. The retention service lists what
    matches now, and writes it; GET /v1/exports/{id} follows it."""
    async with querying(access) as connection:
        registration = await access.find_model(connection, model_id)
        if choose_blobs(body) != "none":
            access.require_right(Right.READ_INPUTS, registration)
        new_export = await prepare_export(connection, to, registration.model, body)
    async with request.app.state.engine.begin() as connection:
        job = await insert_export(connection, new_export, requested_by=access.who.actor)
        await access.note(
            connection,
            Action.EXPORT_REQUESTED,
            registration,
            export=str(job.id),
            blobs=job.blobs,
        )
        [shown] = await show_exports(connection, [job])
    return Answer(shown, status_code=202, headers={"Location": f"/v1/exports/{job.id}"})


@router.get(
    "/exports",
    response_model=ExportPage,
    responses=document_refusals(404),
    openapi_extra=_NEEDED,
    summary="List exports",
)
async def list_exports(
    page: Annotated[ExportParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Exports of the models that the caller may export, the newest first. A page of large filters
    has fewer than `limit`."""
    model = None if page.model_id is None else await access.find_model(connection, page.model_id)
    jobs, has_more = await list_jobs(
        connection,
        model=None if model is None else model.model,
        states=page.state,
        before=cursors.decode_before(page),
        limit=page.limit,
        within=access.scope,
    )
    following = cursors.make_next(jobs, has_more=has_more)
    return Answer(ExportPage(items=await show_exports(connection, jobs), next=following))


@router.get(
    _ONE,
    response_model=ShownExport,
    responses=document_refusals(404),
    openapi_extra=_NEEDED,
    summary="Follow an export",
)
async def get_export(export_id: UUID, connection: Reading, access: Asking) -> Answer:
    """How far an export is."""
    [shown] = await show_exports(connection, [await _find_job(connection, access, export_id)])
    return Answer(shown)


@router.post(
    f"{_ONE}/cancel",
    status_code=202,
    response_model=ShownExport,
    responses=document_refusals(404, 409),
    openapi_extra=_NEEDED,
    summary="Cancel an export, or delete its parts",
)
async def cancel_export(export_id: UUID, connection: Writing, access: Asking) -> Answer:
    """Nothing more is written, and the parts are deleted; possible until it has expired. Copies
    that were downloaded stay where they are, and erasures go on to name them."""
    job = await _find_job(connection, access, export_id, lock=True)
    if job.state in REMOVED:
        raise Conflict(f"The export is {job.state}: its parts are deleted.")
    await request_removal(connection, export_id)
    await _note(connection, access, Action.EXPORT_CANCELLED, job)
    [shown] = await show_exports(connection, [await _find_job(connection, access, export_id)])
    return Answer(shown, status_code=202)


@router.post(
    f"{_ONE}/restart",
    status_code=202,
    response_model=ShownExport,
    responses=document_refusals(404, 409),
    openapi_extra=_NEEDED,
    summary="Start an export again",
)
async def restart_export(
    export_id: UUID, connection: Writing, to: Settings, access: Asking
) -> Answer:
    """Ask the same question again, as another export with an id of its own: for a stale one, whose
    parts an erasure deleted, and for any other that has ended. The parts that are left of the first
    one stay until it expires or is cancelled."""
    job = await _find_readable(connection, access, export_id)
    again = await insert_again(connection, to, job, requested_by=access.who.actor)
    await _note(
        connection, access, Action.EXPORT_REQUESTED, again, blobs=again.blobs, restarts=str(job.id)
    )
    [shown] = await show_exports(connection, [again])
    return Answer(shown, status_code=202, headers={"Location": f"/v1/exports/{again.id}"})


@router.get(
    f"{_ONE}/parts",
    response_model=ExportPartPage,
    responses=document_refusals(404),
    openapi_extra=_NEEDED,
    summary="Get links to an export's parts",
)
async def get_export_parts(  # noqa: PLR0917  (FastAPI calls it by name)
    export_id: UUID,
    page: Annotated[PageParameters, Query()],
    connection: Writing,
    blobs: BlobStore,
    to: Settings,
    access: Asking,
) -> Answer:
    """The parts that are listed so far, each with a link once it is written. Who asks counts as
    having downloaded what is written: erasures name them."""
    job = await _find_readable(connection, access, export_id)
    after = cursors.decode_one(page.cursor, int) or 0
    if after > _MOST_PARTS:
        raise InvalidCursor("The cursor is none of this list: ask without one.")
    parts = await list_parts(connection, export_id, after=after, limit=page.limit + 1, lock=True)
    items, following = cursors.cut_page(parts, page.limit, lambda part: part.number)
    await _record_download(connection, access, job, items)
    shown = await show_parts(to, blobs, items)
    return Answer(ExportPartPage(items=shown, next=following))


@router.get(
    f"{_ONE}/parts/{{number}}",
    response_class=StreamingResponse,
    responses=document_refusals(
        *(404, 409, 410, 416),
        also={
            200: {"content": _PART_CONTENT, "description": "The part."},
            206: {"content": _PART_CONTENT, "description": "The range of it."},
        },
    ),
    openapi_extra=_NEEDED,
    summary="Download a part of an export",
)
async def get_export_part(  # noqa: PLR0917  (FastAPI calls it by name)
    export_id: UUID,
    number: Annotated[int, Path(ge=1, le=_MOST_PARTS)],
    connection: Writing,
    blobs: BlobStore,
    access: Asking,
    range_: Annotated[str, Header(alias="Range", examples=["bytes=1000-"])] = "",
    if_range: Annotated[str, Header(examples=['"…"'])] = "",
) -> StreamingResponse:
    """The bytes of a part, through the api. `Range` resumes a download: one range of bytes
    (`bytes=n-`, `bytes=n-m`, `bytes=-n`), with `If-Range` only if `ETag` is still that."""
    job = await _find_readable(connection, access, export_id)
    parts = await list_parts(connection, export_id, after=number - 1, limit=1, lock=True)
    remedy = f"start the export again with POST /v1/exports/{export_id}/restart"
    if job.state in REMOVED:
        raise Gone(f"The export is {job.state}, and its parts are deleted: {remedy}.")
    if not parts or parts[0].number != number:
        raise NotFound(f"The export has no part {number}.")
    part = parts[0]
    if part.state == "stale":
        cause = "an erasure deleted it, because it named something erased"
        raise Gone(f"The part {number} is not there: {cause}. For the rest of it, {remedy}.")
    if part.state == "removed":
        raise Gone(f"The part {number} is not there: all that it had was erased.")
    if part.state != "written" or part.storage_key is None:
        raise Conflict(f"The part {number} is {part.state}: ask again when the export is done.")
    assert part.bytes is not None, "it is written"
    assert part.sha256 is not None, "it is written"
    tag = f'"{part.sha256.hex()}"'
    span = read_range(range_, part.bytes) if if_range in {"", tag} else None
    await _record_download(connection, access, job, [part])
    try:
        stream = await blobs.stream(parse_stored(part.storage_key), span)
    except BlobMissing:
        raise Gone(f"The object {part.storage_key} is not in the bucket: {remedy}.") from None
    format = PART_FORMATS[job.format]
    name = f"{export_id}-{number:05}{format.suffix}"
    headers = {
        "Content-Length": str(stream.size),
        "Content-Disposition": f'attachment; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
        "Accept-Ranges": "bytes",
        "ETag": tag,
    }
    if span is not None:
        headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{part.bytes}"
    return StreamingResponse(
        stream.pieces, 200 if span is None else 206, headers, format.media_type
    )


async def _find_job(
    connection: AsyncConnection, access: Access, export_id: UUID, *, lock: bool = False
) -> ExportJob:
    job = await find_job(connection, export_id, within=access.scope, lock=lock)
    if job is None:
        raise NotFound(f"There is no export {export_id}.")
    return job


async def _find_readable(connection: AsyncConnection, access: Access, export_id: UUID) -> ExportJob:
    """Return an export whose parts the caller may read. Raises Forbidden if it has inputs, and the
    caller may not see them."""
    job = await _find_job(connection, access, export_id)
    if job.blobs != "none":
        registration = await access.find_model(connection, await read_model_id(connection, job))
        access.require_right(Right.READ_INPUTS, registration)
    return job


async def _record_download(
    connection: AsyncConnection, access: Access, job: ExportJob, parts: Sequence[Part]
) -> None:
    """Record who gets links, and audit it, before they are given out."""
    written = sum(part.state == "written" for part in parts)
    if written:
        await record_download(connection, job.id, actor=access.who.actor, parts=written)
        await _note(connection, access, Action.EXPORT_READ, job, parts=written)


async def _note(
    connection: AsyncConnection, access: Access, action: Action, job: ExportJob, **detail: Any
) -> None:
    """Audit what was done with an export, as an entry about its model."""
    registration = await access.find_model(connection, await read_model_id(connection, job))
    await access.note(connection, action, registration, export=str(job.id), **detail)
