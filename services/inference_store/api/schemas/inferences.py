"""Inferences as they are shown."""

from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from pydantic import ConfigDict, Field

from inference_store.api.problems import Problem
from inference_store.api.shown import Shown

from .explain import Explanation
from .resolved import ResolvedTime


def _without_required(schema: dict[str, Any]) -> None:
    schema.pop("required", None)


class InferenceCount(Shown):
    """How many inferences match."""

    count: int = Field(examples=[17])
    warnings: list[str]
    resolved: list[ResolvedTime] | None = None
    """What the filter's relative times were taken for; where it has some."""
    explain: Explanation | None = None
    """Where it was asked for."""


class ShownMetadata(Shown):
    """One metadata item as it came."""

    key: str
    type: str
    value: str | None
    section: Literal["standard", "extended"]
    flags: list[str]


class ShownPrediction(Shown):
    """One element of a response. Boxes in pixels, y down."""

    ordinal: int
    rank: int
    output: int
    output_name: str | None
    label: str | None
    score: float | None
    xmin: float | None
    ymin: float | None
    xmax: float | None
    ymax: float | None
    area: float | None
    cx: float | None
    cy: float | None
    w: float | None
    h: float | None
    angle: float | None
    prompt: str | None
    answer: str | None
    text: str | None
    start: int | None
    end: int | None
    value: float | None


class Urls(Shown):
    """Links that read the blobs without a token, for a while; null: there is no such blob."""

    data: str | None
    response: str | None
    metadata: str | None


class ChosenPrediction(ShownPrediction):
    """What `fields` asked for of an element of a response."""

    model_config = ConfigDict(json_schema_extra=_without_required)


class ChosenUrls(Urls):
    """What `fields` asked for of the links."""

    model_config = ConfigDict(json_schema_extra=_without_required)


class ShownInference(Shown):
    """One datum and what the model said of it. What is not known is null."""

    uid: UUID
    model_id: str
    inference_id: str
    aliases: list[str]
    received_at: datetime
    forwarded_at: datetime | None
    responded_at: datetime | None
    published_at: datetime | None
    indexed_at: datetime | None
    pre_ms: float | None
    """Milliseconds from received to forwarded."""
    model_ms: float | None
    """Milliseconds from forwarded to responded."""
    post_ms: float | None
    """Milliseconds from responded to published."""
    ok: bool | None
    http_status: int | None
    grpc_code: int | None
    error: str | None
    trace_id: str | None
    model_version: str | None
    task_type: str | None
    protocol: str | None
    action: str | None
    batch_index: int | None
    batch_size: int | None
    capture_id: UUID | None
    data_hash: str | None
    data_size_bytes: int | None
    data_content_type: str | None
    width: int | None
    height: int | None
    top_label: str | None
    top_score: float | None
    prediction_count: int | None
    """Null: the response failed or could not be read."""
    flags: list[str]
    problem: str | None
    data_deleted_at: datetime | None
    response_deleted_at: datetime | None
    revision: int
    data_storage_key: str | None
    response_storage_key: str | None
    metadata_storage_key: str | None
    distance_metres: float | None = None
    """Where the page is sorted by distance: metres to the point; null: it has no location."""
    metadata: list[ShownMetadata] | dict[str, Any] | None = None
    """By key, with `metadata_as` object."""
    predictions: list[ShownPrediction] | None = None
    urls: Urls | None = None
    cursor: str | None = None
    """What goes on after it; where `cursors` asked for it."""


class ChosenInference(ShownInference):
    """An inference with the fields alone that were asked for by `fields`."""

    model_config = ConfigDict(json_schema_extra=_without_required)

    metadata: list[ShownMetadata] | dict[str, Any] | None = None
    """By key, with `metadata_as` object."""
    predictions: list[ChosenPrediction] | None = None  # type: ignore[assignment]
    urls: ChosenUrls | None = None


class OneInference(ShownInference):
    """An inference that was asked for by its id."""

    count: int
    """How many inferences of the model have this id; 1000: at least so many."""


class InferencePage(Shown):
    """A page of inferences."""

    items: list[ShownInference | ChosenInference]
    next: str | None
    """Cursor of the next page; null: this was the last."""
    searched_back_to: datetime | None
    """Set when time ran out: how far the search came. The cursor goes on from there."""
    warnings: list[str]
    resolved: list[ResolvedTime] | None = None
    """What the filter's relative times were taken for; where it has some."""
    explain: Explanation | None = None
    """Where it was asked for."""


class StreamedInference(ChosenInference):
    """A line of a stream: an inference."""

    cursor: str
    """What goes on after this line."""


class StreamSearching(Shown):
    """A line of a stream that has found nothing for a while, and goes on."""

    cursor: str
    """What goes on from here."""
    searched_back_to: datetime
    """How far the search has come."""


class StreamEnd(Shown):
    """The last line of a stream. One without it was cut off: go on with the last line's cursor."""

    count: int
    """How many inferences were sent."""
    next: str | None
    """What goes on from here; null: nothing more matches."""
    warnings: list[str]
    problem: Problem | None
    """Why the stream ended before its end, as a refusal would have said."""
    resolved: list[ResolvedTime] | None = None
    """What the filter's relative times were taken for; where it has some."""


LINES: Final = (StreamedInference, StreamSearching, StreamEnd)
"""What a line of a stream may be."""
