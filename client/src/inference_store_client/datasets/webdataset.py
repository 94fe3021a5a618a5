"""WebDataset: pictures and their JSON in tar files of a bounded size."""

import io
import tarfile
from pathlib import Path
from typing import Final

from inference_store_client.errors import SettingsError

from .examples import Example, format_annotation
from .json_records import format_inference, format_metadata, write_record
from .summary import DatasetSummary

SHARD_BYTES: Final = 256 * 1024 * 1024
_BLOCK: Final = tarfile.BLOCKSIZE
_END: Final = tarfile.RECORDSIZE
"""The most that the end of a tar file takes."""


class WebDatasetWriter:
    """Writes `shard-000000.tar` and so on: `<uid>.jpg` and `<uid>.json` of each example.

    A shard has up to `shard_bytes`, or one example. The same examples give the same bytes.
    """

    def __init__(self, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        if shard_bytes < 1:
            raise SettingsError("shard_bytes is a number of bytes, at least 1")
        self._folder, self._shard_bytes = folder, shard_bytes
        self._shard: tarfile.TarFile | None = None
        self._shards = self._bytes = 0

    def add(self, example: Example) -> None:
        """Write an example into the shard that is open, or into the next one."""
        width, height = example.picture.size
        record = {
            **format_inference(example.inference),
            "width": width,
            "height": height,
            "annotations": [*map(format_annotation, example.annotations)],
            "metadata": format_metadata(example.inference.metadata),
        }
        key = str(example.inference.uid)
        members = [
            (example.file_name, example.picture.content),
            (f"{key}.json", write_record(record).encode()),
        ]
        size = sum(_BLOCK + -(-len(content) // _BLOCK) * _BLOCK for _, content in members)
        shard = self._open_shard(size)
        for name, content in members:
            shard.addfile(_make_header(name, len(content)), io.BytesIO(content))
        self._bytes += size

    def finish(self, summary: DatasetSummary, /) -> None:
        """Close the last shard, and write the names of the classes."""
        self.close()
        lines = [
            write_record({"index": n, "label": label}) for n, label in enumerate(summary.classes)
        ]
        (self._folder / "classes.jsonl").write_text("".join(lines), encoding="utf-8")

    def close(self) -> None:
        """Close the shard that is open."""
        if self._shard is not None:
            self._shard.close()
            self._shard = None

    def _open_shard(self, size: int) -> tarfile.TarFile:
        if self._shard is not None and self._bytes + size + _END > self._shard_bytes:
            self.close()
        if self._shard is None:
            path = self._folder / f"shard-{self._shards:06d}.tar"
            self._shard = tarfile.open(path, "x", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
            self._shards, self._bytes = self._shards + 1, 0
        return self._shard


def _make_header(name: str, size: int) -> tarfile.TarInfo:
    """Return a header without times and owners: it says nothing of this machine."""
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o644
    return header
