"""A dataset on its way to disk: what is downloaded goes in, a summary comes out."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
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
from inference_store_client.datasets.summary import DatasetSummary, Example
from inference_store_client.decoding import decode
from inference_store_client.errors import ConnectionFailed, Gone, NotFound, Refused, SettingsError
from inference_store_client.private_files import NewFolder, name_target
from inference_store_client.question import Question
from inference_store_client.reading import fetch, inference_path, read_path
from inference_store_client.requests import make_request
from inference_store_client.streaming import stream
from inference_store_client.transport import MOST_JOBS, Job, Transport
from inference_store_client.values.answers import Drawing
from inference_store_client.values.inference import InferenceFields

# What a dataset reads of one inference besides the stream: its picture and its shapes.

_MOST_BYTES: Final = 64 * 1024 * 1024
"""Of all pictures that are in memory, as far as their sizes are known."""
_UNKNOWN_BYTES: Final = 4 * 1024 * 1024
"""The size that is assumed of a picture whose event did not say it."""


@dataclass(slots=True)
class Links:
    """Whether links to the bucket can be reached from this machine."""

    work: bool = True


async def read_download(
    transport: Transport, inference: InferenceFields, links: Links, format: DatasetFormat
) -> tuple[bytes, Drawing | None]:
    """Read the picture of an inference, and its shapes.

    Raises NoPicture with the reason if it has none, and the refusals that are no answer.
    """
    if inference.data_deleted_at is not None:
        raise NoPicture("deleted")
    if inference.data_storage_key is None:
        raise NoPicture("no_data")
    if not _may_be_picture(inference.data_content_type, format):
        raise NoPicture("not_a_picture")
    try:
        blob = await _read_data(transport, inference, links)
        drawing = None
        if format.has_outlines and _has_outlines(inference):
            request = make_request("GET", inference_path(inference, "drawing"))
            drawing = await fetch(transport, Drawing, request)
    except (Gone, NotFound):  # erased since the stream showed it
        raise NoPicture("deleted") from None
    return blob.content, drawing


async def _read_data(transport: Transport, inference: InferenceFields, links: Links) -> Blob:
    link = None if inference.urls is None else inference.urls.data
    if links.work and link is not None and not link.startswith("/"):
        try:
            return await read_path(transport, link, is_read=False)
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
    links, waiting = Links(), deque[tuple[InferenceFields, Job]]()
    with closing(DatasetWriting(request)) as writing:
        async with transport.open_jobs() as jobs:

            async def take() -> None:
                inference, job = waiting.popleft()
                try:
                    content, drawing = await jobs.finish(job)
                except NoPicture as reason:
                    writing.leave_out(reason)
                else:
                    await transport.call(partial(writing.add, inference, content, drawing))

            build = partial(decode, InferenceFields)
            async for inference in stream(transport, question.with_pictures(), build):
                read = partial(read_download, transport, inference, links, request.format)
                waiting.append((inference, jobs.begin(read)))
                while _is_full([each for each, _ in waiting]):
                    await take()
            while waiting:
                await take()
        summary: DatasetSummary = await transport.call(writing.finish)
        return summary


def _is_full(waiting: Sequence[InferenceFields]) -> bool:
    """Return whether the oldest download must be taken before another begins."""
    size = sum(inference.data_size_bytes or _UNKNOWN_BYTES for inference in waiting)
    return len(waiting) >= MOST_JOBS or size >= _MOST_BYTES


class DatasetWriting:
    """Writes a dataset into a temporary folder; closing it early removes that."""

    def __init__(self, request: DatasetRequest) -> None:
        require_headers()
        self._request = request
        self._folder = NewFolder(request.folder)
        self._sizes = {"pictures": 0, "annotations": 0, "labels": 0}
        self._left_out, self._dropped, self._remarks = (
            Counter[str](),
            Counter[str](),
            Counter[str](),
        )
        self._labels = set(request.classes or ())
        try:
            self._writer = request.format.make_writer(self._folder.path)
        except BaseException:
            self._folder.close()
            raise

    def add(self, inference: InferenceFields, content: bytes, drawing: Drawing | None) -> None:
        """Write an inference, or count why it is left out."""
        try:
            picture = self._read_picture(content)
        except NoPicture as reason:
            self.leave_out(reason, content)
            return
        with name_target(self._request.folder):
            self._write(inference, picture, drawing)
        self._request.on_added(content)

    def leave_out(self, reason: NoPicture, content: bytes = b"") -> None:
        """Count an inference that is not in the dataset."""
        self._left_out[str(reason)] += 1
        self._request.on_added(content)

    def finish(self) -> DatasetSummary:
        """Complete the dataset, and give the folder its name."""
        folder, classes = self._request.folder, self._request.classes
        summary = DatasetSummary(
            folder=folder,
            classes=tuple(sorted(self._labels) if classes is None else classes),
            left_out=dict(self._left_out),
            dropped=dict(self._dropped),
            remarks=dict(self._remarks),
            **self._sizes,
        )
        with name_target(folder):
            self._writer.finish(summary)
            self._writer.close()
            # The reasons for what is left out travel with the data.
            (self._folder.path / "README.md").write_text(f"# {summary}\n", encoding="utf-8")
            self._folder.publish()
        return summary

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
            self._dropped["other_class"] += 1
            label = None
        example = Example(inference, picture, found.annotations, label, found.classes)
        self._writer.add(example)
        self._sizes["pictures"] += 1
        self._sizes["annotations"] += len(found.annotations)
        self._sizes["labels"] += label is not None
        self._labels.update(annotation.label for annotation in found.annotations)
        self._labels.update([] if label is None else [label])

    def _is_wanted(self, label: str) -> bool:
        return self._request.classes is None or label in self._request.classes

    def _read_picture(self, content: bytes) -> Picture:
        try:
            picture = read_picture(content)
        except NoPicture as reason:
            if not (self._request.format.has_texts and str(reason) == "not_a_picture"):
                raise
            return read_text(content)
        if picture.suffix in self._request.format.unsupported:
            raise NoPicture("unsupported")
        return picture

    def _read_predictions(
        self, inference: InferenceFields, picture: Picture, drawing: Drawing | None
    ) -> Found:
        found = read_predictions(inference, picture.size, drawing, self._dropped)
        wanted = [item for item in found.annotations if self._is_wanted(item.label)]
        self._dropped.update(["other_class"] * (len(found.annotations) - len(wanted)))
        self._remarks.update(["clipped"] * sum(item.is_clipped for item in wanted))
        if inference.prediction_count is None:
            self._remarks["unpredicted"] += 1
        if drawing is not None and drawing.problem is not None:
            self._remarks["without_outline"] += 1
        return replace(found, annotations=wanted)
