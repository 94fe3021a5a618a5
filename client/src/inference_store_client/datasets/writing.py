"""A dataset on its way to disk: what is downloaded goes in, a summary comes out."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final

from inference_store_client.blob import Blob
from inference_store_client.datasets.annotations import (
    OUTLINED,
    Found,
    NoPicture,
    Picture,
    name_task_type,
    read_picture,
    read_predictions,
    read_text,
    require_headers,
)
from inference_store_client.datasets.formats import DatasetFormat, find_format
from inference_store_client.datasets.summary import DatasetSummary, Example, Tally
from inference_store_client.decoding import decode
from inference_store_client.errors import ConnectionFailed, Gone, NotFound, Refused, SettingsError
from inference_store_client.private_files import NewFolder, name_target
from inference_store_client.question import Question
from inference_store_client.reading import fetch, inference_path, read_link, read_path
from inference_store_client.requests import make_request
from inference_store_client.streaming import stream
from inference_store_client.transport import MOST_JOBS, Transport
from inference_store_client.values.answers import Drawing
from inference_store_client.values.inference import InferenceFields

# What a dataset reads of one inference besides the stream: its picture and its shapes.

_MOST_BYTES: Final = 64 * 1024 * 1024
"""Of all pictures that are in memory, as far as their sizes are known."""
_UNKNOWN_BYTES: Final = 4 * 1024 * 1024
"""The size that is assumed of a picture whose event did not say it."""


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


async def read_download(
    transport: Transport, inference: InferenceFields, links: Links, format: DatasetFormat
) -> Download:
    """Read the picture of an inference, and its shapes. Raises the refusals that are no answer."""
    if inference.data_deleted_at is not None:
        return Download(reason="deleted")
    if inference.data_storage_key is None:
        return Download(reason="no_data")
    if not _may_be_picture(inference.data_content_type, format):
        return Download(reason="not_a_picture")
    try:
        blob = await _read_data(transport, inference, links)
        drawing = None
        if format.has_outlines and _has_outlines(inference):
            request = make_request("GET", inference_path(inference, "drawing"))
            drawing = await fetch(transport, Drawing, request)
    except (Gone, NotFound):  # erased since the stream showed it
        return Download(reason="deleted")
    return Download(blob.content, drawing)


class Window:
    """Downloads that are on their way, in the order of the stream: bounded in number and bytes."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[InferenceFields, Any]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def is_full(self) -> bool:
        """Whether the oldest download must be taken before another begins."""
        return len(self._jobs) >= MOST_JOBS or self._bytes >= _MOST_BYTES

    def push(self, inference: InferenceFields, job: Any) -> None:
        """Add a download that has begun."""
        self._jobs.append((inference, job))
        self._bytes += _estimate_bytes(inference)

    def pop(self) -> tuple[InferenceFields, Any]:
        """Take the oldest."""
        inference, job = self._jobs.popleft()
        self._bytes -= _estimate_bytes(inference)
        return inference, job


async def _read_data(transport: Transport, inference: InferenceFields, links: Links) -> Blob:
    link = None if inference.urls is None else inference.urls.data
    if links.work and link is not None and not link.startswith("/"):
        try:
            return await read_link(transport, link)
        except ConnectionFailed:
            links.work = False  # the bucket is where the api alone can go: nobody waits again
        except Refused:
            pass  # the link has expired
    return await read_path(transport, inference_path(inference, "data"))


