"""What a dataset reads of one inference besides the stream: its picture and its shapes. No I/O."""

import re
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

from inference_store_client.blob import Blob
from inference_store_client.commands import Steps
from inference_store_client.errors import ConnectionFailed, Gone, NotFound, Refused
from inference_store_client.reading import fetch, inference_path, read_blob, read_link
from inference_store_client.requests import make_request
from inference_store_client.settings import ClientSettings
from inference_store_client.values.drawings import Drawing
from inference_store_client.values.inference import InferenceFields

Job = TypeVar("Job")
MOST_DOWNLOADS: Final = 8
"""At once."""
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Of all pictures that are in memory, as far as their sizes are known."""
_UNKNOWN_BYTES: Final = 4 * 1024 * 1024
"""The size that is assumed of a picture whose event did not say it."""
OUTLINED: Final = frozenset(
    {
        *("image_segmentation", "instance_segmentation", "keypoint_detection"),
        *("pose_estimation", "human_pose_estimation", "keypoints"),
    }
)
"""Task types whose contours or keypoints are in the response alone."""


@dataclass(frozen=True, slots=True)
class Download:
    """The picture of an inference; without content: why it has none."""

    content: bytes | None = field(default=None, repr=False)
    drawing: Drawing | None = None
    reason: str = ""


@dataclass(slots=True)
class Links:
    """Whether links to the bucket can be reached from this machine."""

    work: bool = True


def read_download(
    inference: InferenceFields, settings: ClientSettings, links: Links, has_outlines: bool
) -> Steps[Download]:
    """Read the picture of an inference, and its shapes. Raises the refusals that are no answer."""
    if inference.data_deleted_at is not None:
        return Download(reason="deleted")
    if inference.data_storage_key is None:
        return Download(reason="no_data")
    if not _may_be_picture(inference.data_content_type):
        return Download(reason="not_a_picture")
    try:
        blob = yield from _read_data(inference, settings, links)
        drawing = None
        if has_outlines and _has_outlines(inference):
            request = make_request("GET", inference_path(inference, "drawing"))
            drawing = yield from fetch(Drawing, request, settings)
    except (Gone, NotFound):  # erased since the stream showed it
        return Download(reason="deleted")
    return Download(blob.content, drawing)


class Window(Generic[Job]):
    """Downloads that are on their way, in the order of the stream: bounded in number and bytes."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[InferenceFields, Job]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def is_full(self) -> bool:
        """Whether the oldest download must be taken before another begins."""
        return len(self._jobs) >= MOST_DOWNLOADS or self._bytes >= _MOST_BYTES

    def push(self, inference: InferenceFields, job: Job) -> None:
        """Add a download that has begun."""
        self._jobs.append((inference, job))
        self._bytes += _estimate_bytes(inference)

    def pop(self) -> tuple[InferenceFields, Job]:
        """Take the oldest."""
        inference, job = self._jobs.popleft()
        self._bytes -= _estimate_bytes(inference)
        return inference, job


def _read_data(inference: InferenceFields, settings: ClientSettings, links: Links) -> Steps[Blob]:
    link = None if inference.urls is None else inference.urls.data
    if links.work and link is not None and not link.startswith("/"):
        try:
            return (yield from read_link(link, settings))
        except ConnectionFailed:
            links.work = False  # the bucket is where the api alone can go: nobody waits again
        except Refused:
            pass  # the link has expired
    return (yield from read_blob(replace(inference, urls=None), "data", settings))


def _may_be_picture(content_type: str | None) -> bool:
    kind = (content_type or "").partition(";")[0].strip().lower()
    return not kind or kind.startswith("image/") or kind == "application/octet-stream"


def _has_outlines(inference: InferenceFields) -> bool:
    if not inference.predictions:
        return False
    task_type = inference.task_type
    if task_type is None:
        return True  # that of the registration counts, which the store knows
    return re.sub(r"[^a-z0-9]+", "_", task_type.lower()).strip("_") in OUTLINED


def _estimate_bytes(inference: InferenceFields) -> int:
    return inference.data_size_bytes or _UNKNOWN_BYTES
