"""The formats of an export's parts, in the one table that jobs, routes and docs read."""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from tarfile import BLOCKSIZE, NUL, RECORDSIZE, USTAR_FORMAT, TarInfo
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from nanoarrow.ipc import InputStream
from sqlalchemy.ext.asyncio import AsyncEngine

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
from inference_store.export.jobs import Confirm, ExportJob, load_keys, read_model_id
from inference_store.inference.errors import BlobMissing, Fault, Invalid
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.inference.layout import find_image_type
from inference_store.objects import OVER_BUDGET, Blobs, Fetched
from inference_store.platform.failpoints import failpoint
from inference_store.platform.json_encoding import encode_json
from inference_store.query.deadline import find_ranges
from inference_store.query.lookup import read_visible
from inference_store.query.read import BLOBS, STORAGE_KEYS, get_storage_key


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

    def check_blobs(self, choice: BlobChoice) -> None:
        """Raise Invalid for copies in a format that cannot have them."""
        if choice != "copy" or self.copied:
            return
        others = ", ".join(format.name for format in PART_FORMATS.values() if format.copied)
        message = f"{self.name} has no copies of blobs: choose none or links, or {others}"
        raise Invalid(f"blobs: {message}.", faults=[Fault("blobs", message)])

    def check_installed(self) -> None:
        """Raise Invalid if the format needs an extra that is not installed."""
        with suppress(ModuleNotFoundError):  # of the package that it is in
            if self.needed is None or find_spec(self.needed) is not None:
                return
        remedy = f"install inference-store[{self.name}], or choose another format"
        message = f"{self.name} needs a package that this server does not have: {remedy}"
        raise Invalid(f"format: {message}.", faults=[Fault("format", message)])


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
            self._sizes += map(_measure, rows)

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


def _measure(row: Row) -> int:
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


def _table(*formats: PartFormat) -> Mapping[str, PartFormat]:
    return MappingProxyType({format.name: format for format in formats})


