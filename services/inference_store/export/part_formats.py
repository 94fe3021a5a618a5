"""The formats of an export's parts, in the one table that jobs, routes and docs read."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from tarfile import BLOCKSIZE, NUL, RECORDSIZE, USTAR_FORMAT, TarInfo
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from nanoarrow.ipc import InputStream

from inference_store.export.columns import (
    NO_BLOBS,
    BlobChoice,
    ChosenBlobs,
    Column,
    Columns,
    Row,
    format_inference,
)
from inference_store.export.formats import ArrowEncoder, CsvEncoder, Encoder
from inference_store.inference.layout import find_image_type
from inference_store.platform.json_encoding import encode_json
from inference_store.query.read import BLOBS


class PartEncoder(Protocol):
    """Encodes one part into a file."""

    def add(self, rows: Sequence[Row]) -> None:
        """Add a page of inferences: a thousand or so, or fewer with some megabytes of blobs."""

    def close(self) -> None:
        """Write what is not in the file yet; the file stays open."""


@dataclass(frozen=True, slots=True)
class PartFormat:
    """A format of parts."""

    name: str
    media_type: str
    suffix: str
    """Of the names of files."""
    make_encoder: Callable[[Columns, BinaryIO], PartEncoder]
    needed: str | None = None
    """A module that comes with the extra of the format's name, which has to be installed."""
    linked: Sequence[str] = BLOBS
    """The blobs that its parts can have links to."""
    copied: Sequence[str] = ()
    """The blobs whose bytes its parts can have; none: it cannot have copies."""
    default_blobs: BlobChoice = "none"
    """What its parts have if nobody says it."""

    def choose_blobs(self, choice: BlobChoice) -> ChosenBlobs:
        """Return the blobs that its parts have."""
        return {
            "none": NO_BLOBS,
            "links": ChosenBlobs(linked=self.linked),
            "copy": ChosenBlobs(copied=self.copied),
        }[choice]

    @property
    def is_installed(self) -> bool:
        """Whether what it needs is installed."""
        try:
            return self.needed is None or find_spec(self.needed) is not None
        except ModuleNotFoundError:  # of the package that it is in
            return False


class CopyLimits(NamedTuple):
    """Most bytes of one blob that is copied, and of the blobs that a list is closed for."""

    blob: int
    part: int


class StreamPart:
    """Writes a part as the stream of the same format is, without cursors."""

    def __init__(
        self, make_encoder: Callable[[Sequence[Column]], Encoder], columns: Columns, file: BinaryIO
    ) -> None:
        self._columns, self._file = columns, file
        self._encoder = make_encoder(columns.list_all())
        file.write(self._encoder.encode_head({}))

    def add(self, rows: Sequence[Row]) -> None:
        """See PartEncoder."""
        if rows:
            self._file.write(self._encoder.encode_page(self._columns.read(rows), len(rows)))

    def close(self) -> None:
        """See PartEncoder."""
        self._file.write(self._encoder.encode_end())


_COMPRESSION: Final = "zstd(3)"
_GROUP_ROWS: Final = 5_000
"""Rows of a row group, which arro3 holds in memory."""
_GROUP_BYTES: Final = 4 * 1024 * 1024
"""Bytes of blobs in a row group, unless a single row has more."""


class ParquetPart:
    """Puts the batches of a part on the disk as an Arrow stream, and makes of it the Parquet file
    when it is closed. So what is in memory is a page, and then a row group."""

    def __init__(self, columns: Columns, file: BinaryIO) -> None:
        self._file = file
        self._batches = TemporaryFile(prefix="inference-store-export-")  # noqa: SIM115  (see close)
        self._part = StreamPart(ArrowEncoder, columns, self._batches)
        self._sizes: list[int] = []  # of the blobs of each row
        self._copied = [column.name for column in columns.contents]

    def add(self, rows: Sequence[Row]) -> None:
        """See PartEncoder."""
        self._part.add(rows)
        if self._copied:
            self._sizes += map(measure_contents, rows)

    def close(self) -> None:
        """See PartEncoder."""
        from arro3.io import write_parquet  # noqa: PLC0415  (an extra)

        self._part.close()
        with self._batches as batches:
            batches.seek(0)
            stream = InputStream.from_readable(batches)
            write_parquet(
                stream,
                self._file,
                compression=_COMPRESSION,
                max_row_group_size=_count_group_rows(self._sizes),
                # a dictionary would be in memory beside the row group
                column_dictionary_enabled=dict.fromkeys(self._copied, False),
            )


def measure_contents(row: Row) -> int:
    """Return the bytes of the blobs that a row has."""
    return sum(len(content or b"") for content in (row.contents or {}).values())


def _count_group_rows(sizes: Sequence[int]) -> int:
    """Return how many rows a group has, so that no group has too many bytes."""
    rows = _GROUP_ROWS
    while rows > 1 and any(
        sum(sizes[begin : begin + rows]) > _GROUP_BYTES for begin in range(0, len(sizes), rows)
    ):
        rows //= 2
    return rows


class LinePart:
    """Writes a line for each inference. Metadata and predictions are whole, if they are
    included. `reshape`: makes another object of the API's."""

    def __init__(
        self,
        _: Columns,
        file: BinaryIO,
        *,
        reshape: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda item: item,
    ) -> None:
        self._file, self._reshape = file, reshape

    def add(self, rows: Sequence[Row]) -> None:
        """See PartEncoder."""
        for row in rows:
            item = self._reshape(build_object(row))
            self._file.write(encode_json(item, times_fit=True) + b"\n")

    def close(self) -> None:
        """See PartEncoder."""


