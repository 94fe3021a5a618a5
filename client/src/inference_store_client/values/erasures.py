"""Erasures."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID


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
