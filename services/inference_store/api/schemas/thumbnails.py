"""Thumbnails of inputs."""

from typing import Annotated, Final
from uuid import UUID

from pydantic import ConfigDict, Field, Strict

from inference_store.api.problems import Problem
from inference_store.api.shown import Shown

from .fields import WHOLE, Body

MOST_THUMBNAILS: Final = 100
EDGE: Final = 240


class ThumbnailQuery(Body):
    """Which thumbnails."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"uids": ["019ac3f2-7c00-8123-9abc-0123456789ab"], "edge": 240}]
        }
    )

    uids: Annotated[list[UUID], Field(min_length=1, max_length=MOST_THUMBNAILS)]
    """Of inferences of the model."""
    edge: Annotated[int, Strict(), Field(ge=16, le=1024), WHOLE] = EDGE
    """The longer edge has at most so many pixels."""


class ShownThumbnail(Shown):
    """A line: the thumbnail of one inference, or why there is none."""

    uid: UUID
    content_type: str | None = Field(examples=["image/jpeg"])
    width: int | None
    """Of the thumbnail in pixels."""
    height: int | None
    picture_width: int | None
    """Of the picture in pixels."""
    picture_height: int | None
    data: str | None
    """The thumbnail in base64."""
    problem: Problem | None
    """Why there is none, as a refusal would have said."""


class ThumbnailPage(Shown):
    """The same as one object."""

    items: list[ShownThumbnail]
