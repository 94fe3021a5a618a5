"""Exports: jobs that write everything that matches to the bucket."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field

from inference_store.api.answer import Shown
from inference_store.api.conditions import filter_schema
from inference_store.api.cursors import PageParameters
from inference_store.api.fields import Body, Flag, ShortText, Window
from inference_store.export.columns import BlobChoice
from inference_store.export.erased import Download
from inference_store.export.jobs import STATES, ExportJob, State
from inference_store.export.parts import Part
from inference_store.query.cql2 import FilterLang

Format: TypeAlias = Literal["parquet", "arrow", "csv", "jsonl", "webdataset", "chariot"]
Included: TypeAlias = Literal["metadata", "predictions"]
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

    filter: Any = Field(
        default=None,
        description="A filter in CQL2, as of a query; left out: every inference of the model.",
        examples=["prediction(label = 'person' AND score < 0.4)"],
        json_schema_extra=filter_schema,
    )
    filter_lang: FilterLang | None = None
    """The filter's language; left out: that of its JSON type."""
    received_at: Window | None = None
    """When the request came in. What comes in after the export was requested is not in it."""
    format: Format = "parquet"
    """How the parts are written."""
    include: Annotated[list[Included], Field(max_length=2)] = Field(default=_EVERYTHING)
    """What is written beside the inference itself."""
    blobs: BlobChoice | None = None
    """What the parts have of the blobs: nothing; presigned `links`, by which anybody who has the
    file can read them, until the export expires, for at most 7 days; or their bytes (`copy`). Both
    need the right `read_inputs`. Left out: `none`, and `copy` for webdataset."""
    expires_in: Annotated[
        ShortText | None, Field(json_schema_extra={"format": "duration"}, examples=["P7D"])
    ] = None
    """When its parts are deleted, as an ISO 8601 duration after the request; left out:
    seven days. A retention policy of the model may end it sooner."""
    confirm: Flag = False
    """Needed for more than INFERENCE_STORE_EXPORT_CONFIRM_ABOVE inferences."""


class ExportParameters(PageParameters):
    """Which page of which exports; everything that is given must hold."""

    state: Annotated[list[State], Field(max_length=len(STATES))] | None = None
    """In this state; repeat it for several."""
    model_id: ShortText | None = None
    """Of this model."""


class ShownDownload(Shown, of=Download):
    """Who was given links to parts, and when."""


class ShownExport(
    Shown,
    of=ExportJob,
    instead={
        "model": ("model_id",),
        "document": ("filter", "since", "until", "include", "blobs"),
        "listed_to": (),
        "lists": ("parts",),
        "written": ("parts_written",),
    },
):
    """An export: everything that matched, in parts."""

    model_id: str
    format: str
    """parquet, arrow, csv, jsonl, webdataset or chariot."""
    state: str
    """`pending`; `listing`: the matches are being listed; `writing`; `done`; `stale`: an erasure
    deleted some of its parts, start it again for the rest; `failed`; `cancelling`; `cancelled` and
    `expired`: the parts are deleted."""
    filter: str | None
    """As it was written; null: none, or `erased_by` took its values."""
    since: datetime | None
    """When its inferences were received, at the earliest."""
    until: datetime | None
    """And before when: at the latest when the export was requested."""
    include: list[str]
    blobs: str
    """`none`; `links`: presigned links; `copy`: their bytes."""
    parts: int
    """Parts that are listed so far."""
    parts_written: int
    downloads: list[ShownDownload]
    """The first thousand callers that were given links."""


class ExportPage(Shown):
    """Exports, the newest first."""

    items: list[ShownExport]
    next: str | None


class ShownPart(
    Shown,
    of=Part,
    instead={"export": (), "model": (), "first": (), "last": (), "storage_key": ("url",)},
):
    """A part of an export."""

    state: str
    """`listed`: it is still to be written; `writing`; `written`; `stale`: an erasure deleted it,
    because it named something erased; `removed`: it is empty, or the export is over."""
    url: str | None
    """Where it can be read, without a key if it is a presigned link; null: it is not written."""
    sha256: str | None
    """Of the whole part, in hexadecimal."""


class ExportPartPage(Shown):
    """Parts, in order."""

    items: list[ShownPart]
    next: str | None
