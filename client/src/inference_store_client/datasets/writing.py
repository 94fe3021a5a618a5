"""A dataset on its way to disk: what is downloaded goes in, a summary comes out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from inference_store_client.disk_errors import name_target
from inference_store_client.errors import SettingsError
from inference_store_client.new_folder import NewFolder
from inference_store_client.values.drawings import Drawing
from inference_store_client.values.inference import InferenceFields

from .annotations import Annotation, list_annotations
from .downloading import Download
from .examples import Example
from .formats import DatasetFormat, find_format
from .pictures import NoPicture, Picture, read_picture, require_headers
from .summary import DatasetSummary, Tally


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


class DatasetWriting:
    """Writes a dataset into a temporary folder; leaving it early removes that."""

    def __init__(self, request: DatasetRequest) -> None:
        require_headers()
        self._request = request
        self._folder = NewFolder(request.folder)
        self._tally, self._labels = Tally(), set(request.classes or ())
        try:
            self._writer = request.format.make_writer(self._folder.path)
        except BaseException:
            self._folder.remove()
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
            left_out=dict(tally.left_out),
            dropped=dict(tally.dropped),
            remarks=dict(tally.remarks),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            with name_target(self._request.folder):
                self._writer.close()  # which writes what is still in its buffers
        finally:
            self._folder.remove()

    def _write(self, inference: InferenceFields, picture: Picture, drawing: Drawing | None) -> None:
        annotations = self._annotate(inference, picture, drawing)
        self._writer.add(Example(inference, picture, annotations))
        self._tally.pictures += 1
        self._tally.annotations += len(annotations)
        self._labels.update(annotation.label for annotation in annotations)

    def _read_picture(self, download: Download) -> Picture:
        if download.content is None:
            raise NoPicture(download.reason)
        picture = read_picture(download.content)
        if picture.suffix in self._request.format.unsupported:
            raise NoPicture("unsupported")
        return picture

    def _annotate(
        self, inference: InferenceFields, picture: Picture, drawing: Drawing | None
    ) -> list[Annotation]:
        tally, classes = self._tally, self._request.classes
        annotations = list_annotations(inference, picture.size, drawing, tally.dropped)
        wanted = [item for item in annotations if classes is None or item.label in classes]
        tally.dropped.update(["other_class"] * (len(annotations) - len(wanted)))
        tally.remarks.update(["clipped"] * sum(item.is_clipped for item in wanted))
        if inference.prediction_count is None:
            tally.remarks["unpredicted"] += 1
        if drawing is not None and drawing.problem is not None:
            tally.remarks["without_outline"] += 1
        return wanted
