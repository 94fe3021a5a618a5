"""Requests for exports, and the jobs that they become."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import policies
from inference_store.erasure.policies.effective_policy import parse_duration
from inference_store.export.columns import BlobChoice
from inference_store.export.jobs import (
    UNFINISHED,
    ExportJob,
    NewExport,
    count_unfinished,
    request_export,
)
from inference_store.export.listing import build_question, describe_question
from inference_store.export.part_formats import PART_FORMATS
from inference_store.inference.errors import Conflict, Invalid
from inference_store.inference.field_docs import Body, Flag, ShortText
from inference_store.platform.settings import ApiSettings
from inference_store.query.cql2 import FilterLang
from inference_store.query.deadline import Deadline, OutOfTime
from inference_store.query.search import count

from .conditions import filter_field, read_requested_filter
from .fields import Window

Format: TypeAlias = Literal["parquet", "arrow", "csv", "jsonl", "webdataset", "chariot"]
Included: TypeAlias = Literal["metadata", "predictions", "ground_truth"]
_EVERYTHING: Final[list[Included]] = ["metadata", "predictions"]


class ExportRequest(Body):
    """What to export, and how."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "filter": "prediction(label = 'person' AND score < 0.4)",
                    "received_at": {"from": "2026-11-01T00:00:00Z"},
                    "format": "parquet",
                    "expires_in": "P7D",
                }
            ]
        }
    )

    filter: Any = filter_field(
        "Left out: every inference of the model.", "prediction(label = 'person' AND score < 0.4)"
    )
    filter_lang: FilterLang | None = None
    """The filter's language; left out: that of its JSON type."""
    received_at: Window | None = None
    """When the request came in. What comes in after the export was requested is not in it."""
    format: Format = "parquet"
    """The format of the parts."""
    include: Annotated[list[Included], Field(max_length=3)] = Field(default=_EVERYTHING)
    """What to write beside the inference itself; ground truth is a column of JSON."""
    blobs: BlobChoice | None = None
    """What the parts contain of the blobs: nothing (`none`); presigned `links`, with which anyone
    who has the file can read them until the export expires, for at most 7 days; or their bytes
    (`copy`). Links and copies need the right `read_inputs`. Default: `copy` for webdataset, else
    `none`."""
    expires_in: Annotated[
        ShortText | None, Field(json_schema_extra={"format": "duration"}, examples=["P7D"])
    ] = None
    """When its parts are deleted, as an ISO 8601 duration after the request; left out:
    seven days. A retention policy of the model may end it sooner."""
    confirm: Flag = False
    """Needed for more than a million inferences."""


MOST_UNFINISHED: Final = 20
"""Exports of one caller that are not written yet."""
_EXPIRES_SECONDS: Final = 7 * 24 * 3600.0


async def prepare_export(
    connection: AsyncConnection,
    settings: ApiSettings,
    model: int,
    body: ExportRequest,
    *,
    requested_by: str,
) -> NewExport:
    """Check a request, and resolve its filter.

    Raises InvalidFilter, UnknownKey, ImpossibleComparison; Invalid for a format that is not
    installed or has no such blobs, and a bad duration; Conflict for too much without `confirm`.
    """
    blobs, now = choose_blobs(body), datetime.now(UTC)
    _check_format(settings, body.format, blobs)
    expires_at = _find_end(body.expires_in, settings, now)
    expires_at = await _limit_end(connection, model, expires_at, now)
    filter = await read_requested_filter(body.filter, body.filter_lang, now=now)
    window = body.received_at or Window()
    document = await describe_question(
        connection,
        model,
        filter.tree,
        text=filter.text,
        since=window.since,
        until=now if window.until is None else min(window.until, now),
        include=list(dict.fromkeys(body.include)),
        blobs=blobs,
    )
    if not body.confirm:
        await _require_few(connection, settings, model, document)
    return NewExport(model, body.format, document, requested_by, expires_at)


