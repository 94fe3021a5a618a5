"""Exports that the store writes to its bucket."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

ExportFormat: TypeAlias = Literal["parquet", "arrow", "csv", "jsonl", "webdataset", "chariot"]
ExportBlobs: TypeAlias = Literal["none", "links", "copy"]
ENDED: Final = ("done", "stale", "failed", "cancelling", "cancelled", "expired")
"""The states in which nothing more is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """Who was given links to parts, and when."""

    actor: str
    first_at: datetime
    last_at: datetime
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFields:
    """An export as the store has it. `state` is `done` when every part is written, and `stale` when
    an erasure deleted some of them."""

    id: UUID
    model_id: str
    format: str
    filter: str | None
    since: datetime | None
    until: datetime | None
    include: tuple[str, ...]
    blobs: str
    """What its parts have of the blobs: `none`, `links` or `copy`."""
    state: str
    requested_by: str
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime
    """From then on its parts are deleted."""
    members: int
    """Inferences that were listed."""
    parts: int
    parts_written: int
    rows: int
    """Inferences in the parts that are written."""
    bytes: int
    gone: int
    """Members that were erased before their part was written."""
    missing: int
    """Blobs that the parts should have and do not."""
    parts_deleted: int
    """Parts that erasures deleted, because they named something erased."""
    inferences_deleted: int
    """Inferences in those parts, erased or not."""
    error: str | None
    """Why it failed, or waits."""
    retry_at: datetime | None
    erased_by: UUID | None
    """The erasure that took the values of its filter."""
    downloads: tuple[Download, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPart:
    """A part of an export."""

    number: int
    state: str
    url: str | None
    """Where it can be read; null: it is not written."""
    rows: int | None
    bytes: int | None
    sha256: str | None
    written_at: datetime | None
    gone: int
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedMember:
    """A member of an export that an erasure took: erase it in copies too."""

    uid: UUID | None
    """Null: the store has forgotten the uids."""
    inferences: int
    """1; if `uid` is null, how many they were."""
    scope: str
    """What is erased: `inference`, or its `input` or `response` alone."""
    erased_at: datetime
    erasure: UUID
    cursor: str
    """Where reading goes on after it."""


# Why an inference is kept, and until when.


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedBy:
    """The rule that decides: of the policy of a level, by its number and name."""

    level: str
    model_id: str | None
    project_id: str | None
    rule: int | None
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit that applies to the model."""

    name: str
    most: int
    level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBy:
    """A legal hold."""

    id: UUID
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDecision:
    """The rule that decides once everything pending has begun. What it keeps is kept already."""

    begins_at: datetime
    decided_by: DecidedBy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The rule that decides about an inference. A time is None if the part is kept for ever."""

    uid: UUID
    received_at: datetime
    decided_by: DecidedBy | None
    pending: PendingDecision | None
    input_goes_at: datetime | None
    response_goes_at: datetime | None
    inference_goes_at: datetime | None
    limits: tuple[Limit, ...]
    held_by: HeldBy | None


# Erasures.


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an erasure is."""

    marked: int
    erased: int
    held: int
    left: int
    per_second: float | None
    seconds_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """An object that could not be deleted yet."""

    storage_key: str
    code: str
    message: str
    retry_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """An erasure. `state` is `certified` when the certificate is signed."""

    id: UUID
    cause: str
    scope: str
    model_id: str | None
    model_ids: tuple[str, ...]
    asked: Mapping[str, Any] | None
    state: str
    requested_by: str | None
    requested_at: datetime
    begun_at: datetime | None
    deleting_since: datetime | None
    finished_at: datetime | None
    retry_at: datetime | None
    inferences: int
    rows: Mapping[str, int]
    objects: int
    versions: int
    bytes: int
    oldest: datetime | None
    newest: datetime | None
    error: str | None
    message: str | None
    progress: Progress
    obstacles: tuple[Obstacle, ...]
    not_found: tuple[str, ...]
    certificate: int | None
    """The number of its certificate."""
    run: UUID | None
