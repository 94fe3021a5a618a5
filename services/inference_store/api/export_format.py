"""Formats exports and their parts for answers."""

import asyncio
from collections.abc import Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.api.schemas.exports import ShownDownload, ShownExport, ShownPart
from inference_store.export.erased import Download, list_downloads
from inference_store.export.jobs import ExportJob
from inference_store.export.parts import Part
from inference_store.index import registrations
from inference_store.inference.events.event import parse_stored
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings


async def show_exports(connection: AsyncConnection, jobs: Sequence[ExportJob]) -> list[ShownExport]:
    """Return exports as answers have them."""
    names = await registrations.names(connection, {job.model for job in jobs})
    downloads = await list_downloads(connection, [job.id for job in jobs])
    shown = [job for job in jobs if job.model in names]  # one may have been removed meanwhile
    return [_show_export(job, names[job.model], downloads[job.id]) for job in shown]


def _show_export(job: ExportJob, model_id: str, downloads: Sequence[Download]) -> ShownExport:
    return ShownExport.show(
        job,
        **_show_document(job),
        model_id=model_id,
        parts=job.lists,
        parts_written=job.written,
        downloads=[ShownDownload.show(download) for download in downloads],
    )


def _show_document(job: ExportJob) -> dict[str, Any]:
    shown = {name: job.document[name] for name in ("filter", "since", "until", "include")}
    return shown | {"blobs": job.blobs}


async def show_parts(settings: ApiSettings, blobs: Blobs, parts: Sequence[Part]) -> list[ShownPart]:
    """Return parts with where each can be read: presigned links, or the api's own route."""
    urls = await asyncio.to_thread(lambda: [_make_url(settings, blobs, part) for part in parts])
    return [
        ShownPart.show(part, url=url, sha256=None if part.sha256 is None else part.sha256.hex())
        for part, url in zip(parts, urls, strict=True)
    ]


def _make_url(settings: ApiSettings, blobs: Blobs, part: Part) -> str | None:
    if part.state != "written" or part.storage_key is None:
        return None
    if settings.presigned_urls == "off":
        return f"/v1/exports/{part.export}/parts/{part.number}"
    return blobs.presign(parse_stored(part.storage_key), settings.presigned_url_seconds)