async def prepare_again(
    connection: AsyncConnection, settings: ApiSettings, job: ExportJob, *, requested_by: str
) -> NewExport:
    """Return another export with the question of one that has ended, which stays as long.

    Raises Conflict for one that has not ended, or whose question is lost; Invalid for a format that
    is not installed, or links that are switched off since.
    """
    if job.state in UNFINISHED:
        raise Conflict(f"The export is {job.state}: wait until it has ended, or cancel it.")
    if job.erased_by is not None:
        raise Conflict(
            f"Erasure {job.erased_by}: the filter of this export is lost. Request a new export."
        )
    _check_format(settings, job.format, job.blob_choice)
    now, most = datetime.now(UTC), timedelta(seconds=settings.export_most_seconds)
    lasting = min(job.expires_at - job.requested_at, most)
    expires_at = await _limit_end(connection, job.model, now + lasting, now)
    document = {name: value for name, value in job.document.items() if name != "keys"}
    return NewExport(job.model, job.format, document, requested_by, expires_at)


async def insert_export(connection: AsyncConnection, new_export: NewExport) -> ExportJob:
    """Insert the job. Raises Conflict if the caller has too many."""
    unfinished = await count_unfinished(connection, requested_by=new_export.requested_by)
    if unfinished >= MOST_UNFINISHED:
        raise Conflict(
            f"You have {MOST_UNFINISHED} exports that are not written yet: wait for one of them,"
            " or cancel it.",
            at="header.authorization",
        )
    return await request_export(connection, new_export)


def choose_blobs(body: ExportRequest) -> BlobChoice:
    """Return what the parts have of the blobs."""
    return PART_FORMATS[body.format].default_blobs if body.blobs is None else body.blobs


def _check_format(settings: ApiSettings, name: str, choice: BlobChoice) -> None:
    format = PART_FORMATS[name]
    if not format.is_installed:
        remedy = f"install inference-store[{name}], or choose another format"
        message = f"{name} needs a package that this server does not have: {remedy}"
        raise Invalid.of("format", message)
    if choice == "copy" and not format.copied:
        others = ", ".join(each.name for each in PART_FORMATS.values() if each.copied)
        raise Invalid.of("blobs", f"{name} cannot hold copies: choose none or links, or {others}")
    if choice == "links" and settings.presigned_urls == "off":
        others = "copy or none" if format.copied else "none"
        message = (
            "links are presigned URLs, which this server has turned off"
            f" (INFERENCE_STORE_PRESIGNED_URLS): choose {others}"
        )
        raise Invalid.of("blobs", message)


async def _require_few(
    connection: AsyncConnection, settings: ApiSettings, model: int, document: Mapping[str, Any]
) -> None:
    most = settings.export_confirm_above
    query = await build_question(connection, model, document)
    try:
        deadline = Deadline.after(settings.query_timeout_seconds)
        matches = await count(connection, query, deadline=deadline)
    except OutOfTime:
        text = "An unknown number of inferences match: counting them takes too long."
    else:
        if matches <= most:
            return
        text = (
            f"{matches:,} inferences match, and without `confirm` an export has at most {most:,}."
        )
    detail = f"{text} Narrow `filter` or `received_at`, or set `confirm` to true."
    raise Conflict(detail, at="confirm")


def _find_end(text: str | None, settings: ApiSettings, now: datetime) -> datetime:
    most = settings.export_most_seconds
    if text is None:
        return now + timedelta(seconds=min(_EXPIRES_SECONDS, most))
    try:
        duration = parse_duration(text)
        end = None if duration is None else duration.find_end(now)
    except ValueError:
        message = "it must be an ISO 8601 duration, such as P7D or PT12H"
        raise Invalid.of("expires_in", message) from None
    if end is None or end > now + timedelta(seconds=most):
        raise Invalid.of("expires_in", f"an export is kept for at most {most / 86400:.0f} days")
    if end <= now:
        raise Invalid.of("expires_in", "it must be longer than zero")
    return end


async def _limit_end(
    connection: AsyncConnection, model: int, expires_at: datetime, now: datetime
) -> datetime:
    """Return the end, at the latest when a policy lets everything expire that is there now."""
    effective = (await policies.find_effective_policies(connection, {model})).get(model)
    end = None if effective is None else effective.find_end(now)
    return expires_at if end is None else min(expires_at, now + (now - end))