PART_FORMATS: Final = _table(
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
"""By name. Parquet holds a row group in memory; the others hold a page."""


# What is in a part of an export: its members as rows, with links to their blobs or their bytes.
#
# They depend on nothing but what is stored, so that an attempt after a crash has the same bytes. A
# blob that is missing is None, and never an error: it was erased, it is not in the bucket, or it is
# too large. If the bucket is unavailable, the part waits.

_PAGE: Final = 500
"""Members that are read at once, which bounds the memory."""
_BATCH_ROWS: Final = 100
_BATCH_BYTES: Final = 2 * 1024 * 1024
"""Bytes of a batch, unless a single row has more."""
_THREADS: Final = 4
"""Requests at once; each may be for a blob more than the batch has room for."""
_SURPLUS: Final = 2
"""A part has at most so many times the bytes that its list was closed for, which producers name."""
_LONGEST_LINK: Final = timedelta(days=7)
"""The longest that a link of AWS Signature Version 4 works."""


class CopyLimits(NamedTuple):
    """Most bytes of one blob that is copied, and of the blobs that a list is closed for."""

    blob: int
    part: int


class Encoded(NamedTuple):
    """How many inferences a part has, and how many blobs it should have and does not."""

    rows: int
    missing: int


Complete: TypeAlias = Callable[[Sequence[Row]], Iterator[Sequence[Row]]]
"""Adds to rows what a part has of their blobs, and yields them in batches. Blocks."""


@dataclass(frozen=True, slots=True)
class PartEncoding:
    """Encodes one part of a job."""

    engine: AsyncEngine
    blobs: Blobs
    job: ExportJob
    limits: CopyLimits
    confirm: Confirm

    async def encode(self, uids: Sequence[UUID], file: BinaryIO) -> Encoded:
        """Encode the members that are still there; `confirm`, before each batch, raises if the
        service may not go on. Raises ObjectStoreUnavailable, OSError if the disk is full, and the
        errors of the database."""
        format = PART_FORMATS[self.job.format]
        chosen = format.choose_blobs(self.job.blob_choice)
        document = self.job.document
        columns = Columns.of(document["include"], load_keys(document["keys"]), chosen)
        encoder: PartEncoder = format.make_encoder(columns, file)
        if chosen.copied:
            complete: Complete = CopySource(self.blobs, chosen.copied, self.limits).complete
        else:
            complete = partial(_add_links, self.blobs, self.job, chosen.linked)
        count = missing = 0
        for begin in range(0, len(uids), _PAGE):
            rows = await self._read_rows(uids[begin : begin + _PAGE])
            batches = complete(rows)
            while batch := await asyncio.to_thread(next, batches, ()):
                await self.confirm()
                await asyncio.to_thread(encoder.add, batch)
                missing += sum(_count_missing(row, chosen) for row in batch)
                failpoint("export.write.batch")
            count += len(rows)
        await asyncio.to_thread(encoder.close)
        return Encoded(count, missing)

    async def _read_rows(self, uids: Sequence[UUID]) -> list[Row]:
        job = self.job
        async with self.engine.connect() as connection:
            spans = await find_ranges(connection)
            model_id = await read_model_id(connection, job)
            inferences = await read_visible(
                connection, job.model, uids, spans, include=job.document["include"]
            )
        return [Row(model_id, inference) for inference in inferences]


def _count_missing(row: Row, chosen: ChosenBlobs) -> int:
    """Return how many blobs the inference names and the part has not."""
    present = {**(row.urls or {}), **(row.contents or {})}
    blobs = (*chosen.linked, *chosen.copied)
    named = [blob for blob in blobs if row.inference.row[STORAGE_KEYS[blob]] is not None]
    return sum(present[blob] is None for blob in named)


def _add_links(
    blobs: Blobs, job: ExportJob, linked: Sequence[str], rows: Sequence[Row]
) -> Iterator[Sequence[Row]]:
    """Add presigned links, if any are linked. They are signed as of the request, so that all links
    of an export end at once: with the export, or after the seven days that signatures have."""
    lasting = min(job.expires_at - job.requested_at, _LONGEST_LINK)
    seconds = max(1, int(lasting.total_seconds()))

    def sign(row: Row, blob: str) -> str | None:
        key = get_storage_key(row.inference, blob)
        if key is None:
            return None
        try:
            return blobs.presign(parse_stored(key), seconds, at=job.requested_at)
        except BlobMissing:  # a key that no client can address, or a bucket no longer allowed
            return None

    yield [
        row._replace(urls={blob: sign(row, blob) for blob in linked}) if linked else row
        for row in rows
    ]


class CopySource:
    """Adds the bytes of blobs to the rows of one part."""

    def __init__(self, blobs: Blobs, copied: Sequence[str], limits: CopyLimits) -> None:
        self._blobs, self._copied, self._most = blobs, copied, limits.blob
        self._left = max(_SURPLUS * limits.part, limits.part + len(copied) * limits.blob)

    def complete(self, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """Yield the rows with their blobs, in batches that depend on nothing but the blobs: so a
        part that is written again has the same bytes. Raises ObjectStoreUnavailable. Blocks."""
        batch: list[Row] = []
        size = 0
        while rows:
            some = self._read_some(rows[:_BATCH_ROWS])
            rows = rows[len(some) :]
            for bare, results in some:
                row = bare._replace(contents=self._take(results))
                row_size = _measure(row)
                if batch and (size + row_size > _BATCH_BYTES or len(batch) == _BATCH_ROWS):
                    yield batch
                    batch, size = [], 0
                batch.append(row)
                size += row_size
        if batch:
            yield batch

    def _read_some(self, rows: Sequence[Row]) -> list[tuple[Row, Sequence[Fetched]]]:
        """Read the blobs of the first rows, of as many as a batch has bytes for; of one at
        least."""
        width = len(self._copied)
        keys = [self._find_key(row, blob) for row in rows for blob in self._copied]
        budget = _BATCH_BYTES if len(rows) > 1 else None
        results = self._blobs.get_many(keys, limit=self._most, threads=_THREADS, budget=budget)
        whole = results.index(OVER_BUDGET) // width if OVER_BUDGET in results else len(rows)
        if whole == 0:
            return self._read_some(rows[:1])
        each = (results[at : at + width] for at in range(0, whole * width, width))
        return [*zip(rows, each, strict=False)]

    def _find_key(self, row: Row, blob: str) -> StorageKey | None:
        """Return the key to read; None: the blob is gone, or its bucket no longer allowed."""
        text = get_storage_key(row.inference, blob)
        key = None if text is None else parse_stored(text)
        return key if key is not None and key.bucket in self._blobs.buckets.allowed else None

    def _take(self, results: Sequence[Fetched]) -> Mapping[str, bytes | None]:
        """Return the bytes of a row's blobs, as long as the part has room for them."""
        contents: dict[str, bytes | None] = {}
        for blob, result in zip(self._copied, results, strict=True):
            fits = isinstance(result, bytes) and len(result) <= self._left
            contents[blob] = result if isinstance(result, bytes) and fits else None
            self._left -= len(contents[blob] or b"")
        return contents
