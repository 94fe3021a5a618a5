"""The methods that write datasets, of both clients."""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from .datasets.writing import DatasetRequest

SummaryT = TypeVar("SummaryT")
"""A DatasetSummary, or a coroutine that returns it."""
Folder: TypeAlias = str | PathLike[str]
Classes: TypeAlias = Sequence[str] | None


class DatasetMethods(Generic[SummaryT]):
    """Datasets of all matches. A folder is written as a whole, or there is none."""

    def to_dataset(
        self, format: str, folder: Folder, *, classes: Classes = None, **options: Any
    ) -> SummaryT:
        """Write pictures and predictions into a new folder; `format`: of `datasets.FORMATS`.

        `classes`: these labels alone, in this order; None: all that come, sorted. Each inference
        that matches is in it once, or counted in the summary; otherwise it raises. It needs the
        rights `export` and `read_inputs`, and the extra `datasets`.
        """
        from .datasets.writing import make_dataset_request  # noqa: PLC0415  (takes time to import)

        return self._write_dataset(make_dataset_request(format, folder, classes, **options))

    def to_coco(self, folder: Folder, *, classes: Classes = None) -> SummaryT:
        """Write COCO: `images/` and `annotations.json`. As `to_dataset`."""
        return self.to_dataset("coco", folder, classes=classes)

    def to_yolo(self, folder: Folder, *, classes: Classes = None) -> SummaryT:
        """Write YOLO: `images/`, `labels/` and `data.yaml`. As `to_dataset`."""
        return self.to_dataset("yolo", folder, classes=classes)

    def to_fiftyone(self, folder: Folder, *, classes: Classes = None) -> SummaryT:
        """Write what FiftyOne imports as `COCODetectionDataset`. As `to_dataset`."""
        return self.to_dataset("fiftyone", folder, classes=classes)

    def to_hf_dataset(self, folder: Folder, *, classes: Classes = None) -> SummaryT:
        """Write what `datasets.load_dataset("imagefolder", …)` loads. As `to_dataset`."""
        return self.to_dataset("huggingface", folder, classes=classes)

    def to_webdataset(
        self, folder: Folder, *, classes: Classes = None, shard_bytes: int | None = None
    ) -> SummaryT:
        """Write WebDataset in shards of up to `shard_bytes`; None: 256 MiB. As `to_dataset`."""
        options = {} if shard_bytes is None else {"shard_bytes": shard_bytes}
        return self.to_dataset("webdataset", folder, classes=classes, **options)

    def _write_dataset(self, request: "DatasetRequest") -> SummaryT:
        raise NotImplementedError