# An inference under the names of the reference system's event.
#
# `inference_store_client.chariot` gives the same of an inference of the API; a test compares them.

_NAMES: Final = MappingProxyType(
    {
        "model_id": "model_id",
        "inference_id": "inference_id",
        "inference_action": "action",
        "data_hash": "data_hash",
        "request_received_at": "received_at",
        "request_forwarded_at": "forwarded_at",
        "request_responded_at": "responded_at",
        "event_published_at": "published_at",
        "data_storage_key": "data_storage_key",
        "inference_storage_key": "response_storage_key",
        "metadata_storage_key": "metadata_storage_key",
    }
)
"""The name that the store has for each; `metadata` and `presigned_url` are beside them."""
_ENTRY: Final = ("key", "type", "value")


def format_chariot(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference system's object of the store's. Predictions have no name there."""
    entries = item.get("metadata") or ()
    urls = item.get("urls") or {}
    return {
        **{name: item[ours] for name, ours in _NAMES.items()},
        "metadata": [{name: entry[name] for name in _ENTRY} for entry in entries],
        "presigned_url": urls.get("data"),
    }


def build_object(row: Row, *, contents: bool = True) -> dict[str, Any]:
    """Return what the API shows of an inference, and what an export adds; its times have been
    through `fit_times`. `urls`: the links of the API; `bytes`: in base64, if there are
    `contents`."""
    item = format_inference(row.model_id, row.inference)
    if row.urls is not None:
        item["urls"] = row.urls
    if contents and row.contents is not None:
        item["bytes"] = {
            blob: None if content is None else b64encode(content).decode()
            for blob, content in row.contents.items()
        }
    return item


# A part as a tar file for WebDataset: of each inference `<uid>.json`, and its input beside it.
#
# The files of a sample stand together, and nothing depends on the time or the machine: a part that
# is written again has the same bytes.

_MODE: Final = 0o644
_INPUT: Final = "data"


class WebDatasetPart:
    """Writes headers and contents itself: `tarfile` would remember each header until the end."""

    def __init__(self, _: Columns, file: BinaryIO) -> None:
        self._file, self._size = file, 0

    def add(self, rows: Sequence[Row]) -> None:
        """See PartEncoder."""
        for row in rows:
            for name, content in self._list_files(row):
                header = TarInfo(name)
                header.size, header.mode = len(content), _MODE
                padding = -len(content) % BLOCKSIZE
                self._file.write(header.tobuf(USTAR_FORMAT))
                self._file.write(content)
                self._file.write(NUL * padding)
                self._size += BLOCKSIZE + len(content) + padding

    def close(self) -> None:
        """See PartEncoder."""
        end = 2 * BLOCKSIZE
        self._file.write(NUL * (end + -(self._size + end) % RECORDSIZE))

    def _list_files(self, row: Row) -> Iterator[tuple[str, bytes]]:
        uid = row.inference.uid
        yield f"{uid}.json", encode_json(build_object(row, contents=False), times_fit=True)
        content = None if row.contents is None else row.contents[_INPUT]
        if content is not None:
            suffix = find_suffix(content, row.inference.row["data_content_type"])
            yield f"{uid}.{suffix}", content


# The suffix of a file with an input: by its first bytes, else by its content type.
#
# Nothing of a suffix comes from who sent the input. The client's datasets name pictures the same.

_SUFFIXES: Final = MappingProxyType(
    {
        "image/jpeg": "jpg",
        "image/png": "png",
        "image/gif": "gif",
        "image/webp": "webp",
        "image/bmp": "bmp",
        "image/tiff": "tiff",
        "image/avif": "avif",
        "image/heic": "heic",
        "image/jp2": "jp2",
        "audio/flac": "flac",
        "audio/mpeg": "mp3",
        "audio/ogg": "ogg",
        "audio/wav": "wav",
        "audio/x-wav": "wav",
        "video/mp4": "mp4",
        "application/pdf": "pdf",
        # `json` alone is the inference itself
        "application/json": "input.json",
        "text/plain": "txt",
    }
)
_OTHER: Final = "bin"


def find_suffix(content: bytes, content_type: str | None) -> str:
    """Return the suffix, without a dot before it."""
    suffix = _SUFFIXES.get(find_image_type(content) or "")
    media_type = (content_type or "").partition(";")[0].strip().lower()
    return suffix or _SUFFIXES.get(media_type, _OTHER)


_BOTH: Final = ("data", "response")
"""The metadata blob is not copied: the metadata are in columns, and the rest of it is input."""


_ALL: Final = (
    PartFormat(
        "parquet",
        "application/vnd.apache.parquet",
        ".parquet",
        ParquetPart,
        needed="arro3.io",
        copied=_BOTH,
    ),
    PartFormat(
        "arrow",
        "application/vnd.apache.arrow.stream",
        ".arrows",
        partial(StreamPart, ArrowEncoder),
        copied=_BOTH,
    ),
    PartFormat("csv", "text/csv", ".csv", partial(StreamPart, CsvEncoder)),
    PartFormat("jsonl", "application/x-ndjson", ".jsonl", LinePart, copied=_BOTH),
    PartFormat(
        "webdataset",
        "application/x-tar",
        ".tar",
        WebDatasetPart,
        copied=("data",),
        default_blobs="copy",
    ),
    PartFormat(
        "chariot",
        "application/x-ndjson",
        ".chariot.jsonl",
        partial(LinePart, reshape=format_chariot),
        linked=("data",),
    ),
)
PART_FORMATS: Final[Mapping[str, PartFormat]] = {format.name: format for format in _ALL}
"""By name. Parquet holds a row group in memory; the others hold a page."""
