"""The formats of an export's parts, in the one table that jobs, routes and docs read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import BinaryIO, Final, NamedTuple, Protocol

from inference_store.inference.errors import Fault, Invalid
from inference_store.query.stored_blobs import BLOBS

from .arrow import ArrowEncoder
from .blob_choices import NO_BLOBS, BlobChoice, ChosenBlobs
from .chariot_object import format_chariot
from .columns import Columns
from .csv_text import CsvEncoder
from .fixed_columns import Row
from .line_part import LinePart
from .parquet_part import ParquetPart
from .stream_part import StreamPart
from .webdataset_part import WebDatasetPart


class PartEncoder(Protocol):
    """Encodes one part into a file."""

    def add(self, rows: Sequence[Row]) -> None:
        """Add a page of inferences: a thousand or so, or fewer with some megabytes of blobs."""

    def close(self) -> None:
        """Write what is not in the file yet; the file stays open."""


class Extra(NamedTuple):
    """An extra of this distribution, and a module that comes with it."""

    name: str
    module: str


@dataclass(frozen=True, slots=True)
class PartFormat:
    """A format of parts."""

    name: str
    media_type: str
    suffix: str
    """Of the names of files."""
    make_encoder: Callable[[Columns, BinaryIO], PartEncoder]
    extra: Extra | None = None
    """What has to be installed for it."""
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
        if self.extra is None or _is_installed(self.extra.module):
            return
        remedy = f"install inference-store[{self.extra.name}], or choose another format"
        message = f"{self.name} needs a package that this server does not have: {remedy}"
        raise Invalid(f"format: {message}.", faults=[Fault("format", message)])


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


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
        extra=Extra("parquet", "arro3.io"),
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
