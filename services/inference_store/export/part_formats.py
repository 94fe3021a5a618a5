"""The formats of an export's parts, in the one table that jobs, routes and docs read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import BinaryIO, Final, NamedTuple, Protocol

from inference_store.inference.errors import Fault, Invalid

from .arrow import ArrowEncoder
from .columns import Columns
from .csv_text import CsvEncoder
from .fixed_columns import Row
from .line_part import LinePart
from .parquet_part import ParquetPart
from .stream_part import StreamPart


class PartEncoder(Protocol):
    """Encodes one part into a file."""

    def add(self, rows: Sequence[Row]) -> None:
        """Add a page of inferences: a thousand or so."""

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


def _table(*formats: PartFormat) -> Mapping[str, PartFormat]:
    return MappingProxyType({format.name: format for format in formats})


PART_FORMATS: Final = _table(
    PartFormat(
        "parquet",
        "application/vnd.apache.parquet",
        ".parquet",
        ParquetPart,
        extra=Extra("parquet", "arro3.io"),
    ),
    PartFormat(
        "arrow",
        "application/vnd.apache.arrow.stream",
        ".arrows",
        partial(StreamPart, ArrowEncoder),
    ),
    PartFormat("csv", "text/csv", ".csv", partial(StreamPart, CsvEncoder)),
    PartFormat("jsonl", "application/x-ndjson", ".jsonl", LinePart),
)
"""By name. Parquet holds a row group in memory; the others hold a page."""