def _may_be_picture(content_type: str | None, format: DatasetFormat) -> bool:
    """Return whether it may be a picture, or a text if the format takes some."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    if format.has_texts and (kind.startswith("text/") or kind.endswith("json")):
        return True
    return not kind or kind.startswith("image/") or kind == "application/octet-stream"


def _has_outlines(inference: InferenceFields) -> bool:
    if not inference.predictions:
        return False
    task_type = name_task_type(inference)
    # None: that of the registration counts, which the store knows
    return task_type is None or task_type in OUTLINED


def _estimate_bytes(inference: InferenceFields) -> int:
    return inference.data_size_bytes or _UNKNOWN_BYTES


@dataclass(frozen=True, slots=True)
class DatasetRequest:
    """Which dataset is wanted: its format, its folder, and its classes; None: all that come."""

    format: DatasetFormat
    folder: Path
    classes: Sequence[str] | None = None
    on_added: Callable[[bytes], None] = lambda _: None
    """Told each inference that was written or left out, by the bytes of its picture."""

    def __post_init__(self) -> None:
        classes = self.classes
        if isinstance(classes, str) or (classes and len(set(classes)) < len(classes)):
            raise SettingsError("classes is a list of labels, each once")


def make_dataset_request(
    format: str, folder: str | PathLike[str], classes: Sequence[str] | None, **options: Any
) -> DatasetRequest:
    """Return a request; `options`: of the format. Raises SettingsError."""
    chosen = find_format(format)
    if options:
        make_writer = partial(chosen.make_writer, **options)
        chosen = replace(chosen, make_writer=make_writer)
    return DatasetRequest(chosen, Path(folder), classes)


async def write_dataset(
    transport: Transport, question: Question, request: DatasetRequest
) -> DatasetSummary:
    """Write every match into a new folder. Raises StoreError or OSError, and leaves no folder.

    Pictures are downloaded beside each other, and written in order.
    """
    links, window = Links(), Window()
    with closing(DatasetWriting(request)) as writing:
        async with transport.open_jobs() as jobs:

            async def take() -> None:
                inference, job = window.pop()
                download = await jobs.finish(job)
                await transport.call(partial(writing.add, inference, download))

            build = partial(decode, InferenceFields)
            async for inference in stream(transport, question.with_pictures(), build):
                read = partial(read_download, transport, inference, links, request.format)
                window.push(inference, jobs.begin(read))
                while window.is_full:
                    await take()
            while window:
                await take()
        summary: DatasetSummary = await transport.call(writing.finish)
        return summary


class DatasetWriting:
    """Writes a dataset into a temporary folder; closing it early removes that."""

    def __init__(self, request: DatasetRequest) -> None:
        require_headers()
        self._request = request
        self._folder = NewFolder(request.folder)
        self._tally, self._labels = Tally(), set(request.classes or ())
        try:
            self._writer = request.format.make_writer(self._folder.path)
        except BaseException:
            self._folder.close()
            raise

    def add(self, inference: InferenceFields, download: Download) -> None:
        """Write an inference, or count why it is left out."""
        try:
            picture = self._read_picture(download)
        except NoPicture as reason:
            self._tally.left_out[str(reason)] += 1
        else:
            with name_target(self._request.folder):
                self._write(inference, picture, download.drawing)
        self._request.on_added(download.content or b"")

    def finish(self) -> DatasetSummary:
        """Complete the dataset, and give the folder its name."""
        summary = self._summarize()
        with name_target(self._request.folder):
            self._writer.finish(summary)
            # The reasons for what is left out travel with the data.
            (self._folder.path / "README.md").write_text(f"# {summary}\n", encoding="utf-8")
            self._folder.publish()
        return summary

    def _summarize(self) -> DatasetSummary:
        request, tally = self._request, self._tally
        classes = sorted(self._labels) if request.classes is None else request.classes
        return DatasetSummary(
            folder=request.folder,
            classes=tuple(classes),
            pictures=tally.pictures,
            annotations=tally.annotations,
            labels=tally.labels,
            left_out=dict(tally.left_out),
            dropped=dict(tally.dropped),
            remarks=dict(tally.remarks),
        )

    def close(self) -> None:
        """Remove the temporary folder, if the dataset is not complete."""
        try:
            with name_target(self._request.folder):
                self._writer.close()  # which writes what is still in its buffers
        finally:
            self._folder.close()

    def _write(self, inference: InferenceFields, picture: Picture, drawing: Drawing | None) -> None:
        found = self._read_predictions(inference, picture, drawing)
        label = found.classes[0].label if found.classes else None
        if label is not None and not self._is_wanted(label):
            self._tally.dropped["other_class"] += 1
            label = None
        example = Example(inference, picture, found.annotations, label, found.classes)
        self._writer.add(example)
        self._tally.pictures += 1
        self._tally.annotations += len(found.annotations)
        self._tally.labels += label is not None
        self._labels.update(annotation.label for annotation in found.annotations)
        self._labels.update([] if label is None else [label])

    def _is_wanted(self, label: str) -> bool:
        return self._request.classes is None or label in self._request.classes

    def _read_picture(self, download: Download) -> Picture:
        if download.content is None:
            raise NoPicture(download.reason)
        try:
            picture = read_picture(download.content)
        except NoPicture as reason:
            if not (self._request.format.has_texts and str(reason) == "not_a_picture"):
                raise
            return read_text(download.content)
        if picture.suffix in self._request.format.unsupported:
            raise NoPicture("unsupported")
        return picture

    def _read_predictions(
        self, inference: InferenceFields, picture: Picture, drawing: Drawing | None
    ) -> Found:
        tally = self._tally
        found = read_predictions(inference, picture.size, drawing, tally.dropped)
        wanted = [item for item in found.annotations if self._is_wanted(item.label)]
        tally.dropped.update(["other_class"] * (len(found.annotations) - len(wanted)))
        tally.remarks.update(["clipped"] * sum(item.is_clipped for item in wanted))
        if inference.prediction_count is None:
            tally.remarks["unpredicted"] += 1
        if drawing is not None and drawing.problem is not None:
            tally.remarks["without_outline"] += 1
        return replace(found, annotations=wanted)
