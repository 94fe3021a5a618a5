"""Answers about many inferences."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, Literal, TypeVar
from uuid import UUID

# Problem details: what the API refuses, and why.

_MOST_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing wrong in the request: the field, what is wrong, and what is known instead."""

    path: str
    message: str
    known: tuple[str, ...]
    line: int | None = None
    """Of a filter in text, from 1."""
    column: int | None = None
    length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """The last part of the type: `unknown-metadata-key`."""
        return self.type.rpartition("#")[2]

    def describe(self) -> str:
        """Return the problem as text: status, title, detail, and what is not in the detail."""
        return "\n".join((f"{self.status} {self.title}", *self._describe_parts()))

    def _describe_parts(self) -> Iterator[str]:
        if any(fault.line for fault in self.errors):  # the message shows the place in the filter
            yield from (f"{fault.path}: {fault.message}" for fault in self.errors)
            return
        if self.detail:
            yield self.detail
        for fault in self.errors:
            if fault.message.casefold() not in self.detail.casefold():
                yield f"{fault.path}: {fault.message}"
            if fault.known and not any(name in self.detail for name in fault.known):
                yield f"known: {', '.join(fault.known[:_MOST_SHOWN])}"


ItemT_co = TypeVar("ItemT_co", covariant=True)
InferenceT_co = TypeVar("InferenceT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[ItemT_co]):
    """A page of a list of the API other than inferences: `Listing[Registration]`."""

    items: tuple[ItemT_co, ...]
    next: str | None
    """The cursor of the next page; None: this is the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTime:
    """A relative time of the filter, and the instant that it was taken for."""

    expression: str
    instant: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceCount:
    """How many inferences match."""

    count: int
    margin: int | None = None
    """Only of an estimate: how far the exact number may be from it, 95 times of 100."""
    warnings: tuple[str, ...]
    resolved: tuple[ResolvedTime, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedTagging:
    """An inference that could not be tagged, and why."""

    uid: UUID
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedInferences:
    """What became of a change of tags."""

    changed: int
    unchanged: int
    missing: tuple[str, ...]
    """Ids that no inference has."""
    refused: tuple[RefusedTagging, ...]
    remaining: tuple[UUID, ...]
    """The time was over before their turn: tag them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group: what its inferences have in common, and their measures."""

    key: Mapping[str, Any]
    measures: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OmittedGroups:
    """What is not among the groups of an answer."""

    groups: int
    inferences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """Measures by groups."""

    groups: tuple[Group, ...]
    others: OmittedGroups
    approximate: bool
    warnings: tuple[str, ...]
    resolved: tuple[ResolvedTime, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[InferenceT_co]):
    """A page of inferences. An empty page with a `next` is not the end."""

    items: tuple[InferenceT_co, ...]
    next: str | None
    """The cursor of the next page; None: this is the last."""
    searched_back_to: datetime | None
    """Set if time ran out: how far the search came."""
    warnings: tuple[str, ...]
    resolved: tuple[ResolvedTime, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """The last line of a stream."""

    count: int
    next: str | None
    warnings: tuple[str, ...]
    problem: Problem | None
    """Why the stream ended early."""
    resolved: tuple[ResolvedTime, ...] | None = None


# Who asks, what they may do, and what the api has switched on.


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Rights over everything, a project, or a model."""

    rights: tuple[str, ...]
    role: Literal["reader", "analyst", "owner"] | None
    project_id: str | None
    model_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerLimits:
    """The bounds of one caller on one process of the api."""

    requests_per_minute: int | None
    body_bytes: int
    queries_at_once: int
    streams_at_once: int
    query_timeout_seconds: float
    presigned_url_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedOn:
    """What this api has switched on."""

    access_control: bool
    oidc: bool
    presigned_urls: bool
    thumbnails: bool
    replays: bool
    read_replica: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks: `GET /v1/me`."""

    kind: Literal["anyone", "token", "key", "oidc"]
    name: str
    display_name: str | None
    expires_at: datetime | None
    rights: tuple[str, ...]
    rights_over_everything: tuple[str, ...]
    grants: tuple[Grant, ...]
    limits: CallerLimits
    switched_on: SwitchedOn
    version: str


# The predictions of an inference as shapes over its picture: what a dataset needs of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Keypoint:
    """What is known of a point: its index in the model's list, its name, its score."""

    index: int
    name: str | None
    score: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One shape; of a prediction with several contours, each is a shape."""

    kind: Literal["box", "oriented_box", "polygon", "keypoints"]
    ordinal: int
    """The index of its prediction in the response."""
    points: tuple[tuple[float, ...], ...]
    """x and y of each, in pixels."""
    keypoints: tuple[Keypoint, ...] | None
    """One for each point; None for other kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The shapes of an inference, in the order of the response."""

    shapes: tuple[Shape, ...]
    problem: str | None
    """Why contours or keypoints are missing."""


# Thumbnails of inputs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumbnail:
    """A thumbnail as JPEG, or the beginning of a text, in base64; or why there is none."""

    uid: UUID
    picture_width: int | None
    picture_height: int | None
    data: str | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThumbnailPage:
    """Thumbnails, in the order in which they were asked for."""

    items: tuple[Thumbnail, ...]
