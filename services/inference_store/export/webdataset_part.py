"""A part as a tar file for WebDataset: of each inference `<uid>.json`, and its input beside it.

The files of a sample stand together, and nothing depends on the time or the machine: a part that is
written again has the same bytes.
"""

from collections.abc import Iterator, Sequence
from tarfile import BLOCKSIZE, NUL, RECORDSIZE, USTAR_FORMAT, TarInfo
from typing import BinaryIO, Final

from inference_store.platform.json_encoding import encode_json

from .columns import Columns
from .file_suffixes import find_suffix
from .fixed_columns import Row
from .part_object import ObjectFormat

_MODE: Final = 0o644
_INPUT: Final = "data"


class WebDatasetPart:
    """Writes headers and contents itself: `tarfile` would remember each header until the end."""

    def __init__(self, columns: Columns, file: BinaryIO) -> None:
        self._file, self._format = file, ObjectFormat(columns)
        self._size = 0

    def add(self, rows: Sequence[Row]) -> None:
        """See PartEncoder."""
        for row in rows:
            for name, content in self._list_files(row):
                self._write(name, content)

    def close(self) -> None:
        """See PartEncoder."""
        end = 2 * BLOCKSIZE
        self._file.write(NUL * (end + -(self._size + end) % RECORDSIZE))

    def _list_files(self, row: Row) -> Iterator[tuple[str, bytes]]:
        uid = row.inference.uid
        item = self._format.build(row, contents=False)
        yield f"{uid}.json", encode_json(item, times_fit=True)
        content = None if row.contents is None else row.contents[_INPUT]
        if content is not None:
            suffix = find_suffix(content, row.inference.row["data_content_type"])
            yield f"{uid}.{suffix}", content

    def _write(self, name: str, content: bytes) -> None:
        header = TarInfo(name)
        header.size, header.mode = len(content), _MODE
        padding = -len(content) % BLOCKSIZE
        self._file.write(header.tobuf(USTAR_FORMAT))
        self._file.write(content)
        self._file.write(NUL * padding)
        self._size += BLOCKSIZE + len(content) + padding
