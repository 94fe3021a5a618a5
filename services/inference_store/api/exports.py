"""Exports: jobs that write everything that matches to the bucket; requested, followed, downloaded,
cancelled, and what erasures took of them."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any
from uuid import UUID

from fastapi import Header, Path
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import StreamingResponse

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.export.erased import (
    FIRST,
    Download,
    ErasedMember,
    list_downloads,
    list_erased,
    record_download,
)
from inference_store.export.jobs import (
    REMOVED,
    STATES,
    ExportJob,
    NewExport,
    Part,
    State,
    find_job,
    list_jobs,
    list_parts,
    move_job,
    read_model_id,
)
from inference_store.export.part_formats import PART_FORMATS
from inference_store.index import registrations
from inference_store.inference.errors import BlobMissing, Conflict, Gone, InvalidCursor, NotFound
from inference_store.inference.events.event import parse_stored
from inference_store.inference.field_docs import ShortText
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings

from . import fields
from .access import Access, Asking, Needs, Over
from .answer import Answer, Shown
from .dependencies import Reading, Writing, querying
from .export_requests import (
    ExportRequest,
    choose_blobs,
    insert_export,
    prepare_again,
    prepare_export,
)
from .fields import InQuery, PageAnswer, PageParameters
from .http import ANY, BYTES, OF_MODEL, ModelId, read_range
from .routing import BINARY, Router


class ExportParameters(PageParameters):
    """Which page of which exports; everything that is given must hold."""

    state: Annotated[list[State], Field(max_length=len(STATES))] | None = None
    """In this state; repeat it for several."""
    model_id: ShortText | None = None
    """Of this model."""


class ShownDownload(Download, Shown):
    """Who was given links to parts, and when."""


class ShownExport(ExportJob, Shown):
    """An export: everything that matched, in parts."""

    model_id: str
    state: str  # type: ignore[assignment]  # a later version may have more
    """`pending`; `listing`: the matches are being listed; `writing`; `done`; `stale`: an erasure
    deleted some of its parts, start it again for the rest; `failed`; `cancelling`; `cancelled` and
    `expired`: the parts are deleted."""
    filter: str | None
    """As it was written; null: none, or `erased_by` took its values."""
    since: datetime | None
    """When its inferences were received, at the earliest."""
    until: datetime | None
    """Until when they were received, exclusive; at the latest when the export was requested."""
    include: list[str]
    blobs: str
    """`none`; `links`: presigned links; `copy`: their bytes."""
    parts: int
    """Parts that are listed so far."""
    parts_written: int
    downloads: list[ShownDownload]
    """The first thousand callers that were given links."""


class ShownExportPart(Part, Shown):
    """A part of an export."""

    state: str  # type: ignore[assignment]  # a later version may have more
    """`listed`: it is still to be written; `writing`; `written`; `stale`: an erasure deleted it,
    because it named something erased; `removed`: it is empty, or the export is over."""
    url: str | None
    """Where to download it, without a key if it is a presigned link; null if it is not written."""
    sha256: str | None  # type: ignore[assignment]
    """Of the whole part, in hexadecimal."""


class ShownErasedMember(ErasedMember, Shown):
    """An exported inference that was erased since: delete it from copies too."""

    cursor: str
    """A cursor that continues after this item. That of the last item returns what is erased
    later."""


router = Router("exports")
_NEEDED = Needs(Right.EXPORT, Over.SOME)
_ONE = "/exports/{export_id}"
_MOST_PARTS = 2**31 - 1
_PART_CONTENT: dict[str, Any] = {ANY: {}, BYTES: BINARY}
_PART: dict[int | str, dict[str, Any]] = {
    200: {"content": _PART_CONTENT, "description": "The part."},
    206: {"content": _PART_CONTENT, "description": "The range of it."},
}


@router.add(f"POST {OF_MODEL}/exports", Right.EXPORT, "Export inferences", 409, 501, status=202)
async def request_export(
    model_id: ModelId, body: ExportRequest, access: Asking
) -> Answer[ShownExport]:
    """Write everything that matches to the bucket, in parts. The retention service lists what
    matches now, and writes it. GET /v1/exports/{id} shows the progress."""
    async with querying(access) as connection:
        registration = await access.find_model(connection, model_id)
        if choose_blobs(body) != "none":
            access.require_right(Right.READ_INPUTS, registration)
        by, to = access.who.actor, access.settings
        new = await prepare_export(connection, to, registration.model, body, requested_by=by)
    async with access.engine.begin() as connection:
        return await _insert(connection, access, new)


@router.add("GET /exports", _NEEDED, "List exports", 404)
async def list_exports(
    page: InQuery[ExportParameters], connection: Reading, access: Asking
) -> PageAnswer[ShownExport]:
    """Exports of the models that the caller may export, the newest first. A page with large filters
    may have fewer than `limit`."""
    model = None if page.model_id is None else await access.find_model(connection, page.model_id)
    jobs, has_more = await list_jobs(
        connection,
        model=None if model is None else model.model,
        states=page.state,
        before=page.find_before(),
        limit=page.limit,
        within=access.scope,
    )
    following = fields.encode(*fields.by_time()(jobs[-1])) if has_more else None
    return PageAnswer(await show_exports(connection, jobs), following)


@router.add(f"GET {_ONE}", _NEEDED, "Follow an export")
async def get_export(export_id: UUID, connection: Reading, access: Asking) -> Answer[ShownExport]:
    """The progress of an export."""
    [shown] = await show_exports(connection, [await _find_job(connection, access, export_id)])
    return Answer(shown)


@router.add(
    f"POST {_ONE}/cancel", _NEEDED, "Cancel an export, or delete its parts", 409, status=202
)
async def cancel_export(
    export_id: UUID, connection: Writing, access: Asking
) -> Answer[ShownExport]:
    """Stop writing, and delete the parts. This is possible until the export has expired. Copies
    that were downloaded are not affected, and erasures continue to list them."""
    job = await _find_job(connection, access, export_id, lock=True)
    if job.state in REMOVED:
        raise Conflict(f"The export is {job.state}: its parts are deleted.")
    await move_job(connection, export_id, "cancelling")
    await _note(connection, access, Action.EXPORT_CANCELLED, job)
    [shown] = await show_exports(connection, [await _find_job(connection, access, export_id)])
    return Answer(shown, status_code=202)


@router.add(f"POST {_ONE}/restart", _NEEDED, "Start an export again", 409, status=202)
async def restart_export(
    export_id: UUID, connection: Writing, access: Asking
) -> Answer[ShownExport]:
    """Request the same export again under a new id: for a stale export, of which an erasure deleted
    parts, or any other that has ended. The remaining parts of the first one stay until it expires
    or is cancelled."""
    job = await _find_readable(connection, access, export_id)
    by = access.who.actor
    new = await prepare_again(connection, access.settings, job, requested_by=by)
    return await _insert(connection, access, new, restarts=str(job.id))


async def _insert(
    connection: AsyncConnection, access: Access, new: NewExport, **detail: Any
) -> Answer[ShownExport]:
    job = await insert_export(connection, new)
    requested, blobs = Action.EXPORT_REQUESTED, job.blob_choice
    await _note(connection, access, requested, job, blobs=blobs, **detail)
    [shown] = await show_exports(connection, [job])
    return Answer(shown, status_code=202, location=f"/v1/exports/{job.id}")


@router.add(f"GET {_ONE}/parts", _NEEDED, "Get links to an export's parts", order="in order")
async def get_export_parts(
    export_id: UUID, page: InQuery[PageParameters], connection: Writing, access: Asking
) -> PageAnswer[ShownExportPart]:
    """The parts that are listed so far, each with a link once it is written. The caller is recorded
    as having downloaded the written parts, and erasures will name them."""
    job = await _find_readable(connection, access, export_id)
    after = page.find_after(int) or 0
    if after > _MOST_PARTS:
        raise InvalidCursor("The cursor does not belong to this list: start again without one.")
    parts = await list_parts(connection, export_id, after=after, limit=page.limit + 1, lock=True)
    items, following = page.cut(parts, attrgetter("number"))
    await _record_download(connection, access, job, items)
    settings, blobs = access.settings, access.blobs
    urls = await asyncio.to_thread(lambda: [_make_url(settings, blobs, part) for part in items])
    shown = [
        ShownExportPart.show(part, url=url, sha256=part.sha256 and part.sha256.hex())
        for part, url in zip(items, urls, strict=True)
    ]
    return PageAnswer(shown, following)


@router.add(
    f"GET {_ONE}/parts/{{number}}",
    _NEEDED,
    "Download a part of an export",
    409,
    410,
    416,
    also=_PART,
)
async def get_export_part(  # noqa: PLR0917  (FastAPI calls it by name)
    export_id: UUID,
    number: Annotated[int, Path(ge=1, le=_MOST_PARTS)],
    connection: Writing,
    access: Asking,
    range_: Annotated[str, Header(alias="Range", examples=["bytes=1000-"])] = "",
    if_range: Annotated[str, Header(examples=['"…"'])] = "",
) -> StreamingResponse:
    """The bytes of a part, through the api. `Range` resumes a download with one range of bytes
    (`bytes=n-`, `bytes=n-m`, `bytes=-n`); `If-Range` makes that conditional on the `ETag`."""
    job = await _find_readable(connection, access, export_id)
    parts = await list_parts(connection, export_id, after=number - 1, limit=1, lock=True)
    remedy = f"start the export again with POST /v1/exports/{export_id}/restart"
    if job.state in REMOVED:
        raise Gone(f"The export is {job.state}, and its parts are deleted: {remedy}.")
    if not parts or parts[0].number != number:
        raise NotFound(f"The export has no part {number}.")
    part = parts[0]
    if part.state == "stale":
        cause = "because it contained something erased"
        raise Gone(f"An erasure deleted part {number}, {cause}. For the rest of it, {remedy}.")
    if part.state == "removed":
        raise Gone(f"Part {number} is gone: everything in it was erased.")
    if part.state != "written" or part.storage_key is None:
        raise Conflict(f"Part {number} is not written yet: ask again when the export is done.")
    assert part.bytes is not None, "it is written"
    assert part.sha256 is not None, "it is written"
    tag = f'"{part.sha256.hex()}"'
    span = read_range(range_, part.bytes) if if_range in {"", tag} else None
    await _record_download(connection, access, job, [part])
    try:
        stream = await access.blobs.stream(parse_stored(part.storage_key), span)
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


@router.add(
    f"GET {_ONE}/erased",
    _NEEDED,
    "List what erasures took of an export",
    order="in the order in which they were erased",
)
async def list_erased_members(
    export_id: UUID, page: InQuery[PageParameters], connection: Reading, access: Asking
) -> PageAnswer[ShownErasedMember]:
    """What was exported and has been erased since, in the order of its erasure: delete it from
    every copy. The `cursor` of the last item returns what is erased later."""
    await _find_job(connection, access, export_id)
    key = fields.decode(page.cursor, int, int)
    after = FIRST if key is None else (key[0], key[1])
    erased = await list_erased(connection, export_id, after=after, limit=page.limit + 1)
    return page.answer(
        erased,
        lambda member: ShownErasedMember.show(member, cursor=fields.encode(*member.position)),
        attrgetter("position"),
    )


async def _find_job(
    connection: AsyncConnection, access: Access, export_id: UUID, *, lock: bool = False
) -> ExportJob:
    job = await find_job(connection, export_id, within=access.scope, lock=lock)
    if job is None:
        raise NotFound(f"There is no export {export_id}.")
    return job


async def _find_readable(connection: AsyncConnection, access: Access, export_id: UUID) -> ExportJob:
    """Raises Forbidden if it has inputs, and the caller may not see them."""
    job = await _find_job(connection, access, export_id)
    if job.blob_choice != "none":
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
    registration = await access.find_model(connection, await read_model_id(connection, job))
    await access.note(connection, action, registration, export=str(job.id), **detail)


async def show_exports(connection: AsyncConnection, jobs: Sequence[ExportJob]) -> list[ShownExport]:
    """Return exports as answers have them."""
    names = await registrations.names(connection, {job.model for job in jobs})
    downloads = await list_downloads(connection, [job.id for job in jobs])
    return [
        ShownExport.show(
            job,
            **{name: job.document[name] for name in ("filter", "since", "until", "include")},
            blobs=job.blob_choice,
            model_id=names[job.model],
            parts=job.lists,
            parts_written=job.written,
            downloads=[ShownDownload.show(download) for download in downloads[job.id]],
        )
        for job in jobs
        if job.model in names  # it may have been removed meanwhile
    ]


def _make_url(settings: ApiSettings, blobs: Blobs, part: Part) -> str | None:
    if part.state != "written" or part.storage_key is None:
        return None
    if settings.presigned_urls == "off":
        return f"/v1/exports/{part.export}/parts/{part.number}"
    return blobs.presign(parse_stored(part.storage_key), settings.presigned_url_seconds)
