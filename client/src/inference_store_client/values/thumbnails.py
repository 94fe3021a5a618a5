"""Thumbnails of inputs."""

from dataclasses import dataclass, field
from uuid import UUID

from .problems import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumbnail:
    """A thumbnail as JPEG in base64, or why there is none."""

    uid: UUID
    content_type: str | None
    width: int | None
    height: int | None
    picture_width: int | None
    picture_height: int | None
    data: str | None = field(repr=False)
    problem: Problem | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThumbnailPage:
    """Thumbnails, in the order in which they were asked for."""

    items: tuple[Thumbnail, ...]
